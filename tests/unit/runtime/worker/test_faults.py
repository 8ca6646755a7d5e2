"""Faults on purpose."""

from __future__ import annotations

import pytest

from edgellm.errors import EngineFailed, UsageError
from edgellm.runtime.worker.faults import FAULT_VARIABLE, Fault, read_fault


def _read(text: str) -> Fault | None:
    return read_fault({FAULT_VARIABLE: text}, frames_fd=9)


def test_a_fault_is_read():
    """Phase, step, kind and the file that makes it happen once are taken from the variable."""
    fault = _read("decode:5:abort@/somewhere/once")
    assert ("decode", 5, "abort", "/somewhere/once") == (
        fault.phase,
        fault.at,
        fault.kind,
        fault.once,
    )
    assert (1, 9) == (_read("load:segv").at, _read("load:segv").frames_fd)
    assert read_fault({}) is None


@pytest.mark.parametrize("text", ["decode", "decode:x:abort", "walk:abort", "decode:melt", ":::"])
def test_a_fault_that_is_spelled_wrong_is_an_error(text):
    """A test that asks for a fault that there is not fails."""
    with pytest.raises(UsageError, match=r"PHASE\[:N\]:KIND"):
        _read(text)


def test_a_fault_happens_at_its_step_and_once(tmp_path):
    """Only the step of that number fails, and with a file only in one process."""
    once = tmp_path / "once"
    fault = _read(f"prefill:2:memory@{once}")
    fault.step("decode")
    fault.step("prefill")
    with pytest.raises(MemoryError):
        fault.step("prefill")
    fault.step("prefill")
    second = _read(f"prefill:1:memory@{once}")
    second.step("prefill")
    assert once.exists()


def test_a_fatal_decode_is_an_error_of_the_engine():
    """The process lives: what failed is the answer, as when the engine says less than -1."""
    with pytest.raises(EngineFailed):
        _read("decode:fatal").step("decode")
