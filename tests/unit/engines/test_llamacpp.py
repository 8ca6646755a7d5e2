"""LlamaCppEngine on tiny real models: decoding, positions, state, refusals."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from edgellm.engines.base import Engine, EngineSettings
from edgellm.engines.llamacpp import LlamaCppEngine
from edgellm.errors import (
    Cancelled,
    DoesNotFit,
    ModelNotFound,
    PromptTooLong,
    SnapshotIncompatible,
    UsageError,
)
from edgellm.store.state import KVState

EXACT_KINDS = ("llama", "qwen3moe", "deepseek2", "gemma3")


def settled(engine: Engine) -> KVState:
    """Capture at a boundary the way a session does."""
    state = engine.capture()
    if engine.restore_moves:
        engine.restore(state)
    return state


def test_all_and_last_logits_agree(open_tiny, tokens):
    """Every row of `all` is a row of the vocabulary, and the last one is what `last` gives.

    Up to rounding: for `last`, the final layer works on one row only.
    """
    prompt = tokens(100)
    every = open_tiny("llama").decode(prompt, logits="all").copy()
    last = open_tiny("llama").decode(prompt)
    assert every.shape == (100, 512)
    assert last.shape == (1, 512)
    assert np.allclose(every[-1], last[0], rtol=0, atol=1e-5)


def test_long_input_is_cut_from_its_own_start(open_tiny, tokens):
    """A call of three batches makes the same calls, so the same bits, as three calls."""
    prompt = tokens(150)
    at_once, in_parts = open_tiny("llama"), open_tiny("llama")
    whole = at_once.decode(prompt).copy()
    for start in range(0, 150, 64):
        parts = in_parts.decode(prompt[start : start + 64])
    assert np.array_equal(whole, parts)
    assert at_once.position == in_parts.position == 150


@pytest.mark.parametrize("name", EXACT_KINDS)
@pytest.mark.parametrize(
    ("flash_attention", "kv_type"),
    [("auto", "f16"), ("auto", "f32"), ("auto", "q8_0"), ("off", "f16"), ("off", "f32")],
)
def test_restored_state_gives_the_same_bits(open_tiny, tokens, name, flash_attention, kv_type):
    """A state restored in another engine goes on with exactly the logits of the first."""
    settings = {"flash_attention": flash_attention, "kv_type": kv_type}
    first, second = open_tiny(name, **settings), open_tiny(name, **settings)
    first.decode(tokens(200))
    second.restore(settled(first))
    assert second.position == 200
    for step in (tokens(16, 1), [7], [300], [42]):
        assert np.array_equal(first.decode(step), second.decode(step))


@pytest.mark.parametrize("name", EXACT_KINDS)
def test_canonical_form_does_not_depend_on_the_value_layout(open_tiny, tokens, name):
    """States of channel-major and token-major engines have the same shapes and types."""
    states = []
    for flash_attention in ("off", "on"):
        engine = open_tiny(name, flash_attention=flash_attention)
        engine.decode(tokens(40))
        states.append(engine.capture())
    shapes = [
        [
            (p.kind, p.first, s.layer, s.role, s.type, s.rows.shape)
            for p in state.parts
            for s in p.sections
        ]
        for state in states
    ]
    assert shapes[0] == shapes[1]


def test_state_of_one_layout_restores_into_the_other(open_tiny, tokens):
    """Values laid out anew are the same values: captured again they are equal."""
    off, on = open_tiny("llama", flash_attention="off"), open_tiny("llama", flash_attention="on")
    off.decode(tokens(77))
    state = off.capture()
    on.restore(state)
    again = on.capture()
    for before, after in zip(state.parts[0].sections, again.parts[0].sections, strict=True):
        assert np.array_equal(before.rows, after.rows)


def test_refused_restore_leaves_a_clean_engine(open_tiny, tokens):
    """After a state of another model nothing is left, and the next answer is a fresh one's."""
    engine, other = open_tiny("llama"), open_tiny("qwen3moe")
    other.decode(tokens(50))
    engine.decode(tokens(60, 3))
    with pytest.raises(SnapshotIncompatible):
        engine.restore(other.capture())
    assert engine.position == 0
    assert np.array_equal(engine.decode(tokens(80)), open_tiny("llama").decode(tokens(80)))


def test_state_longer_than_the_context_is_refused(open_tiny, tiny_models, tokens):
    """A state that does not fit is refused before the library sees it."""
    engine = open_tiny("llama")
    engine.decode(tokens(400))
    small = LlamaCppEngine(tiny_models / "tiny-llama.gguf", EngineSettings(n_threads=1))
    small.reserve(256)
    with pytest.raises(SnapshotIncompatible, match="400 tokens do not fit a context of 256"):
        small.restore(engine.capture())
    small.close()


def test_bad_tokens_are_refused_before_the_library_sees_them(open_tiny):
    """No ids, and ids outside the vocabulary, are the caller's mistakes."""
    engine = open_tiny("llama")
    for bad in ([], [-1], [512], [0, 1 << 40]):
        with pytest.raises((ValueError, OverflowError)):
            engine.decode(bad)
    assert engine.position == 0


def test_too_many_tokens_change_nothing(open_tiny, tokens):
    """Tokens that do not fit are refused with the numbers, and the memory stays."""
    engine = open_tiny("llama")
    engine.decode(tokens(500))
    with pytest.raises(PromptTooLong, match="100 tokens after 500 do not fit a context of 512"):
        engine.decode(tokens(100))
    assert engine.position == 500


def test_growing_the_context_clears_it(open_tiny, tokens):
    """A smaller reserve is no change; a larger one starts anew."""
    engine = open_tiny("llama")
    engine.decode(tokens(10))
    engine.reserve(300)
    assert (engine.n_ctx, engine.position) == (512, 10)
    engine.reserve(1024)
    assert (engine.n_ctx, engine.position) == (1024, 0)


@pytest.mark.model
def test_cancel_stops_a_decode_from_another_thread(smollm2_gguf):
    """A running prefill stops long before its end, and the engine goes on after `resume`."""
    engine = LlamaCppEngine(smollm2_gguf, EngineSettings())
    engine.reserve(4096)
    timer = threading.Timer(0.1, engine.cancel)
    timer.start()
    with pytest.raises(Cancelled):
        engine.decode([i % 5000 + 300 for i in range(4000)])
    timer.join()
    assert engine.position < 4000
    with pytest.raises(Cancelled):
        engine.decode([400])
    engine.resume()
    assert engine.decode([400]).shape == (1, 49152)
    engine.close()


def test_fingerprint_names_what_changes_numbers(open_tiny):
    """Model, KV type and attention kernel are hard; threads and batch size are soft."""
    base = open_tiny("llama").fingerprint()
    assert base.digest() == open_tiny("llama", n_threads=2, n_batch=32).fingerprint().digest()
    for other in (
        open_tiny("gemma3"),
        open_tiny("llama", kv_type="f32"),
        open_tiny("llama", flash_attention="off"),
    ):
        assert base.digest() != other.fingerprint().digest()
    assert dict(open_tiny("llama", n_batch=32).fingerprint().soft)["n_batch"] == "32"


def test_fingerprint_values_fit_a_header(open_tiny, monkeypatch):
    """Names with line breaks or umlauts must not keep a snapshot from being written."""
    engine = open_tiny("llama")
    monkeypatch.setattr(engine, "model", replace(engine.model, name="Bär\n" + "x" * 9000))
    name = dict(engine.fingerprint().hard)["name"]
    assert name.startswith("B?r?xx")
    assert len(name) == 500


def test_rotation_switch_is_in_the_fingerprint(open_tiny, monkeypatch):
    """Turning llama.cpp's rotation of quantised keys off changes rows of the same size."""
    before = open_tiny("llama").fingerprint().digest()
    monkeypatch.setenv("LLAMA_ATTN_ROT_DISABLE", "1")
    assert before != open_tiny("llama").fingerprint().digest()


def test_vocabulary_and_tokenizer_round_trip(open_tiny):
    """Pieces joined are the text again; control tokens have no bytes and are known as such."""
    engine = open_tiny("llama")
    vocab = engine.vocab()
    text = "Grüße, 世界 🙂 def f(x): return x\n"
    ids = engine.tokenize(text, special=False, add_bos=False)
    assert b"".join(map(vocab.piece, ids)).decode() == text
    assert vocab.n_tokens == 512
    assert {509, 510, 511} <= vocab.special_ids
    assert 511 in vocab.end_ids
    assert vocab.piece(511) == b""
    assert engine.tokenize("<|im_end|>", special=True, add_bos=False) == [511]
    assert engine.tokenize("<|im_end|>", special=False, add_bos=False) != [511]
    with pytest.raises(ValueError, match="outside the vocabulary"):
        vocab.piece(512)


def test_lone_surrogates_do_not_stop_the_tokenizer(open_tiny):
    """Half a character, as a broken terminal sends it, is read as a replacement character."""
    engine = open_tiny("llama")
    assert engine.tokenize("a\ud800b", special=False, add_bos=False)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"kv_type": "q3_K"}, "q3_K"),
        ({"kv_type": "q8_0", "flash_attention": "off"}, "q8_0 needs flash attention"),
        ({"n_threads": 100_000}, "100000 threads"),
        ({"n_threads": -1}, "-1 threads"),
        ({"n_batch": 0}, "a batch of 0"),
    ],
)
def test_settings_are_checked_before_the_file(tmp_path: Path, settings, says):
    """What would crash the library or puzzle the reader is a wrong flag, told at once."""
    with pytest.raises(UsageError, match=says):
        LlamaCppEngine(tmp_path / "no.gguf", EngineSettings(**settings))


def test_a_batch_larger_than_the_context_is_the_context(open_tiny, tokens):
    """A batch of a hundred million tokens costs no more than one of the context's length."""
    engine = open_tiny("llama", n_batch=100_000_000)
    assert engine.decode(tokens(500)).shape == (1, 512)


def test_impossible_contexts_are_refused_with_numbers(open_tiny, monkeypatch):
    """Beyond all reason is a wrong flag; beyond the memory does not fit."""
    engine = open_tiny("llama")
    with pytest.raises(UsageError, match="2000000000 tokens for a model trained with 2048"):
        engine.reserve(2_000_000_000)
    free = SimpleNamespace(available=500_000, total=1 << 30)
    monkeypatch.setattr("psutil.virtual_memory", lambda: free)
    with pytest.raises(
        DoesNotFit, match=r"keys and values take 2.1 MB, 500.0 kB of memory are free"
    ):
        engine.reserve(2048)
    assert engine.n_ctx == 512


def test_a_path_that_is_no_utf8_loads(tiny_models, tmp_path):
    """File names are bytes."""
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff.gguf"))
    odd.write_bytes((tiny_models / "tiny-llama.gguf").read_bytes())
    LlamaCppEngine(odd, EngineSettings(n_threads=1)).close()


_FORK = """
import os, sys
from pathlib import Path
from edgellm.engines.base import EngineSettings
from edgellm.engines.llamacpp import LlamaCppEngine
from edgellm.errors import EngineFailed
def fresh():
    engine = LlamaCppEngine(Path(sys.argv[1]), EngineSettings(n_threads=2))
    engine.reserve(256)
    return engine, engine.decode(list(range(100))).tobytes()
old, expected = fresh()
if not (child := os.fork()):
    try:
        old.decode([1])
    except EngineFailed as err:
        os._exit(0 if "fork" in str(err) and fresh()[1] == expected else 7)
    os._exit(8)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_loads_its_own_and_is_told_of_the_old(tiny_models):
    """A child has none of its parent's threads: using the parent's model fails, a new one works."""
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _FORK, str(tiny_models / "tiny-llama.gguf")],
        check=True,
        timeout=60,
    )


def test_missing_file_is_not_found(tmp_path: Path):
    """A path without a file is told before the library is asked."""
    with pytest.raises(ModelNotFound):
        LlamaCppEngine(tmp_path / "no.gguf", EngineSettings())


def test_closing_twice_is_fine(open_tiny):
    """Closing is safe to repeat."""
    engine = open_tiny("llama")
    engine.close()
    engine.close()
