"""A library built for another CPU is refused before it is loaded, with what is missing."""

from __future__ import annotations

import pytest

from edgellm.engines.llamacpp import built_for
from edgellm.engines.llamacpp.built_for import refuse_other_cpu
from edgellm.errors import EngineUnavailable


def test_the_installed_library_is_for_this_cpu() -> None:
    """Or no test of the engine would run."""
    refuse_other_cpu()


def test_a_library_for_a_newer_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """F-PK-01: the message names the missing flags and the fix."""
    monkeypatch.setattr(built_for, "build_features", lambda _: ("sse3", "avx", "avx2"))
    monkeypatch.setattr(built_for, "cpu_flags", lambda: frozenset({"pni", "sse2", "avx"}))
    with pytest.raises(EngineUnavailable, match="a CPU with avx2, which this one lacks") as caught:
        refuse_other_cpu()
    assert "CMAKE_ARGS=-DGGML_NATIVE=on pip install" in caught.value.hint


def test_flags_that_nobody_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then nothing is refused; nor where the library chooses its kernels itself."""
    monkeypatch.setattr(built_for, "build_features", lambda _: ("avx2",))
    monkeypatch.setattr(built_for, "cpu_flags", frozenset)
    refuse_other_cpu()
    monkeypatch.setattr(built_for, "build_features", lambda _: ())
    monkeypatch.setattr(built_for, "cpu_flags", lambda: frozenset({"sse2"}))
    refuse_other_cpu()
