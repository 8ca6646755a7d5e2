"""LoRA adapters in the engine: what they compute, and that nothing is shared across them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgellm.engines.base import EngineSettings
from edgellm.engines.llamacpp import LlamaCppEngine
from edgellm.engines.llamacpp.adapters import MAX_ADAPTERS
from edgellm.errors import (
    DoesNotFit,
    ModelCorrupt,
    ModelNotFound,
    ModelUnsupported,
    SnapshotIncompatible,
    UsageError,
)
from edgellm.formats.gguf import read_header
from edgellm.formats.lora import checked_lora

F32: dict[str, Any] = {"kv_type": "f32", "flash_attention": "off"}
FEED = ("ffn_gate.weight", "ffn_up.weight", "ffn_down.weight")


@pytest.fixture
def made(tiny_models, tmp_path, lora_files):
    """Write an adapter for a tiny model; give its path and its parts."""

    def make(name: str = "llama", **options: Any) -> tuple[str, Any]:
        parts = lora_files.adapter(tiny_models / f"tiny-{name}.gguf", **options)
        path = tmp_path / f"lora-{len(list(tmp_path.iterdir()))}.gguf"
        return str(parts.write(path)), parts

    return make


def hard(engine: LlamaCppEngine) -> dict[str, str]:
    """Return the fingerprint's pairs that must agree."""
    return dict(engine.fingerprint().hard)


@pytest.mark.parametrize("name", ["llama", "qwen3moe", "gemma3"])
@pytest.mark.parametrize("alpha", [8.0, 0.0])
def test_logits_are_those_of_the_merged_weights(
    open_tiny, tokens, tiny_models, tmp_path, lora_files, made, name, alpha
):
    """W + scale * alpha / rank * B A, the formula of PEFT; an alpha of 0 leaves alpha / rank out."""
    endings = ("attn_q.weight", "attn_v.weight", "ffn_down.weight", "ffn_up_exps.weight")
    path, parts = made(name, endings=endings, alpha=alpha, size=0.05)
    prompt = tokens(100)
    base = open_tiny(name, **F32).decode(prompt, logits="all").copy()
    found = open_tiny(name, **F32, adapters=((path, -1.5),)).decode(prompt, logits="all").copy()
    scale = -1.5 if alpha else -1.5 * 4 / 8
    standing = parts if alpha else parts.having(lora_files.ALPHA, 6, 8.0)
    model = lora_files.merged(tiny_models / f"tiny-{name}.gguf", [(standing, scale)])
    merged = LlamaCppEngine(
        model.write(tmp_path / "merged.gguf"), EngineSettings(n_batch=64, n_threads=1, **F32)
    )
    merged.reserve(512)
    wanted = merged.decode(prompt, logits="all").copy()
    merged.close()
    change = np.abs(found - base).max()
    assert change > 0.1
    assert np.abs(found - wanted).max() < 2e-3 * change  # float32 adds up in another order


def test_two_adapters_add_up(open_tiny, tokens, tiny_models, tmp_path, lora_files, made):
    """Each with its own scale, rank and alpha; half precision costs some digits."""
    first, first_parts = made()
    second, second_parts = made(rank=3, alpha=3.0, kind="f16", seed=1)
    prompt = tokens(100)
    pair = ((first, 0.5), (second, -0.25))
    found = open_tiny("llama", **F32, adapters=pair).decode(prompt).copy()
    model = lora_files.merged(
        tiny_models / "tiny-llama.gguf", [(first_parts, 0.5), (second_parts, -0.25)]
    )
    merged = LlamaCppEngine(
        model.write(tmp_path / "merged.gguf"), EngineSettings(n_batch=64, n_threads=1, **F32)
    )
    merged.reserve(512)
    wanted = merged.decode(prompt).copy()
    merged.close()
    alone = open_tiny("llama", **F32, adapters=pair[:1]).decode(prompt)
    assert np.abs(found - wanted).max() < 1e-2
    assert np.abs(found - alone).max() > 0.1


def test_a_scale_of_zero_is_the_model_itself(open_tiny, tokens, made):
    """Bit for bit."""
    path, _ = made()
    base = open_tiny("llama").decode(tokens(100)).copy()
    assert np.array_equal(base, open_tiny("llama", adapters=((path, 0.0),)).decode(tokens(100)))


def test_a_grown_context_has_the_adapters_too(open_tiny, tokens, made):
    """A context is made anew when it grows."""
    path, _ = made()
    engine, grown = (open_tiny("llama", adapters=((path, 1.0),)) for _ in range(2))
    grown.reserve(1024)
    assert np.array_equal(engine.decode(tokens(100)), grown.decode(tokens(100)))


@pytest.mark.parametrize("name", ["llama", "qwen3moe", "deepseek2", "gemma3"])
@pytest.mark.parametrize("n_adapters", [1, 2])
def test_restored_state_gives_the_same_bits(open_tiny, tokens, made, name, n_adapters):
    """With adapters as without: another engine that restores goes on with the same logits."""
    endings = ("attn_output.weight", "ffn_down.weight", "ffn_up_exps.weight")
    paths = [made(name, endings=endings, seed=i)[0] for i in range(n_adapters)]
    adapters = tuple((path, 0.5) for path in paths)
    cold, warm = (open_tiny(name, adapters=adapters) for _ in range(2))
    cold.decode(tokens(200))
    state = cold.capture()
    if cold.restore_moves:
        cold.restore(state)
    warm.restore(state)
    assert cold.fingerprint() == warm.fingerprint()
    for suffix in (tokens(16, seed=1), [7], [8], [9]):
        assert np.array_equal(cold.decode(suffix), warm.decode(suffix))


def test_fingerprints_differ_by_content_scale_and_order(open_tiny, tmp_path, made):
    """A copy elsewhere is the same adapter; one changed byte of a weight is another."""
    first, _ = made()
    second, _ = made(seed=1)
    copy, changed = tmp_path / "copy.gguf", tmp_path / "changed.gguf"
    shutil.copy(first, copy)
    data = bytearray(copy.read_bytes())
    data[-40] ^= 1
    changed.write_bytes(data)
    chosen: list[tuple[tuple[str, float], ...]] = [
        (),
        ((first, 1.0),),
        ((first, 0.5),),
        ((first, -1.0),),
        ((second, 1.0),),
        ((str(changed), 1.0),),
        ((first, 1.0), (second, 1.0)),
        ((second, 1.0), (first, 1.0)),
        ((first, 1.0), (first, 1.0)),
    ]
    prints = [open_tiny("llama", adapters=adapters).fingerprint() for adapters in chosen]
    assert len({found.digest() for found in prints}) == len(chosen)
    assert dict(prints[0].hard)["adapters"] == "none"
    moved = open_tiny("llama", adapters=((str(copy), 1.0),)).fingerprint()
    assert moved.digest() == prints[1].digest()
    assert {k for k, v in prints[1].hard if dict(prints[0].hard)[k] != v} == {"adapters"}


def test_scales_that_are_one_to_the_engine_are_one(open_tiny, made):
    """It computes with float32."""
    path, _ = made()
    near, exact = (
        hard(open_tiny("llama", adapters=((path, s),))) for s in (0.1, float(np.float32(0.1)))
    )
    assert near == exact


def test_three_adapters_on_one_weight_answer_but_are_not_kept(open_tiny, tokens, made):
    """The engine adds them by where they lie in memory, which changes from process to process."""
    endings = [("attn_q.weight",), ("attn_q.weight",), ("attn_q.weight",), ("attn_v.weight",)]
    paths = [made(endings=ending, seed=i)[0] for i, ending in enumerate(endings)]
    engine = open_tiny("llama", adapters=tuple((path, 0.5) for path in paths[:3]))
    assert "3 LoRA adapters change one weight" in engine.snapshot_block()
    assert engine.decode(tokens(20)).shape == (1, 512)
    with pytest.raises(SnapshotIncompatible, match="no fixed order"):
        engine.capture()
    kept = open_tiny("llama", adapters=tuple((path, 0.5) for path in paths[1:]))
    assert kept.snapshot_block() == ""
    silent = ((paths[0], 0.5), (paths[1], 0.5), (paths[2], 0.0))
    assert open_tiny("llama", adapters=silent).snapshot_block() == ""


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), 1e7, -1e7])
def test_a_scale_that_is_no_number_to_compute_with_is_refused(open_tiny, made, scale):
    """Before the model is loaded."""
    path, _ = made()
    with pytest.raises(UsageError, match="scale must be between"):
        open_tiny("llama", adapters=((path, scale),))


@pytest.mark.parametrize("name", ["llama", "qwen35"])
def test_more_adapters_than_the_engine_has_room_for_are_refused(open_tiny, tokens, made, name):
    """As many as are allowed work, on all that they can be on; qwen35's room does not grow with them."""
    endings = (*(f"attn_{x}.weight" for x in ("q", "k", "v", "output", "qkv", "gate")), *FEED)
    path, _ = made(name, endings=endings, size=0.01)
    with pytest.raises(UsageError, match="at most 4 are taken"):
        open_tiny(name, adapters=((path, 1.0),) * (MAX_ADAPTERS + 1))
    engine = open_tiny(name, adapters=((path, 0.1),) * MAX_ADAPTERS)
    assert np.isfinite(engine.decode(tokens(20))).all()


def test_a_missing_adapter_is_named(open_tiny):
    """The error is about the adapter, not about the model."""
    with pytest.raises(ModelNotFound, match=r"nowhere\.gguf"):
        open_tiny("llama", adapters=(("nowhere.gguf", 1.0),))


def test_an_adapter_larger_than_the_memory_is_refused(open_tiny, made, monkeypatch):
    """Before the library asks for it."""
    path, _ = made()
    monkeypatch.setattr("edgellm.engines.llamacpp.adapters.available_bytes", lambda: 1000)
    with pytest.raises(DoesNotFit, match="LoRA adapters take"):
        open_tiny("llama", adapters=((path, 1.0),))


def test_what_the_library_refuses_is_said_with_its_words(open_tiny, made, monkeypatch):
    """The file may be another one when the library opens it."""
    path, parts = made()

    def swapped(name: str, model: Any) -> Any:
        found = checked_lora(name, model)
        parts.having("adapter.type", 8, b"other").write(Path(name))
        return found

    monkeypatch.setattr("edgellm.engines.llamacpp.adapters.checked_lora", swapped)
    with pytest.raises(ModelCorrupt, match=r"refuses the LoRA adapter: .*expect adapter\.type"):
        open_tiny("llama", adapters=((path, 1.0),))


def test_an_adapter_that_changes_while_it_is_loaded_is_refused(open_tiny, made, monkeypatch):
    """Its content id would be another file's."""
    path, _ = made()

    def touched(self: Any) -> None:
        raise ModelCorrupt("the file changed while it was loaded", path=self._path)

    monkeypatch.setattr("edgellm.engines.llamacpp.adapters.LoadingId.check_unchanged", touched)
    with pytest.raises(ModelCorrupt, match="changed while it was loaded"):
        open_tiny("llama", adapters=((path, 1.0),))


def test_norms_that_are_skipped_are_warned_of(open_tiny, made, tmp_path):
    """The engine would use the adapter without them and say nothing."""
    _, parts = made()
    norm = type(parts.tensors[0])("blk.0.attn_norm.weight", (64,), "f32", bytes(256))
    whole = type(parts)(parts.pairs, (*parts.tensors, norm))
    path = str(whole.write(tmp_path / "norms.gguf"))
    engine = open_tiny("llama", adapters=((path, 1.0),))
    assert any("1 norms in the adapter" in said for said in engine.model.warnings)


@pytest.mark.parametrize("name", ["deepseek2", "mamba", "rwkv7", "lfm2", "deepseek4", "qwen4exp"])
def test_every_matrix_not_said_to_be_skipped_changes_the_logits(
    open_tiny, tokens, tiny_models, made, name
):
    """One matrix at a time: the table of names against the engine."""
    header = read_header(tiny_models / f"tiny-{name}.gguf")
    base = open_tiny(name).decode(tokens(100)).copy()
    seen = set()
    for target in (t.name for t in header.tensors if len(t.shape) > 1):
        kind = target.split(".", 2)[-1]
        if kind in seen:
            continue
        seen.add(kind)
        adapters = ((made(name, endings=(target,), size=0.5)[0], 1.0),)
        try:
            engine = open_tiny(name, adapters=adapters)
        except ModelUnsupported:  # it says that the adapter would change nothing
            continue
        except ModelCorrupt:  # of the embedding, or a weight that the library reshapes
            assert target.startswith(("token_embd", "blk.0.attn_output_a", "blk.1.attn_output_a"))
            continue
        assert not np.array_equal(base, engine.decode(tokens(100))), target
        engine.close()


def test_an_adapter_used_in_part_is_warned_of(open_tiny, made):
    """The queries of compressed attention are multiplied with directly."""
    path, _ = made("deepseek2", endings=("attn_q_a.weight", "attn_output.weight"))
    said = open_tiny("deepseek2", adapters=((path, 1.0),)).model.warnings
    assert any("3 of 6 pairs in the adapter" in phrase for phrase in said)
