"""States laid out anew: each is compared with the state that the engine makes itself.

The models have heads of every kind the library tells apart: too small to be turned, turned by the
smallest matrix, keys turned by a larger one, and compressed rows (MLA), which it never turns.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgellm.engines.base import EngineSettings
from edgellm.engines.llamacpp import LlamaCppEngine
from edgellm.engines.llamacpp.relayout import Relayout, Turns, relayout
from edgellm.engines.scripted import ScriptedEngine
from edgellm.errors import SnapshotIncompatible
from edgellm.formats.gguf_check import checked_model
from edgellm.kernels import f16_to_f32
from edgellm.kernels.ggml import GgmlType, dequantize
from edgellm.store.state import Fingerprint, KVState, Part, Section

MAKER = Path(__file__).resolve().parents[2] / "data" / "models" / "make_models.py"
TURNS = {
    "llama": Turns(0, 0),
    "head64": Turns(64, 64),
    "head96": Turns(0, 0),
    "head128": Turns(128, 64),
    "head192": Turns(64, 64),
    "head256-window": Turns(256, 64),
    "mla128": Turns(0, 0),
}
SETTINGS = (("f16", "on"), ("f16", "off"), ("q8_0", "on"))
MOVES = [(a, b) for a in SETTINGS for b in SETTINGS if a != b]


@pytest.fixture(scope="module")
def models(tiny_models, tmp_path_factory) -> dict[str, Path]:
    """Models by name: two layers each, with heads of several sizes."""
    spec = importlib.util.spec_from_file_location("make_models", MAKER)
    assert spec is not None
    assert spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    sys.modules["make_models"] = maker
    spec.loader.exec_module(maker)
    folder = tmp_path_factory.mktemp("wide-models")
    made = {"llama": tiny_models / "tiny-llama.gguf"}
    for name, size in (("head64", 64), ("head96", 96), ("head128", 128), ("head192", 192)):
        model = maker.Model(f"tiny-{name}", "llama", 2, 64, 64, **maker.heads(2, 1, size))
        made[name] = _two_layers(model, folder, lambda m, i, size=size: m.attn(i, 2, 1, size))
    made["head256-window"] = _window(maker, folder)
    made["mla128"] = _mla(maker, folder)
    return made


def _two_layers(model: Any, folder: Path, attention: Any) -> Path:
    for i in range(2):
        model.norm(f"blk.{i}.attn_norm.weight", 64)
        attention(model, i)
        model.norm(f"blk.{i}.ffn_norm.weight", 64)
        model.ffn(i)
    model.head(tied=model.arch != "deepseek2")
    return Path(model.write(str(folder)))


def _window(maker: Any, folder: Path) -> Path:
    shape = {"attention__sliding_window": 32, "attention__sliding_window_pattern": 2}
    model = maker.Model("tiny-wide-gemma3", "gemma3", 2, 64, 64, **shape, **maker.heads(2, 1, 256))

    def attention(model: Any, i: int) -> None:
        model.attn(i, 2, 1, 256, qk_norm=True)
        model.norm(f"blk.{i}.post_attention_norm.weight", 64)
        model.norm(f"blk.{i}.post_ffw_norm.weight", 64)

    return _two_layers(model, folder, attention)


def _mla(maker: Any, folder: Path) -> Path:
    """Rows of 96 compressed and 32 rotated values: 128, which would be turned if keys were."""
    shape = {
        "attention__head_count": 4,
        "attention__head_count_kv": 1,
        "attention__key_length": 128,
        "attention__value_length": 96,
        "attention__key_length_mla": 64,
        "attention__value_length_mla": 32,
        "attention__q_lora_rank": 32,
        "attention__kv_lora_rank": 96,
        "rope__dimension_count": 32,
        "rope__freq_base": 10000.0,
        "leading_dense_block_count": 2,
        "expert_feed_forward_length": 64,
        "expert_shared_count": 1,
        "expert_weights_scale": 1.0,
    }
    model = maker.Model("tiny-mla128", "deepseek2", 2, 64, 64, **shape, **maker.EPS)
    return _two_layers(model, folder, lambda m, i: m.mla(i, 4, 32, 96, 32, 32, 32))


@pytest.fixture
def opened(models):
    """Open one of the models under a KV type and a flash attention setting."""
    engines = []

    def make(name: str, settings: tuple[str, str], **more: Any) -> LlamaCppEngine:
        kv_type, flash = settings
        wanted = EngineSettings(
            n_batch=64, n_threads=1, kv_type=kv_type, flash_attention=flash, **more
        )
        engines.append(LlamaCppEngine(models[name], wanted))
        engines[-1].reserve(512)
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def values(section: Section) -> np.ndarray:
    """Return the numbers of a section as the engine would have them."""
    rows = np.ascontiguousarray(section.rows)
    if section.type == "q8_0":
        return dequantize(rows, GgmlType.Q8_0, rows.shape[1] // 34 * 32)
    return f16_to_f32(rows)


def distance(found: Section, wanted: Section) -> float:
    """Return the difference of two sections as a part of their size."""
    assert (found.layer, found.role, found.type) == (wanted.layer, wanted.role, wanted.type)
    assert found.rows.shape == wanted.rows.shape
    a, b = values(found), values(wanted)
    return float(np.sqrt(((a - b) ** 2).mean() / (b**2).mean()))


def divergence(wanted: np.ndarray, found: np.ndarray) -> float:
    """Return the mean KL divergence of rows of logits."""
    logs = [rows.astype(np.float64) - rows.max(axis=1, keepdims=True) for rows in (wanted, found)]
    p, q = (rows - np.log(np.exp(rows).sum(axis=1, keepdims=True)) for rows in logs)
    return float((np.exp(p) * (p - q)).sum(axis=1).mean())


def test_the_header_says_which_heads_are_turned(models):
    """Keys by the largest power of two that divides them, from 64 on; values by 64."""
    for name, turns in TURNS.items():
        assert relayout(*checked_model(models[name])) == Relayout(turns, allowed=True)


@pytest.mark.parametrize("name", TURNS)
def test_adapted_rows_are_those_the_engine_makes(opened, tokens, name):
    """In the first layer up to a step of the coarser type; logits as near as the settings are."""
    prompt, suffix = tokens(150), tokens(16, seed=1)
    engines = {settings: opened(name, settings) for settings in SETTINGS}
    states, logits = {}, {}
    for settings, engine in engines.items():
        engine.decode(prompt)
        states[settings] = engine.capture()
        engine.restore(states[settings])
        logits[settings] = engine.decode(suffix, logits="all").copy()
    for before, after in MOVES:
        engine = engines[after]
        adapted = engine.adapt(states[before], engines[before].fingerprint())
        first = 1 if name == "head256-window" else 0  # its first layer is in the second memory
        for i, (part, own) in enumerate(zip(adapted.parts, states[after].parts, strict=True)):
            assert (part.kind, part.first, part.n_tokens) == (own.kind, own.first, own.n_tokens)
            for found, wanted in zip(part.sections, own.sections, strict=True):
                is_first = i == first and not found.layer
                assert distance(found, wanted) < (0.008 if is_first else 0.08), (before, after)
        engine.restore(adapted)
        found_logits = engine.decode(suffix, logits="all")
        assert divergence(logits[after], found_logits) < 2e-3, (before, after)


@pytest.mark.parametrize("name", ["head64", "head128", "head256-window"])
def test_rows_that_are_not_turned_are_far_off(opened, tokens, name):
    """What the test above would see of a wrong matrix."""
    source, target = opened(name, ("f16", "on")), opened(name, ("q8_0", "on"))
    for engine in (source, target):
        engine.decode(tokens(150))
    own, kinds = target.capture(), ("dense", "window")[: len(source.capture().parts)]
    args = (source.capture(), source.fingerprint(), target.fingerprint(), kinds)
    right = relayout(*checked_model(Path(target.model.path)))
    assert right.turns is not None
    keys, whole = right.turns.keys, right.turns.values
    for turns in (Turns(0, 0), Turns(keys // 2, whole), Turns(keys, whole // 2)):
        wrong = Relayout(turns, allowed=True).adapt(*args)
        assert (
            max(
                distance(a, b)
                for p, q in zip(wrong.parts, own.parts, strict=True)
                for a, b in zip(p.sections, q.sections, strict=True)
            )
            > 0.5
        )


def test_a_variable_that_stops_turning_is_heeded(opened, tokens, monkeypatch):
    """It is in the fingerprint, so both engines have it; what C reads as a number counts."""
    for value, turned in (("1", False), ("0", True), ("yes", True), (" 2x", False)):
        monkeypatch.setenv("LLAMA_ATTN_ROT_DISABLE", value)
        source, target = opened("head64", ("f16", "on")), opened("head64", ("q8_0", "on"))
        for engine in (source, target):
            engine.decode(tokens(100))
        adapted = target.adapt(source.capture(), source.fingerprint())
        near = [
            distance(a, b)
            for a, b in zip(
                adapted.parts[0].sections, target.capture().parts[0].sections, strict=True
            )
        ]
        assert max(near) < 0.08, (value, turned)
    monkeypatch.delenv("LLAMA_ATTN_ROT_DISABLE")
    other = opened("head64", ("f16", "on"))
    with pytest.raises(SnapshotIncompatible, match="cannot be laid out"):
        target.adapt(source.capture(), other.fingerprint())


def test_relatives_are_named_nearest_first(opened):
    """Other attention, then another KV type; quantised types only with flash attention."""
    seen = {
        settings: [
            (dict(found.hard)["kv_type_k"], dict(found.hard)["flash_attention"])
            for found in opened("llama", settings).relatives()
        ]
        for settings in (*SETTINGS, ("f32", "on"), ("q4_0", "on"))
    }
    assert seen == {
        ("f16", "on"): [("f16", "off"), ("q8_0", "on")],
        ("f16", "off"): [("f16", "on"), ("q8_0", "on")],
        ("q8_0", "on"): [("f16", "on"), ("f16", "off")],
        ("f32", "on"): [("f32", "off")],
        ("q4_0", "on"): [],
    }


def test_a_relative_is_the_fingerprint_of_the_engine_it_means(opened):
    """To the digest, which is what a store looks up."""
    digests = {settings: opened("llama", settings).fingerprint().digest() for settings in SETTINGS}
    for settings in SETTINGS:
        found = {relative.digest() for relative in opened("llama", settings).relatives()}
        assert found == set(digests.values()) - {digests[settings]}


def test_nothing_else_is_a_relative(opened, models, made_lora):
    """Another model, other adapters, another build, other rope: the numbers mean something else."""
    engine = opened("head64", ("f16", "on"))
    engine.decode([1, 2, 3])
    state, own = engine.capture(), engine.fingerprint()
    others = [
        opened("head128", ("f16", "off")).fingerprint(),
        opened("head64", ("f16", "off"), adapters=((made_lora, 1.0),)).fingerprint(),
        own,
        *(
            Fingerprint(tuple((k, "other" if k == name else v) for k, v in own.hard))
            for name, _ in own.hard
        ),
    ]
    for other in others:
        with pytest.raises(SnapshotIncompatible, match="cannot be laid out"):
            engine.adapt(state, other)


@pytest.fixture
def made_lora(models, tmp_path, lora_files) -> str:
    """An adapter for the model with heads of 64."""
    return str(lora_files.adapter(models["head64"]).write(tmp_path / "lora.gguf"))


@pytest.mark.parametrize("name", ["minimax-m3", "deepseek32", "dots3note", "qwen4exp", "deepseek4"])
def test_memories_with_an_indexer_have_no_relatives(open_tiny, name):
    """It chooses what is attended to, and a little rounding chooses otherwise."""
    assert open_tiny(name).relatives() == ()


@pytest.mark.parametrize("name", ["lfm2", "lfm2-swa", "qwen35", "falcon-h1", "granitehybrid"])
def test_hybrid_states_are_adapted_where_they_hold_keys_and_values(open_tiny, tokens, name):
    """What became of the tokens in the recurrent layers is taken as it is."""
    prompt, suffix = tokens(150), tokens(16, seed=1)
    engines = {s: open_tiny(name, kv_type=s[0], flash_attention=s[1]) for s in SETTINGS}
    logits, states = {}, {}
    for settings, engine in engines.items():
        engine.decode(prompt)
        states[settings] = engine.capture()
        engine.restore(states[settings])
        logits[settings] = engine.decode(suffix, logits="all").copy()
    for before, after in MOVES:
        engine, had = engines[after], states[before]
        adapted = engine.adapt(had, engines[before].fingerprint())
        for part, other in zip(adapted.parts, had.parts, strict=True):
            if part.kind == "recurrent":
                assert part == other
        engine.restore(adapted)
        assert divergence(logits[after], engine.decode(suffix, logits="all")) < 2e-4


@pytest.mark.parametrize("name", ["mamba", "mamba2", "rwkv7"])
def test_recurrent_states_are_the_same_under_any_setting(open_tiny, tokens, name):
    """No attention, no keys: the fingerprint is one, the bits are, and nothing needs adapting."""
    prompt, suffix = tokens(150), tokens(16, seed=1)
    engines = [open_tiny(name, kv_type=kv, flash_attention=flash) for kv, flash in SETTINGS]
    assert len({engine.fingerprint().digest() for engine in engines}) == 1
    assert {engine.relatives() for engine in engines} == {()}
    engines[0].decode(prompt)
    state = engines[0].capture()
    wanted = engines[0].decode(suffix).copy()
    for engine in engines[1:]:
        engine.restore(state)
        assert np.array_equal(wanted, engine.decode(suffix))


def test_the_scripted_engine_has_none():
    """It has one way to keep its state."""
    engine = ScriptedEngine("yes")
    engine.reserve(64)
    engine.decode([1, 2])
    assert engine.relatives() == ()
    with pytest.raises(SnapshotIncompatible, match="lays out no states anew"):
        engine.adapt(engine.capture(), engine.fingerprint())


def test_states_that_are_not_what_their_source_says_are_refused(opened, tokens):
    """Other types, other memories, rows that do not fill blocks."""
    source, target = opened("llama", ("f16", "on")), opened("llama", ("q8_0", "on"))
    source.decode(tokens(20))
    state, told = source.capture(), source.fingerprint()

    def with_sections(change: Any) -> KVState:
        part = state.parts[0]
        return KVState(20, (replace(part, sections=tuple(map(change, part.sections))),))

    wrong = {
        "f32 rows in a snapshot of f16": with_sections(lambda s: replace(s, type="f32")),
        "rows of 33 values": with_sections(lambda s: replace(s, rows=s.rows[:, :33])),
        "memories are not": KVState(20, (*state.parts, Part("dense", 0, 20, ()))),
    }
    for message, broken in wrong.items():
        with pytest.raises(SnapshotIncompatible, match=message):
            target.adapt(broken, told)
    back = target.adapt(state, told)
    cut = replace(back.parts[0].sections[0], rows=back.parts[0].sections[0].rows[:, :67])
    with pytest.raises(SnapshotIncompatible, match="rows of 67 bytes"):
        source.adapt(KVState(20, (replace(back.parts[0], sections=(cut,)),)), target.fingerprint())


def test_what_an_engine_adapts_it_leaves_as_it_was(opened, tokens):
    """The state handed in may be a view of a file, or be used by another caller."""
    source, target = opened("head64", ("f16", "off")), opened("head64", ("q8_0", "on"))
    source.decode(tokens(50))
    state = source.capture()
    before = [section.rows.tobytes() for section in state.parts[0].sections]
    for section in state.parts[0].sections:
        section.rows.flags.writeable = False
    target.adapt(state, source.fingerprint())
    assert before == [section.rows.tobytes() for section in state.parts[0].sections]
