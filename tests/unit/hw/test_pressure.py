"""Pressure stall information: which file is read, and what its lines say."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgellm.hw.pressure import Pressure, pressure_file, read_pressure

LINES = (
    "some avg10=12.34 avg60=3.00 avg300=0.10 total=555\n"
    "full avg10=7.05 avg60=1.00 avg300=0.00 total=333\n"
)


def test_the_averages_of_ten_seconds(tmp_path: Path) -> None:
    """Both lines are read."""
    path = tmp_path / "memory"
    path.write_text(LINES)
    assert read_pressure(path) == Pressure(12.34, 7.05)


@pytest.mark.parametrize(
    "text", ["", "some avg10=1.00\n", "some avg10=x\nfull avg10=y\n", "some\nfull\n", "\xff"]
)
def test_lines_without_sense_tell_nothing(tmp_path: Path, text: str) -> None:
    """Half a file, or words for numbers, is no pressure of 0."""
    path = tmp_path / "memory"
    path.write_text(text)
    assert read_pressure(path) is None


def test_a_kernel_without_it_tells_nothing(tmp_path: Path) -> None:
    """No file, or one that cannot be read."""
    assert read_pressure(tmp_path / "none") is None
    assert read_pressure(tmp_path) is None
    assert read_pressure(None) is None


def test_a_named_file_comes_before_the_machines(tmp_path: Path) -> None:
    """A service is told where its own group's pressure is."""
    own = tmp_path / "memory.pressure"
    own.write_text(LINES)
    assert pressure_file({"MEMORY_PRESSURE_WATCH": str(own)}) == own


def test_dev_null_means_do_not_look() -> None:
    """Who sets it so wants nobody to react."""
    assert pressure_file({"MEMORY_PRESSURE_WATCH": "/dev/null"}) is None


@pytest.mark.parametrize("named", ["", "relative/file", "/does/not/exist"])
def test_otherwise_the_machines(tmp_path: Path, named: str) -> None:
    """Nothing named, or nothing that can be read."""
    machine = tmp_path / "machine"
    assert pressure_file({"MEMORY_PRESSURE_WATCH": named}, machine) == machine
