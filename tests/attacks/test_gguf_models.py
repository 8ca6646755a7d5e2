"""Whole GGUFs with one wrong thing in them: each of these ended the engine's process, or never ended.

The files pass every check of sizes; only what the numbers mean is wrong. The engine itself cannot be
asked here, as there is nobody left to say what it answered.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from gguf_edits import ARRAY, BOOL, F32, I32, STRING, U32, Gguf, parse

from edgellm.engines.base import EngineSettings
from edgellm.engines.llamacpp import LlamaCppEngine
from edgellm.errors import ModelError
from edgellm.formats.gguf_check import checked_model

if TYPE_CHECKING:
    from pathlib import Path

EPS = "llama.attention.layer_norm_rms_epsilon"
TOKENS, TYPES, SCORES = (f"tokenizer.ggml.{name}" for name in ("tokens", "token_type", "scores"))
MODEL = "tokenizer.ggml.model"
N = 512


def sentencepiece(model: Gguf, kind: bytes = b"llama") -> Gguf:
    """Give the model a vocabulary with a token for each byte, behind three special ones."""
    words = [b"<unk>", b"<s>", b"</s>", *(b"<0x%02X>" % b for b in range(256))]
    words += [b"w%d" % i for i in range(N - len(words))]
    types = [2, 3, 3, *[6] * 256, *[1] * (N - 259)]
    made = model.having(MODEL, STRING, kind).having(TOKENS, ARRAY, (STRING, words))
    return made.having(TYPES, ARRAY, (I32, types)).having(SCORES, ARRAY, (F32, [0.0] * N))


def typed(name: str, kind: str) -> Any:
    """Return an edit that stores a tensor as another type."""
    return lambda m: m.with_tensor(name, lambda t: t.of(kind))


def key(name: str, kind: int, value: Any) -> Any:
    """Return an edit that sets a metadata key."""
    return lambda m: m.having(name, kind, value)


REFUSED: dict[str, tuple[Any, str]] = {
    # GGML_ASSERT while the hyper-parameters are read
    "experts_not_used": (key("llama.expert_count", U32, 3), "expert_used_count': 0 of 3"),
    "experts_too_many": (key("llama.expert_count", U32, 1 << 20), "not between 0 and 1024"),
    "experts_from_nowhere": (key("llama.expert_used_count", U32, 3), "3 of 0 experts"),
    "groups_of_no_experts": (key("llama.expert_group_count", U32, 3), "0 experts in 3 groups"),
    "more_nextn_than_layers": (key("llama.nextn_predict_layers", U32, 99), "99 is not between"),
    "rope_scaling_unknown": (key("llama.rope.scaling.type", STRING, b"llama3"), "'llama3'"),
    "rope_scaling_a_list": (key("llama.rope.scaling.type", ARRAY, (F32, [1.0] * 6)), "rotary"),
    # at the first token
    "epsilon_negative": (key(EPS, F32, -1.0), "-1.0 is below zero"),
    "epsilon_nan": (key(EPS, F32, math.nan), "nan is no number"),
    "norm_f16": (typed("output_norm.weight", "f16"), "f16 is no type .* vector"),
    "norm_quantised": (typed("blk.1.ffn_norm.weight", "q8_0"), "q8_0 is no type .* vector"),
    "weight_integer": (typed("blk.0.attn_q.weight", "i32"), "i32 is no type .* weight"),
    "weight_f64": (typed("blk.0.attn_q.weight", "f64"), "f64 is no type"),
    "weight_q8_1": (typed("token_embd.weight", "q8_1"), "q8_1 is no type"),
    "keys_unlike_values": (key("llama.attention.value_length", U32, 16), "values of 16"),
    "head_odd": (key("llama.rope.dimension_count", U32, 7), "7 of 32 values"),
    # in the vocabulary
    "no_vocabulary": (key(MODEL, STRING, b"none"), "'none', which cannot make text"),
    "words_of_bert": (key(MODEL, STRING, b"bert"), "'bert'"),
    "unigram": (key(MODEL, STRING, b"t5"), "'t5'"),
    "two_equal_tokens": (
        lambda m: m.listing(TOKENS, lambda w: [*w[:9], w[3], *w[10:]]),
        "ids 3 and 9 are both",
    ),
    "equal_behind_a_zero": (
        lambda m: m.listing(TOKENS, lambda w: [*w[:9], w[3] + b"\0x", *w[10:]]),
        "ids 3 and 9 are both",
    ),
    "named_like_an_empty_one": (
        lambda m: m.listing(TOKENS, lambda w: [b"", b"[EMPTY_0]", *w[2:]]),
        r"ids 0 and 1 are both '\[EMPTY_0\]'",
    ),
    "types_too_few": (lambda m: m.listing(TYPES, lambda w: w[:-1]), "511 values for 512"),
    "a_byte_without_its_form": (
        lambda m: m.listing(TYPES, lambda w: [6, *w[1:]]).listing(
            TOKENS, lambda w: [b"!!q!", *w[1:]]
        ),
        "id 0 is a byte, its text is '!!q!'",
    ),
    "sentencepiece_without_a_byte": (
        lambda m: (
            sentencepiece(m)
            .listing(TOKENS, lambda w: [b"zz" if t == b"<0x41>" else t for t in w])
            .listing(TYPES, lambda w: [1 if t == 6 else t for t in w])
        ),
        "no token for 1 of .* bytes, such as <0x41>",
    ),
    "rwkv_without_bytes": (
        lambda m: sentencepiece(m, b"rwkv").listing(TYPES, lambda w: [1] * len(w)),
        "no token for",
    ),
    "begin_added_but_not_named": (
        lambda m: replace(key(MODEL, STRING, b"gemma4")(m).without("tokenizer.ggml.bos_token_id")),
        "add_bos_token.*no such token",
    ),
    "end_not_in_the_vocabulary": (
        key("tokenizer.ggml.eos_token_id", U32, N),
        "512 is no id of 512",
    ),
    # what the file says of itself
    "an_encoder": (key("general.architecture", STRING, b"bert"), "bert"),
}


@pytest.fixture(scope="module")
def whole(tiny_models: Path) -> Gguf:
    """The model that is edited."""
    return parse(tiny_models / "tiny-llama.gguf")


def test_what_is_not_edited_is_accepted(whole: Gguf, tiny_models: Path, tmp_path: Path):
    """The control: taken apart and put together the file is the same model, in both vocabularies."""
    again = checked_model(whole.write(tmp_path / "a.gguf"))[1]
    assert again.n_params == checked_model(tiny_models / "tiny-llama.gguf")[1].n_params
    path = sentencepiece(whole).write(tmp_path / "b.gguf")
    engine = LlamaCppEngine(path, EngineSettings(n_threads=1))
    assert engine.tokenize("\0\u00e9", special=False, add_bos=False)
    engine.close()


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_what_would_end_the_process_is_refused(case: str, whole: Gguf, tmp_path: Path):
    """Exit 2 with the key or tensor and its number, before the engine sees the file."""
    edit, message = REFUSED[case]
    with pytest.raises(ModelError, match=message) as caught:
        checked_model(edit(whole).write(tmp_path / "m.gguf"))
    assert caught.value.exit_code == 2
    assert caught.value.hint


@pytest.mark.parametrize(
    "edit",
    [
        key("llama.rope.freq_base", F32, 1e38),
        key("llama.vocab_size", U32, 7),
        key("tokenizer.ggml.padding_token_id", U32, (1 << 32) - 1),
        key("tokenizer.ggml.add_eos_token", BOOL, True),
        key("tokenizer.ggml.pre", STRING, b"default"),
        lambda m: m.without("tokenizer.ggml.eos_token_id"),
        lambda m: m.with_tensor(
            "blk.0.ffn_up.weight", lambda t: replace(t, data=b"\xff" * len(t.data))
        ),
    ],
)
def test_what_is_only_odd_runs(edit: Any, whole: Gguf, tmp_path: Path):
    """Strange but harmless files answer: a check refuses no more than it must."""
    engine = LlamaCppEngine(edit(whole).write(tmp_path / "m.gguf"), EngineSettings(n_threads=1))
    engine.reserve(256)
    tokens = engine.tokenize("The cache", special=False, add_bos=True)
    assert engine.decode(tokens).shape == (1, N)
    engine.close()
