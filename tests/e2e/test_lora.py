"""LoRA adapters through every door, on real models: their logits, their snapshots, nobody else's."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgellm
from edgellm.core import Message, Request, Sampling, Tier
from edgellm.engines.base import EngineSettings
from edgellm.engines.llamacpp import LlamaCppEngine
from edgellm.errors import EdgeLLMError
from edgellm.kernels.ggml import GgmlType, dequantize
from edgellm.runtime.local import LocalSession
from edgellm.runtime.session import SessionOptions
from edgellm.store.snapshots import SnapshotStore

ENDINGS = ("attn_q.weight", "attn_v.weight", "ffn_down.weight")
RULES = " ".join(f"Rule {i}: the tool for job {i * 37 % 101} is on shelf {i}." for i in range(12))
SYSTEM = f"You answer for a workshop. {RULES}"
QUESTION = "Which shelf holds the tool of rule 7?"

TIME_LIMIT_S = 60
Adapters = tuple[tuple[str, float], ...]
Ask = Callable[..., dict[str, Any]]


@dataclass(frozen=True)
class Run:
    """What one run showed: digests of the logits after the prefix, the text, and what was reused."""

    answer: tuple[str, ...]
    text: str
    reused: int


def run_once(recorder: Any, path: Path, store: SnapshotStore | None, adapters: Adapters) -> Run:
    """Open the model with adapters and answer greedily."""
    engine = recorder(path, EngineSettings(adapters=adapters))
    tier = Tier.OFF if store is None else Tier.EXACT
    messages = (Message("system", SYSTEM), Message("user", QUESTION))
    with LocalSession(engine, SessionOptions(snapshot=tier), store=store) as session:
        done = session.generate(Request(messages, 6, sampling=Sampling(temperature=0)))
    digests = tuple(engine.digests[-done.usage.completion_tokens :])
    return Run(digests, done.text, done.usage.reused_tokens)


@pytest.fixture
def adapter(lora_files, tmp_path):
    """Write an adapter for a model, small enough that it still makes words."""

    def make(model: Path, seed: int = 0, **options: Any) -> str:
        made = lora_files.adapter(model, endings=ENDINGS, size=0.02, seed=seed, **options)
        return str(made.write(tmp_path / f"lora-{seed}.gguf"))

    return make


@pytest.mark.model
@pytest.mark.parametrize("name", ["smollm2", pytest.param("gemma3", marks=pytest.mark.full)])
def test_off_cold_and_warm_are_equal(recorder, adapter, request, tmp_path, name):
    """With an adapter as without: the same bits after the prefix."""
    path = request.getfixturevalue(f"{name}_gguf")
    adapters = ((adapter(path), 1.0),)
    store = SnapshotStore(tmp_path / "snapshots")
    off, cold, warm = (run_once(recorder, path, s, adapters) for s in (None, store, store))
    assert (off.reused, cold.reused) == (0, 0)
    assert warm.reused > 128
    assert off.answer == cold.answer == warm.answer
    assert off.text == cold.text == warm.text


@pytest.mark.parametrize(
    "name", ["tiny-llama", pytest.param("smollm2", marks=[pytest.mark.full, pytest.mark.model])]
)
def test_the_model_and_its_adapters_share_no_snapshot(recorder, adapter, request, tmp_path, name):
    """Content and scale decide; each finds its own again."""
    model = (
        request.getfixturevalue("smollm2_gguf")
        if name == "smollm2"
        else request.getfixturevalue("tiny_models") / f"{name}.gguf"
    )
    first, second = adapter(model), adapter(model, 1, kind="f16", rank=2)
    store = SnapshotStore(tmp_path / "snapshots")
    chosen: list[Adapters] = [(), ((first, 0.5),), ((first, 1.0), (second, 1.0))]
    cold = [run_once(recorder, model, store, adapters) for adapters in chosen]
    assert [run.reused for run in cold] == [0] * len(chosen)
    assert len({run.answer[0] for run in cold}) == len(chosen)
    warm = [run_once(recorder, model, store, adapters) for adapters in chosen]
    assert all(run.reused > 128 for run in warm)
    assert [run.answer for run in warm] == [run.answer for run in cold]


def test_a_changed_byte_and_another_order_are_other_adapters(
    recorder, adapter, tiny_models, tmp_path
):
    """At the same path, of the same size: what was stored before is found only by what stored it."""
    model = tiny_models / "tiny-llama.gguf"
    first, second = adapter(model), adapter(model, 1)
    store = SnapshotStore(tmp_path / "snapshots")

    def reused(*paths: str) -> int:
        return run_once(recorder, model, store, tuple((path, 1.0) for path in paths)).reused

    assert reused(first, second) == 0
    assert reused(second, first) == 0
    whole = Path(first).read_bytes()
    changed = bytearray(whole)
    changed[-35] ^= 1  # the mantissa of a weight
    Path(first).write_bytes(changed)
    assert reused(first, second) == 0
    Path(first).write_bytes(whole)
    assert reused(first, second) > 128
    assert reused(second, first) > 128


@pytest.mark.model
def test_logits_are_those_of_the_merged_weights(lora_files, smollm2_gguf, tmp_path):
    """The formula of PEFT on a real model, whose last layer is stored as float32 for it.

    Quantised layers behind it would round both ways apart: they round what they multiply with.
    """
    parts = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    endings = tuple(f"blk.29.{part}.weight" for part in parts)
    whole = lora_files.parse(smollm2_gguf)
    for name in endings:
        whole = whole.with_tensor(name, as_float32)
    base = whole.write(tmp_path / "base.gguf")
    made = lora_files.adapter(base, endings=endings, rank=8, alpha=16.0, size=0.05)
    merged = lora_files.merged(base, [(made, 0.75)]).write(tmp_path / "merged.gguf")
    path = str(made.write(tmp_path / "lora.gguf"))
    prompt = list(range(1000, 1064))
    plain = logits(base, prompt)
    wanted, found = logits(merged, prompt), logits(base, prompt, ((path, 0.75),))
    change = np.abs(wanted - plain).max()
    assert change > 1
    assert np.abs(found - wanted).max() < 0.01 * change


def as_float32(tensor: Any) -> Any:
    """Return a quantised tensor as float32."""
    rows = np.frombuffer(tensor.data, np.uint8).reshape(tensor.shape[1], -1)
    numbers = dequantize(rows, GgmlType[tensor.kind.upper()], tensor.shape[0])
    return replace(tensor, kind="f32", data=numbers.astype("<f4").tobytes())


def logits(path: Path, prompt: list[int], adapters: Adapters = ()) -> np.ndarray:
    """Return the logits of every token, with keys and values in float32."""
    settings = EngineSettings(kv_type="f32", flash_attention="off", adapters=adapters)
    engine = LlamaCppEngine(path, settings)
    engine.reserve(256)
    rows = engine.decode(prompt, logits="all").copy()
    engine.close()
    return rows


@pytest.fixture
def ask(warm_start: Any, tmp_path: Path) -> Ask:
    """Give a function that runs the command as a user does, and returns its last JSON line."""

    def run(model: Path, *arguments: str) -> dict[str, Any]:
        words = ["run", model, QUESTION, "--json", "-n", "4", "--temperature", "0"]
        done = warm_start.run(
            [*words, "--system", SYSTEM, *arguments], cwd=tmp_path, timeout=TIME_LIMIT_S
        )
        last: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return last

    return run


def test_the_command_takes_adapters_with_scales(ask, adapter, tiny_models):
    """`--lora FILE:SCALE`: another answer, of its own snapshot; an unknown file is exit 3."""
    model = tiny_models / "tiny-llama.gguf"
    path = adapter(model)
    flags = [(), ("--lora", f"{path}:40"), ("--lora", path, "--lora", f"{path}:39")]
    cold = [ask(model, "--snapshot", "exact", *given) for given in flags]
    assert [done["usage"]["reused_tokens"] for done in cold] == [0, 0, 0]
    assert cold[0]["text"] != cold[1]["text"]
    warm = ask(model, "--snapshot", "exact", *flags[1])
    assert warm["usage"]["reused_tokens"] > 128
    assert warm["text"] == cold[1]["text"]
    missing = ask(model, "--lora", "nowhere.gguf:2")
    assert (missing["type"], missing["code"], missing["exit"]) == ("error", "model_not_found", 3)
    assert "nowhere.gguf: there is no such file" in missing["message"]


def test_python_takes_adapters_with_scales(adapter, tiny_models):
    """`lora=[path, (path, scale)]`, of text or Path; a wrong item is named."""
    model = tiny_models / "tiny-llama.gguf"
    path = adapter(model)
    sampling = Sampling(temperature=0)

    def answer(lora: Any) -> str:
        with edgellm.load(model, lora=lora, snapshot="off", n_threads=1) as llm:
            return llm.generate("Why?", max_tokens=8, sampling=sampling).text

    assert answer([path]) == answer([Path(path)]) == answer(((path, 1),))
    assert answer([(Path(path), 40.0)]) != answer([])
    for wrong in ([3], [("a", "b")], [("a", 1.0, 2)], [("a", True)], [""], "style.gguf", [None]):
        with pytest.raises(EdgeLLMError, match=r"LoRA adapter is a path|lora must be a sequence"):
            answer(wrong)
