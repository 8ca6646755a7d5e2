"""LoRA adapters with one wrong thing in them: what the engine died of, computed NaN from, or skipped.

The loader of llama.cpp 0c1e57098 takes each of these but the last group, and then aborts, reads
memory that is not its own, or goes on as if the file had said nothing.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from gguf_edits import ARRAY, F32, STRING, U32, Gguf, Tensor
from lora_files import ALPHA, adapter

from edgellm.engines.base import EngineSettings
from edgellm.engines.llamacpp import LlamaCppEngine
from edgellm.errors import ModelError
from edgellm.formats.gguf import read_header
from edgellm.formats.lora import checked_lora

if TYPE_CHECKING:
    from pathlib import Path

TARGET = "blk.0.attn_q.weight"


def key(name: str, kind: int, value: Any) -> Any:
    """Return an edit that sets a metadata key."""
    return lambda made: made.having(name, kind, value)


def shaped(end: str, *shape: int) -> Any:
    """Return an edit that gives one half of a pair another shape, and bytes to fit."""

    def change(tensor: Tensor) -> Tensor:
        n_bytes = 4 * math.prod(shape)
        return replace(tensor, shape=shape, data=(tensor.data * n_bytes)[:n_bytes])

    return lambda made: made.with_tensor(f"{TARGET}.lora_{end}", change)


def typed(kind: str) -> Any:
    """Return an edit that stores an A as another type."""
    return lambda made: made.with_tensor(f"{TARGET}.lora_a", lambda tensor: tensor.of(kind))


def only(*tensors: tuple[str, tuple[int, ...]]) -> Any:
    """Return an edit that leaves these tensors, with zeros in them."""
    made = tuple(Tensor(name, shape, "f32", bytes(4 * math.prod(shape))) for name, shape in tensors)
    return lambda whole: replace(whole, tensors=made)


def both(first: Any, second: Any) -> Any:
    """Return an edit that does one after the other."""
    return lambda made: second(first(made))


PAIR = (f"{TARGET}.lora_a", (64, 4)), (f"{TARGET}.lora_b", (4, 128))

REFUSED: dict[str, tuple[Any, str]] = {
    # GGML_ASSERT while it is loaded
    "alpha_f64": (key(ALPHA, 12, 8.0), "of type 12, not float32"),
    "alpha_whole": (key(ALPHA, U32, 8), "of type 4, not float32"),
    "alpha_text": (key(ALPHA, STRING, b"8"), "of type 8, not float32"),
    "alpha_list": (key(ALPHA, ARRAY, (F32, [8.0])), "of type 9, not float32"),
    "type_a_number": (key("general.type", U32, 1), "'general.type' is '1'"),
    "kind_a_number": (key("adapter.type", U32, 1), "'adapter.type' is '1'"),
    "architecture_a_number": (key("general.architecture", U32, 1), "'1', not 'llama'"),
    # GGML_ASSERT at the first token
    "a_deep": (shaped("a", 64, 4, 2), r"lora_a' is \[64, 4, 2\].* \[64, 4\]"),
    "a_deeper": (shaped("a", 64, 4, 1, 2), r"\[64, 4, 1, 2\]"),
    "b_deep": (shaped("b", 4, 128, 3), r"lora_b' is \[4, 128, 3\]"),
    "a_flat": (shaped("a", 64), r"lora_a' is \[64\]"),
    # another tensor's memory
    "a_i32": (typed("i32"), "is i32, adapters are f32, f16, bf16, q8_0"),
    "a_f64": (typed("f64"), "is f64"),
    "a_i8": (typed("i8"), "is i8"),
    "a_q8_1": (typed("q8_1"), "is q8_1"),
    # computed with
    "alpha_nan": (key(ALPHA, F32, math.nan), "nan is no number"),
    "alpha_infinite": (key(ALPHA, F32, math.inf), "inf is no number"),
    # skipped without a word
    "nothing": (only(), "no pairs of matrices among 0 tensors"),
    "norms_only": (only(("blk.0.attn_norm.weight", (64,))), "no pairs .* among 1 tensors"),
    "norm_as_pair": (
        only(("blk.0.attn_norm.weight.lora_a", (64, 1)), ("blk.0.attn_norm.weight.lora_b", (1, 1))),
        r"for the model's \[64\]",
    ),
    "activated_later": (
        key("adapter.alora.invocation_tokens", ARRAY, (U32, [1, 2])),
        "wakes only at certain tokens",
    ),
    # refused by the loader too, in other words
    "another_architecture": (key("general.architecture", STRING, b"qwen2"), "'qwen2', not 'llama'"),
    "a_model": (key("general.type", STRING, b"model"), "'model', not 'adapter'"),
    "a_control_vector": (key("adapter.type", STRING, b"control_vector"), "not 'lora'"),
    "type_missing": (lambda made: made.without("general.type"), "'general.type' is missing"),
    "half_a_pair": (only(PAIR[0]), "lora_b' is missing"),
    "no_such_tensor": (
        only(("blk.9.attn_q.weight.lora_a", (64, 4)), ("blk.9.attn_q.weight.lora_b", (4, 128))),
        "no tensor 'blk.9.attn_q.weight'",
    ),
    "suffix_twice": (
        only((f"{TARGET}.lora_a.lora_a", (64, 4)), (f"{TARGET}.lora_a.lora_b", (4, 128))),
        "no half of a pair",
    ),
    "other_suffix": (only((f"{TARGET}.lora_c", (64, 4)), *PAIR), "no half of a pair"),
    "too_wide": (shaped("a", 65, 4), r"it has to be \[64, 4\]"),
    "ranks_differ": (shaped("b", 5, 128), r"a rank of 5"),
    "not_transposed": (both(shaped("a", 4, 64), shaped("b", 128, 4)), "has to be"),
}


@pytest.fixture
def llama(tiny_models: Path) -> Path:
    """A dense model whose embedding is its output too."""
    return tiny_models / "tiny-llama.gguf"


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_adapters_are_refused_before_the_engine_sees_them(llama, tmp_path, name):
    """Each is a typed error that names the file and what is wrong in it."""
    edit, message = REFUSED[name]
    path = edit(adapter(llama)).write(tmp_path / "adapter.gguf")
    with pytest.raises(ModelError, match=message) as caught:
        checked_lora(path, read_header(llama))
    assert str(path) in str(caught.value)


def test_the_engine_asks_that_check(llama, tmp_path):
    """An adapter that would abort the process is an error of opening the model."""
    edit, message = REFUSED["a_deep"]
    path = edit(adapter(llama)).write(tmp_path / "adapter.gguf")
    with pytest.raises(ModelError, match=message):
        LlamaCppEngine(llama, EngineSettings(adapters=((str(path), 1.0),)))


def _embedding(rank_of_b: int) -> Gguf:
    shapes = {"a": (4, 512), "b": (rank_of_b, 64)}
    pair = [(f"token_embd.weight.lora_{end}", shape) for end, shape in shapes.items()]
    return only(*pair)(Gguf({}, ()))


def test_a_pair_for_an_embedding_that_is_the_output_too_is_refused(llama, tmp_path):
    """The pair is read by rows in one place and multiplied with in the other, which aborts."""
    made = replace(adapter(llama), tensors=_embedding(4).tensors)
    path = made.write(tmp_path / "adapter.gguf")
    with pytest.raises(ModelError, match="also uses as its output"):
        checked_lora(path, read_header(llama))


@pytest.mark.parametrize("n_experts", [1, 2, 3, 8])
def test_a_pair_for_experts_has_one_for_each(tiny_models, tmp_path, n_experts):
    """The engine looks experts up in it by their number, whatever there is."""
    model = tiny_models / "tiny-qwen3moe.gguf"
    made = adapter(model, endings=("ffn_up_exps.weight",))

    def change(tensor: Tensor) -> Tensor:
        n_bytes = len(tensor.data) // 4 * n_experts
        return replace(
            tensor, shape=(*tensor.shape[:2], n_experts), data=(tensor.data * 2)[:n_bytes]
        )

    wrong = replace(made, tensors=tuple(map(change, made.tensors)))
    with pytest.raises(ModelError, match="it has to be"):
        checked_lora(wrong.write(tmp_path / "adapter.gguf"), read_header(model))
    good = made.write(tmp_path / "good.gguf")
    assert len(checked_lora(good, read_header(model))[1].targets) == 3
