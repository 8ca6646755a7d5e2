"""Snapshots under other settings on real models: what needs no conversion, and what one costs."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edgellm.core import Message, Request, Sampling, Tier
from edgellm.engines.base import EngineSettings
from edgellm.engines.llamacpp import LlamaCppEngine
from edgellm.kernels import f16_to_f32
from edgellm.kernels.ggml import GgmlType, dequantize
from edgellm.runtime.local import LocalSession
from edgellm.runtime.session import SessionOptions
from edgellm.store.snapshots import SnapshotStore

if TYPE_CHECKING:
    from edgellm.store.state import KVState, Section

RULES = " ".join(f"Rule {i}: the tool for job {i * 37 % 101} is on shelf {i}." for i in range(12))
PREFIX = (
    f"{RULES} The workshop opens at eight. Whoever comes first switches on the light and the "
    "compressor, looks whether the drill is back in its place, and writes the date on the board."
)
SUFFIX = " Nobody may leave a machine running alone, and the last one to go home closes the door."
SETTINGS = (("f16", "on"), ("f16", "off"), ("q8_0", "on"))
MOVES = [(a, b) for a in SETTINGS for b in SETTINGS if a != b]


@pytest.mark.parametrize("name", ["llama", "gemma3", "deepseek2", "lfm2"])
@pytest.mark.parametrize("flash", ["on", "off"])
def test_a_snapshot_of_one_context_length_serves_every_other(
    recorder, tiny_models, tmp_path, name, flash
):
    """Made at 1024 tokens of context, found at 2048 and 800, and as exact as it was at home."""
    path = tiny_models / f"tiny-{name}.gguf"
    store = SnapshotStore(tmp_path / "snapshots")
    ask = functools.partial(answer, recorder, path, flash)
    made = ask(store, 1024)
    assert made[1] == 0
    for n_ctx in (2048, 800):
        cold, warm = ask(None, n_ctx), ask(store, n_ctx)
        assert warm[1] > 128
        assert warm[0] == cold[0] == made[0]


@pytest.mark.model
def test_a_snapshot_of_one_context_length_serves_a_longer_one(recorder, smollm2_gguf, tmp_path):
    """The same on a real model: `--ctx 1024`, then `--ctx 4096`."""
    store = SnapshotStore(tmp_path / "snapshots")
    made = answer(recorder, smollm2_gguf, "auto", store, 1024)
    cold = answer(recorder, smollm2_gguf, "auto", None, 4096)
    warm = answer(recorder, smollm2_gguf, "auto", store, 4096)
    assert (made[1], warm[1] > 128) == (0, True)
    assert made[0] == cold[0] == warm[0]


def answer(
    recorder: Any, path: Path, flash: str, store: SnapshotStore | None, n_ctx: int
) -> tuple[tuple[str, ...], int]:
    """Answer greedily; return digests of the logits after the prefix, and the tokens reused."""
    engine = recorder(path, EngineSettings(flash_attention=flash, n_threads=1))
    options = SessionOptions(snapshot=Tier.EXACT if store else Tier.OFF, n_ctx=n_ctx)
    messages = (Message("system", RULES), Message("user", "Which shelf is it?"))
    with LocalSession(engine, options, store=store) as session:
        done = session.generate(Request(messages, 6, sampling=Sampling(temperature=0)))
        assert session.engine.n_ctx == n_ctx
    return tuple(engine.digests[-done.usage.completion_tokens :]), done.usage.reused_tokens


def values(section: Section) -> np.ndarray:
    """Return the numbers of a section as the engine would have them."""
    rows = np.ascontiguousarray(section.rows)
    if section.type == "q8_0":
        return dequantize(rows, GgmlType.Q8_0, rows.shape[1] // 34 * 32)
    return f16_to_f32(rows)


def distances(found: KVState, wanted: KVState) -> list[float]:
    """Return for each section the difference as a part of its size."""
    made = []
    for p, q in zip(found.parts, wanted.parts, strict=True):
        for a, b in zip(p.sections, q.sections, strict=True):
            assert (a.role, a.type, a.rows.shape) == (b.role, b.type, b.rows.shape)
            x, y = values(a), values(b)
            made.append(float(np.sqrt(((x - y) ** 2).mean() / (y**2).mean())))
    return made


def divergence(wanted: np.ndarray, found: np.ndarray) -> float:
    """Return the mean KL divergence of rows of logits."""
    logs = [rows.astype(np.float64) - rows.max(axis=1, keepdims=True) for rows in (wanted, found)]
    p, q = (rows - np.log(np.exp(rows).sum(axis=1, keepdims=True)) for rows in logs)
    return float((np.exp(p) * (p - q)).sum(axis=1).mean())


@pytest.mark.model
@pytest.mark.parametrize("name", ["smollm2", pytest.param("gemma3", marks=pytest.mark.full)])
def test_adapted_states_are_as_near_as_the_settings_are(request, name):
    """Heads of 64, and of 256 behind a window: rows and logits of a run that read it all itself.

    The measure is what the two settings differ by when both read the prompt themselves.
    """
    path = request.getfixturevalue(f"{name}_gguf")
    engines = {}
    for kv_type, flash in SETTINGS:
        wanted = EngineSettings(kv_type=kv_type, flash_attention=flash)
        engines[kv_type, flash] = LlamaCppEngine(path, wanted)
        engines[kv_type, flash].reserve(512)
    states, logits = {}, {}
    for settings, engine in engines.items():
        engine.decode(engine.tokenize(PREFIX, special=False, add_bos=True))
        states[settings] = engine.capture()
        engine.restore(states[settings])
        suffix = engine.tokenize(SUFFIX, special=False, add_bos=False)
        logits[settings] = engine.decode(suffix, logits="all").copy()
    for before, after in MOVES:
        engine = engines[after]
        adapted = engine.adapt(states[before], engines[before].fingerprint())
        rows = distances(adapted, states[after])
        apart = [] if before[0] != after[0] else distances(states[before], states[after])
        assert max(rows) < 0.15, (before, after)
        assert not apart or rows == apart
        engine.restore(adapted)
        found = divergence(logits[after], engine.decode(suffix, logits="all"))
        own = divergence(logits[after], logits[before])
        print(f"{name} {before} -> {after}: rows {max(rows):.4f}, KLD {found:.5f} ({own:.5f})")
        assert found < 2 * own + 1e-3, (before, after)
    for engine in engines.values():
        engine.close()
