"""Models of many architectures with one wrong thing in them, each of which ended the engine's process.

What the loader compares it refuses itself; these loaded, and died at the first token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from gguf_edits import STRING, U32, parse

from edgellm.errors import ModelError
from edgellm.formats.gguf_check import checked_model

if TYPE_CHECKING:
    from pathlib import Path


def number(name: str, value: int) -> Any:
    """Return an edit that sets a number of the architecture."""
    return lambda m: m.having(f"{m.pairs['general.architecture'][1].decode()}.{name}", U32, value)


def without(name: str) -> Any:
    """Return an edit that leaves a number of the architecture out."""
    return lambda m: m.without(f"{m.pairs['general.architecture'][1].decode()}.{name}")


def typed(name: str, kind: str) -> Any:
    """Return an edit that stores a tensor as another type."""
    return lambda m: m.with_tensor(name, lambda t: t.of(kind))


EDITS: list[tuple[str, Any, str]] = [
    ("jamba", number("ssm.inner_size", 256), "256 is not twice 64"),
    ("jamba", number("embedding_length", 192), "128 is not twice 192"),
    ("jamba", number("attention.head_count", 3), "3 heads of 32 in 64"),
    ("jamba", number("attention.key_length", 33), "2 heads of 33 in 64"),
    ("lfm2", number("attention.head_count", 4), "4 heads of 32 in 64"),
    ("lfm2", typed("blk.0.shortconv.conv.weight", "bf16"), "bf16 is no type for a recurrence"),
    ("deepseek2", number("attention.head_count_kv", 2), "2 compressed keys, not 1"),
    ("deepseek2", without("attention.head_count_kv"), "4 compressed keys, not 1"),
    ("deepseek2", number("attention.key_length", 95), "95 is not 64 and 32 rotated"),
    ("deepseek2", number("rope.dimension_count", 96), "96 of 64 values, none are left"),
    ("deepseek2", without("rope.dimension_count"), "96 of 64 values, none are left"),
    ("deepseek2", number("expert_gating_func", 255), "255 is not between 0 and 4"),
    ("deepseek32", number("attention.head_count_kv", 2), "2 compressed keys, not 1"),
    ("deepseek4", number("attention.value_length", 192), "values of 192, not 64"),
    ("deepseek4", without("attention.value_length"), "not 64"),
    ("deepseek4", number("attention.head_count_kv", 5), "5 keys, not 1"),
    ("minimax-m3", number("attention.indexer.block_size", (1 << 32) - 1), "not between 1"),
    ("minimax-m3", number("expert_gating_func", 0), "0 is not between 1 and 4"),
    ("qwen35", number("ssm.inner_size", 128), "128 is not 4 heads of 16"),
    ("qwen35", number("full_attention_interval", 0), "0 is not between 1"),
    ("qwen35", typed("blk.0.ssm_conv1d.weight", "bf16"), "bf16 is no type for a recurrence"),
    (
        "qwen35",
        lambda m: m.with_tensor("blk.0.attn_qkv.weight", lambda _: None),
        "'blk.0.attn_qkv.weight' is missing",
    ),
    ("qwen3next", number("ssm.inner_size", 128), "128 is not 4 heads of 16"),
    ("rwkv7", number("wkv.head_size", 63), "128 values in heads of 63"),
    ("rwkv7", number("token_shift_count", 0), "0 is not between 2 and 2"),
    ("rwkv7", typed("blk.1.time_mix_lerp_fused.weight", "bf16"), "bf16 is no type to mix"),
    ("rwkv7", typed("blk.1.time_mix_lerp_fused.weight", "f16"), "f16 is no type to mix"),
    ("mamba", typed("blk.2.ssm_a", "f16"), "f16 is no type for a recurrence"),
    ("minimax-m3", number("rope.dimension_count", 0), "0 is not between 1"),
    (
        "llama",
        lambda m: m.having("tokenizer.ggml.pre", STRING, b"whitespace"),
        "splits at white space only",
    ),
]


@pytest.mark.parametrize(("name", "edit", "message"), EDITS)
def test_what_a_graph_would_abort_on_is_refused(
    tiny_models: Path, tmp_path: Path, name: str, edit: Any, message: str
):
    """Exit 2 with the key or tensor and its number, before the engine sees the file."""
    model = parse(tiny_models / f"tiny-{name}.gguf")
    with pytest.raises(ModelError, match=message) as caught:
        checked_model(edit(model).write(tmp_path / "m.gguf"))
    assert caught.value.exit_code == 2
    assert caught.value.hint


def test_every_model_is_accepted_as_it_is(tiny_models: Path):
    """The control: no rule refuses a model of its architecture that works."""
    names = {name for name, _, _ in EDITS}
    assert all(checked_model(path) for path in sorted(tiny_models.glob("*.gguf")))
    assert {f"tiny-{name}.gguf" for name in names} <= {p.name for p in tiny_models.iterdir()}
