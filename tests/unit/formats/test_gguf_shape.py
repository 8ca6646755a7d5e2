"""shape_of: weights, rows and states from headers, for architectures that keep them in different ways."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest

from edgellm.errors import ModelCorrupt
from edgellm.formats.gguf import read_header
from edgellm.formats.gguf_memory import kv_size
from edgellm.formats.gguf_model import model_info
from edgellm.formats.gguf_shape import shape_of
from edgellm.ggml_types import TYPES_BY_NAME

if TYPE_CHECKING:
    from pathlib import Path

    from edgellm.formats.gguf_shape import ModelShape

N_LAYERS, EMBD, HEADS, KV_HEADS, HEAD = 6, 64, 4, 2, 16
KEPT = KV_HEADS * HEAD


@pytest.fixture
def shape_from(tmp_path: Path) -> Any:
    """Return a function that writes a header with these keys, and reads its sizes."""

    def make(arch: str, *, n_layers: int = N_LAYERS, **keys: Any) -> ModelShape:
        path = tmp_path / "model.gguf"
        out = gguf.GGUFWriter(str(path), arch)
        entries: dict[str, Any] = {
            "block_count": n_layers,
            "context_length": 2048,
            "embedding_length": EMBD,
            "feed_forward_length": 128,
            "attention.head_count": HEADS,
            "attention.head_count_kv": KV_HEADS,
            "attention.key_length": HEAD,
            "attention.value_length": HEAD,
        }
        entries |= {name.replace("__", "."): value for name, value in keys.items()}
        for name, value in entries.items():
            key = f"{arch}.{name}"
            if isinstance(value, list):
                out.add_array(key, value)
            elif value is not None:
                out.add_uint32(key, value)
        out.add_token_list(["a", "b", "c"])
        out.add_token_merges(["a b"])
        out.add_tensor("token_embd.weight", np.zeros((3, EMBD), np.float32))
        for i in range(n_layers):
            out.add_tensor(f"blk.{i}.attn_q.weight", np.zeros((HEADS * HEAD, EMBD), np.float16))
        out.write_header_to_file()
        out.write_kv_data_to_file()
        out.write_tensors_to_file()
        out.close()
        header = read_header(path)
        return shape_of(header, model_info(header, path))

    return make


def windows(shape: ModelShape) -> list[int]:
    """Return the window of each layer that keeps rows."""
    return [row.window for row in shape.rows]


def test_weights_know_their_layer_type_and_length(shape_from: Any):
    """Every tensor is there, with its layer or none, and all lengths together are the weights'."""
    shape = shape_from("llama")
    assert [weight.layer for weight in shape.weights] == [None, *range(N_LAYERS)]
    assert [weight.type.name for weight in shape.weights] == ["f32", *["f16"] * N_LAYERS]
    assert shape.weight_bytes == 3 * EMBD * 4 + N_LAYERS * HEADS * HEAD * EMBD * 2
    assert shape.tied
    assert shape.n_merges == 1


def test_grouped_heads_keep_a_row_for_each_group(shape_from: Any):
    """Keys and values are as wide as the key heads together, in every layer."""
    shape = shape_from("llama")
    assert {(row.keys, row.values, row.kind) for row in shape.rows} == {(KEPT, KEPT, "full")}
    assert len(shape.rows) == N_LAYERS


def test_heads_may_differ_by_layer(shape_from: Any):
    """A list of key heads gives each layer its own width."""
    heads = [1, 2, 4, 1, 2, 4]
    shape = shape_from("openelm", attention__head_count_kv=heads)
    assert [row.keys for row in shape.rows] == [count * HEAD for count in heads]


@pytest.mark.parametrize(
    ("arch", "keys", "expected"),
    [
        ("gemma3", {"attention__sliding_window": 32}, [32, 32, 32, 32, 32, 0]),
        (
            "gemma3",
            {"attention__sliding_window": 32, "attention__sliding_window_pattern": 3},
            [32, 32, 0, 32, 32, 0],
        ),
        ("gemma3", {}, [0] * 6),
        ("gemma2", {}, [4096, 0] * 3),
        ("cohere2moe", {"attention__sliding_window": 8}, [0, 8, 8, 8, 0, 8]),
        ("llama4", {}, [8192, 8192, 8192, 0, 8192, 8192]),
        ("llama4", {"attention__sliding_window": 0}, [0] * 6),
        ("smallthinker", {"attention__sliding_window": 1}, [0, 4096, 4096, 4096, 0, 4096]),
        ("phi3", {"attention__sliding_window": 2047}, [0] * 6),
        ("qwen2", {"attention__sliding_window": 4096}, [0] * 6),
        ("exaone4", {"attention__sliding_window": 32}, [0] * 6),
        (
            "mimo2",
            {
                "attention__sliding_window": 8,
                "attention__sliding_window_pattern": [True, False, False, True, True, False],
            },
            [8, 0, 0, 8, 8, 0],
        ),
    ],
)
def test_windows_are_where_the_engine_has_them(
    shape_from: Any, arch: str, keys: dict[str, Any], expected: list[int]
):
    """Period, list, default and fixed windows; announced ones that the engine does not use are none."""
    assert windows(shape_from(arch, **keys)) == expected


def test_a_window_has_heads_of_its_own(shape_from: Any):
    """The width of a row in a window follows the head of windows."""
    keys = {"attention__sliding_window": 8, "attention__key_length_swa": 2 * HEAD}
    shape = shape_from("gemma3", **keys)
    assert {row.keys for row in shape.rows if row.window} == {2 * KEPT}
    assert {row.keys for row in shape.rows if not row.window} == {KEPT}


def test_layers_that_only_guess_ahead_keep_nothing(shape_from: Any):
    """Layers behind the model's own are left out, as the engine does."""
    assert len(shape_from("glm4moe", nextn_predict_layers=1).rows) == N_LAYERS - 1


def test_shared_rows_are_kept_once(shape_from: Any):
    """Layers that read the rows of earlier ones have none of their own."""
    pattern = [True, True, False] * 2
    keys = {"attention__sliding_window": 8, "attention__sliding_window_pattern": pattern}
    shape = shape_from("gemma4", attention__shared_kv_layers=2, **keys)
    assert [row.layer for row in shape.rows] == [0, 1, 2, 3]


def test_a_hybrid_keeps_rows_or_a_state_in_each_layer(shape_from: Any):
    """Layers without key heads keep a state of their convolution and their sums."""
    ssm = {"ssm__conv_kernel": 4, "ssm__inner_size": 128, "ssm__state_size": 16}
    heads = [0, 2, 0, 0, 2, 0]
    shape = shape_from("jamba", attention__head_count_kv=heads, ssm__time_step_rank=8, **ssm)
    assert [row.layer for row in shape.rows] == [1, 4]
    assert [state.layer for state in shape.recurrences] == [0, 2, 3, 5]
    assert {state.n_values for state in shape.recurrences} == {3 * 128 + 16 * 128}


def test_a_model_may_run_through_its_layers_twice(shape_from: Any):
    """Each pass keeps rows of its own."""
    assert len(shape_from("nanbeige", num_loops=2).rows) == 2 * N_LAYERS


def test_compressed_rows_stand_for_several_tokens(shape_from: Any):
    """Windows in all layers, compressed rows and an index in some; the list may be too long."""
    shape = shape_from(
        "deepseek4",
        n_layers=3,
        attention__head_count_kv=1,
        attention__sliding_window=32,
        attention__indexer__key_length=8,
        attention__compress_ratios=[0, 4, 128, 0],
    )
    found = [(row.layer, row.kind, row.ratio) for row in shape.rows]
    assert [(0, "window", 1), (1, "window", 1), (2, "window", 1)] == found[:3]
    assert [(1, "compressed", 4), (2, "compressed", 128), (1, "indexer", 4)] == found[3:]
    assert shape.unknown


def test_a_list_that_is_too_short_is_refused(shape_from: Any):
    """The error names the key."""
    with pytest.raises(ModelCorrupt, match=r"attention\.compress_ratios"):
        shape_from("deepseek4", attention__indexer__key_length=8, attention__compress_ratios=[0, 4])


def test_an_architecture_nobody_knows_says_so(shape_from: Any):
    """It is taken for a dense one, and the doubt is in words."""
    shape = shape_from("newmodel")
    assert len(shape.rows) == N_LAYERS
    assert shape.unknown
    assert not shape_from("llama").unknown


@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4_0"])
def test_rows_agree_with_what_the_engine_is_asked_for(
    shape_from: Any, kv_type: str, tmp_path: Path
):
    """`kv_size` of dense models is the sum of their rows."""
    shape = shape_from("llama")
    header = read_header(tmp_path / "model.gguf")
    size = kv_size(header, shape.model)
    kind = TYPES_BY_NAME[kv_type]
    assert size is not None
    assert size.token_bytes(kind) == sum(
        kind.row_bytes(row.keys) + kind.row_bytes(row.values) for row in shape.rows
    )
