"""The llama.cpp library's door: its log, its defaults, its absence."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from edgellm.engines.base import EngineSettings
from edgellm.engines.llamacpp import LlamaCppEngine, facts, library
from edgellm.errors import DoesNotFit, ModelCorrupt

_WITHOUT_ENGINE = """
import sys
sys.modules["llama_cpp"] = None
from edgellm.engines.llamacpp.library import load
from edgellm.errors import EngineUnavailable
try:
    load()
except EngineUnavailable as err:
    print(err)
"""


def test_missing_engine_names_the_install_command():
    """Without llama-cpp-python the error says what to type."""
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_ENGINE], capture_output=True, text=True, check=True
    )
    assert "pip install 'llama-cpp-python>=0.3.36,<0.4'" in done.stdout


def test_ring_joins_continued_lines_and_prefers_errors():
    """Continued pieces make one line of the first one's level; errors come before warnings."""
    ring = library.LogRing()
    ring.feed(3, "careful\n")
    ring.feed(4, "failed to ")
    ring.feed(5, "allocate\n")
    ring.feed(2, "fine\n")
    assert ring.errors() == "failed to allocate"
    assert ring.contains("careful")
    ring.mark()
    assert ring.errors() == "the library gave no reason"


def test_ring_keeps_the_last_lines_only():
    """A chatty library does not fill the memory."""
    ring = library.LogRing()
    for i in range(5000):
        ring.feed(4, f"line {i}\n")
    assert ring.errors(1) == "line 4999"
    assert not ring.contains("line 12\n")
    assert not ring.contains("line 100")


def test_this_library_has_the_known_defaults():
    """The installed binding's structs are those this adapter was written for."""
    assert library.load().mismatch == ""


def test_a_moved_field_turns_snapshots_off(open_tiny, monkeypatch):
    """A struct whose fields moved reads as wrong defaults; state is then not to be trusted."""
    lib = library.load().lib

    def moved() -> SimpleNamespace:
        real = lib.llama_context_default_params()
        values = {name: getattr(real, name) for name in library._CONTEXT_DEFAULTS}
        return SimpleNamespace(**{**values, "n_batch": 512})

    fake = SimpleNamespace(
        llama_context_default_params=moved,
        llama_model_default_params=lib.llama_model_default_params,
    )
    said = library.mismatch(fake)
    assert said == "context parameter n_batch defaults to 512, not 2048"
    engine = open_tiny("llama")
    changed = replace(library.load(), mismatch=said)
    assert said in facts.snapshot_block(changed, engine._model, engine.model)


def test_file_that_passes_the_header_but_not_the_engine(tiny_models, tmp_path):
    """What the library refuses ends in an error with its own last words, not in a crash."""
    data = (tiny_models / "tiny-llama.gguf").read_bytes()
    broken = tmp_path / "renamed.gguf"
    broken.write_bytes(data.replace(b"blk.1.attn_q.weight", b"blk.1.attn_z.weight"))
    with pytest.raises(ModelCorrupt, match="attn_q"):
        LlamaCppEngine(broken, EngineSettings())


def test_a_file_system_without_mmap_is_read(tiny_models, monkeypatch):
    """One more try without mapping, and a note on the memory that takes."""
    lib, ring = library.load().lib, library.load().log
    real, modes = lib.llama_model_load_from_file, []

    def load(path: bytes, params: Any) -> Any:
        modes.append(params.load_mode)
        if len(modes) == 1:
            ring.feed(4, "llama_model_load: error loading model: mmap failed: No such device\n")
            return None
        return real(path, params)

    monkeypatch.setattr(lib, "llama_model_load_from_file", load)
    engine = LlamaCppEngine(tiny_models / "tiny-llama.gguf", EngineSettings(n_threads=1))
    assert modes == [-1, 0]
    assert any("cannot map the model" in warning for warning in engine.model.warnings)
    engine.reserve(256)
    assert engine.decode([1, 2, 3]).shape == (1, 512)
    engine.close()


def test_what_cannot_be_mapped_is_read_only_where_it_fits(tiny_models, monkeypatch):
    """The memory is looked at again before the second try: a file that is longer is not tried."""
    lib, ring = library.load().lib, library.load().log
    modes = []

    def load(path: bytes, params: Any) -> None:
        modes.append(params.load_mode)
        ring.feed(4, "llama_model_load: error loading model: mmap failed: No such device\n")

    path = tiny_models / "tiny-llama.gguf"
    n_bytes = path.stat().st_size
    monkeypatch.setattr(lib, "llama_model_load_from_file", load)
    monkeypatch.setattr(facts, "available_bytes", lambda: n_bytes - 1)
    with pytest.raises(
        DoesNotFit, match=r"cannot map the model, and to read it .* are needed"
    ) as e:
        LlamaCppEngine(path, EngineSettings(n_threads=1))
    assert modes == [-1]
    assert (e.value.need_bytes, e.value.have_bytes) == (n_bytes, n_bytes - 1)
    monkeypatch.setattr(facts, "available_bytes", lambda: n_bytes)
    with pytest.raises(ModelCorrupt, match="mmap failed"):
        LlamaCppEngine(path, EngineSettings(n_threads=1))
    assert modes == [-1, -1, 0]


@pytest.mark.parametrize(
    ("reason", "kind", "says"),
    [
        (
            "done_getting_tensors: wrong number of tensors; expected 9, got 8",
            "ModelUnsupported",
            "9",
        ),
        ("unknown model architecture: 'quokka'", "ModelUnsupported", "newer llama-cpp-python"),
        ("tensor 'a' has wrong shape", "ModelCorrupt", "wrong shape"),
        ("mmap failed: Cannot allocate memory", "DoesNotFit", "weights do not fit"),
    ],
)
def test_the_library_s_own_refusals(open_tiny, reason, kind, says):
    """Each keeps the library's words and has the exit code that belongs to it."""
    error = facts.load_error(open_tiny("llama").model, "0.3.36", reason)
    assert type(error).__name__ == kind
    assert says in str(error)
    assert error.hint
