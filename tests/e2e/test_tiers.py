"""Rounded tiers on real models: cold and warm alike to the last bit, and close to the exact answer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgellm.core import Message, Request, Sampling, Tier
from edgellm.engines.base import EngineSettings
from edgellm.engines.llamacpp import LlamaCppEngine
from edgellm.evaluate.divergence import kl_divergence, top1_agreement
from edgellm.runtime.local import LocalSession
from edgellm.runtime.session import SessionOptions
from edgellm.store.format.codec import pack_state
from edgellm.store.snapshots import Hit, Saved, SnapshotStore

pytestmark = pytest.mark.model

# About 18 tokens each: more than the 128 of the smallest snapshot, and than gemma's window of 512.
N_RULES = {"smollm2": 12, "gemma3": 32}
N_LEAST = {"smollm2": 192, "gemma3": 512}
QUESTION = "Which shelf holds the tool of rule 7? Answer in one sentence."
N_GREEDY, N_FORCED = 8, 4


@dataclass(frozen=True)
class Run:
    """What one run showed: digests of the logits behind the boundary, and the store's word."""

    logits: tuple[str, ...]
    text: str
    tier: str
    reason: str
    is_reused: bool


def run_once(
    recorder: Any,
    model: tuple[str, Path],
    flash: str,
    kv_type: str,
    tier: Tier,
    store: SnapshotStore,
) -> Run:
    """Open the model, answer greedily, then teacher-force tokens."""
    name, path = model
    engine = recorder(path, EngineSettings(flash_attention=flash, kv_type=kv_type))
    rules = (
        f"Rule {i}: the tool for job {i * 37 % 101} is on shelf {i * 7 % 40}."
        for i in range(N_RULES[name])
    )
    system = "You answer for a workshop. " + " ".join(rules)
    messages = (Message("system", system), Message("user", QUESTION))
    with LocalSession(engine, SessionOptions(snapshot=tier), store=store) as session:
        done = session.generate(Request(messages, N_GREEDY, sampling=Sampling(temperature=0)))
        for i in range(N_FORCED):
            engine.decode([1000 + 13 * i])
        # A cold run has decoded the prefix in a call of its own before.
        logits = engine.digests[-(done.usage.completion_tokens + N_FORCED) :]
        use = done.snapshot
        is_reused = done.usage.reused_tokens > N_LEAST[name]
        return Run(tuple(logits), done.text, use.tier, use.reason, is_reused)


@pytest.mark.parametrize(
    ("name", "flash", "tier"),
    [
        ("smollm2", "on", Tier.Q8),
        ("smollm2", "off", Tier.Q4),
        ("gemma3", "on", Tier.Q4),
        ("gemma3", "off", Tier.Q8),
        *[
            pytest.param(name, flash, tier, marks=pytest.mark.full)
            for name, flash, tier in (
                ("smollm2", "off", Tier.Q8),
                ("smollm2", "on", Tier.Q6),
                ("smollm2", "on", Tier.Q4),
                ("gemma3", "on", Tier.Q5),
                ("gemma3", "on", Tier.Q8),
                ("gemma3", "off", Tier.Q4),
            )
        ],
    ],
)
def test_cold_and_warm_are_equal(request, recorder, tmp_path, name, flash, tier):
    """The run that makes a rounded snapshot and the run that reads it see the same logits."""
    model = name, request.getfixturevalue(f"{name}_gguf")
    store = SnapshotStore(tmp_path / "snapshots")
    cold = run_once(recorder, model, flash, "f16", tier, store)
    warm = run_once(recorder, model, flash, "f16", tier, store)
    assert (cold.tier, cold.reason) == (tier.value, "miss: not stored; being stored")
    assert (warm.tier, warm.reason) == (tier.value, "hit")
    assert (cold.is_reused, warm.is_reused) == (False, True)
    assert cold.logits == warm.logits
    assert len(cold.logits) > N_FORCED
    assert cold.text == warm.text


def test_a_quantised_cache_is_not_rounded_again(recorder, smollm2_gguf, tmp_path):
    """Keys and values of q8_0 go through byte for byte; the answer rests on an exact snapshot."""
    store = SnapshotStore(tmp_path / "snapshots")
    model = "smollm2", smollm2_gguf
    cold, warm = (run_once(recorder, model, "on", "q8_0", Tier.Q4, store) for _ in range(2))
    assert (warm.tier, warm.reason) == ("exact", "hit")
    assert cold.logits == warm.logits
    assert [entry.tier for entry in store.entries()] == [Tier.EXACT]


@pytest.fixture(scope="module")
def smollm2_f32(smollm2_gguf, tmp_path_factory) -> Iterator[Path]:
    """SmolLM2 with F32 weights: a quantised model's own noise is larger than what is measured."""
    path = tmp_path_factory.mktemp("f32") / "smollm2-f32.gguf"
    command = [
        sys.executable,
        "-m",
        "edgellm",
        "convert",
        smollm2_gguf,
        "-o",
        path,
        "--type",
        "f32",
    ]
    subprocess.run(command, check=True, capture_output=True)
    yield path
    path.unlink()  # half a gigabyte that pytest would keep for three runs


@pytest.mark.parametrize("n_prefix", [512, pytest.param(1024, marks=pytest.mark.full)])
def test_rounding_stays_within_its_limits(smollm2_f32, tmp_path, n_prefix):
    """Of one text: size, divergence and the likeliest token; `tests/bench/tiers.py` does it whole."""
    engine = LlamaCppEngine(smollm2_f32, EngineSettings())
    engine.reserve(n_prefix + 128)
    text = (Path(__file__).parents[2] / "LICENSE").read_text(encoding="utf-8")
    tokens = engine.tokenize(text, special=False, add_bos=True)
    prefix, forced = tokens[:n_prefix], tokens[n_prefix : n_prefix + 128]
    engine.decode(prefix)
    state = engine.capture()
    f16_bytes = sum(section.rows.nbytes for section in state.parts[0].sections)
    expected = engine.decode(forced, "all").copy()
    for tier, max_ratio, max_kl, min_same in (
        (Tier.Q8, 0.52, 2e-4, 0.98),
        (Tier.Q4, 0.33, 5e-3, 0.94),
    ):
        store = SnapshotStore(tmp_path / tier.value)
        saved = store.save(engine.fingerprint(), prefix, pack_state(state, tier))
        assert isinstance(saved, Saved)
        assert saved.n_bytes <= max_ratio * f16_bytes
        found = store.lookup(engine.fingerprint(), prefix, tier)
        assert isinstance(found, Hit)
        engine.restore(found.state)
        logits = engine.decode(forced, "all").copy()
        kl = kl_divergence(expected, logits)
        assert 0 < kl.mean() <= max_kl
        assert np.mean(top1_agreement(expected, logits)) >= min_same
    engine.close()
