"""How often a thread looks for work before it sleeps, by processor."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import pytest

from edgellm.hw.spinning import SPINS, openmp_spins

SKYLAKE = "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu sse2 avx2 clflushopt\n"
HASWELL = "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu sse2 avx2\n"
ZEN = "processor\t: 0\nvendor_id\t: AuthenticAMD\nflags\t\t: fpu sse2 avx2 clflushopt\n"
ORIN = "processor\t: 0\nCPU implementer\t: 0x41\nFeatures\t: fp asimd asimddp\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SKYLAKE, SPINS),
        (SKYLAKE + HASWELL, None),
        (HASWELL, None),
        (ZEN, None),
        (ORIN, None),
        ("", None),
    ],
)
def test_only_a_slow_pause_is_answered(tmp_path: Path, text: str, expected: int | None) -> None:
    """Where looking is quick, or was never measured, the library's own number stays."""
    file = tmp_path / "cpuinfo"
    file.write_text(text)
    assert openmp_spins(file) == expected


def test_no_list_of_processors_is_no_answer(tmp_path: Path) -> None:
    """Other systems than Linux have no such list."""
    assert openmp_spins(tmp_path / "none") is None


def test_the_list_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is long on machines of many processors, and this is asked for each worker."""
    file = tmp_path / "cpuinfo"
    file.write_text(SKYLAKE)
    opened, real_open = [], Path.open

    def opening(path: Path, mode: str) -> IO[Any]:
        opened.append(path)
        return real_open(path, mode)

    monkeypatch.setattr(Path, "open", opening)
    assert openmp_spins(file) == SPINS
    assert opened == [file]
