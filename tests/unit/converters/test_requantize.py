"""A GGUF stored in another type: what is copied, what is expanded, what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edgellm.converters import requantize
from edgellm.converters.gguf_head import pack_head, padding
from edgellm.converters.gguf_values import stored_values
from edgellm.converters.presets import PRESETS
from edgellm.converters.requantize import plan_requantization
from edgellm.converters.verify import verify_file
from edgellm.converters.write import write_file
from edgellm.errors import (
    ConvertError,
    MissingExtra,
    ModelCorrupt,
    ModelNotFound,
    ModelUnsupported,
)
from edgellm.formats.gguf import read_header
from edgellm.formats.gguf_model import model_info
from edgellm.kernels import ggml
from edgellm.kernels.ggml import GgmlType, dequantize, quantize

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Make = Callable[..., Path]

WIDTH = 256
STRICT = requantize.checked_model
NAMES = ("token_embd.weight", "blk.0.attn_q.weight", "blk.0.ffn_down.weight")
KEYS: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 1,
    "llama.context_length": 64,
    "llama.embedding_length": WIDTH,
    "llama.attention.head_count": 4,
    "llama.vocab_size": 8,
}


@pytest.fixture(autouse=True)
def few_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let models pass that only a quantiser takes: a handful of tensors, no vocabulary."""

    def lenient(path: Path) -> tuple[Any, Any]:
        header = read_header(path)
        return header, model_info(header, path)

    monkeypatch.setattr(requantize, "checked_model", lenient)


def weights(seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(8, WIDTH)).astype(np.float32)


@pytest.fixture
def gguf(tmp_path: Path) -> Make:
    """Write a small model: matrices of some type, a norm, and whatever keys a test adds."""

    def make(
        ggml_type: GgmlType = GgmlType.Q4_1, *, values: np.ndarray | None = None, **keys: Any
    ) -> Path:
        metadata = KEYS | {name.replace("__", "."): value for name, value in keys.items()}
        metadata = {k: v for k, v in metadata.items() if v is not None}
        x = weights() if values is None else values
        data = {name: quantize(x, ggml_type).tobytes() for name in NAMES}
        table = [(name, (8, WIDTH), int(ggml_type), len(raw)) for name, raw in data.items()]
        data["output_norm.weight"] = np.ones(WIDTH, "<f4").tobytes()
        table.append(("output_norm.weight", (WIDTH,), 0, 4 * WIDTH))
        path = tmp_path / "source.gguf"
        body = b"".join(raw + bytes(padding(len(raw))) for raw in data.values())
        path.write_bytes(pack_head(metadata, table) + body)
        return path

    return make


def convert(source: Path, type_name: str, n_threads: int = 2) -> Path:
    """Plan, write and verify."""
    plan = plan_requantization(source, type_name)
    out = source.with_name("out.gguf")
    with out.open("wb") as file:
        digests = write_file(plan, file.write, n_threads=n_threads)
    verify_file(out, plan, digests)
    return out


def stored(path: Path, name: str) -> tuple[str, np.ndarray]:
    header = read_header(path)
    tensor = next(t for t in header.tensors if t.name == name)
    at = header.data_start + tensor.offset
    return tensor.type.name, np.frombuffer(path.read_bytes()[at : at + tensor.n_bytes], np.uint8)


def test_blocks_are_expanded_and_quantised(gguf: Make) -> None:
    """The new blocks are those of the expanded weights; the norm stays as it is."""
    source = gguf(GgmlType.Q4_1)
    out = convert(source, "q5_0")
    expanded = dequantize(quantize(weights(), GgmlType.Q4_1), GgmlType.Q4_1, WIDTH)
    kind, found = stored(out, "blk.0.attn_q.weight")
    assert kind == "q5_0"
    assert found.tobytes() == quantize(expanded, GgmlType.Q5_0).tobytes()
    kind, found = stored(out, "output_norm.weight")
    assert (kind, found.tobytes()) == ("f32", np.ones(WIDTH, "<f4").tobytes())
    assert [t.name for t in read_header(out).tensors] == [*NAMES, "output_norm.weight"]


def test_tensors_of_the_wanted_type_are_copied(gguf: Make) -> None:
    """A second conversion into the same type changes no weight and no generation."""
    source = gguf(GgmlType.Q8_0)
    out = convert(source, "q8_0")
    for name in NAMES:
        assert stored(out, name)[1].tobytes() == stored(source, name)[1].tobytes()
    assert "edgellm.generation" not in read_header(out).metadata
    assert plan_requantization(source, "q8_0").warnings == ()


def test_metadata_is_copied_with_its_types(gguf: Make) -> None:
    """Every value keeps its bytes: small integers, doubles, bad UTF-8, nested kinds of lists."""
    odd = {
        "x__u8": b"\x00\x00\x00\x00\x07",
        "x__f64": b"\x0c\x00\x00\x00" + np.float64(0.1).tobytes(),
        "x__nan": b"\x06\x00\x00\x00\x01\x00\xc0\x7f",
        "x__text": b"\x08\x00\x00\x00" + (2).to_bytes(8, "little") + b"\xff\xfe",
        "x__flags": b"\x09\x00\x00\x00\x07\x00\x00\x00" + (2).to_bytes(8, "little") + b"\x01\x00",
        "x__words": b"\x09\x00\x00\x00\x08\x00\x00\x00"
        + (1).to_bytes(8, "little")
        + (2).to_bytes(8, "little")
        + b"\xc3(",
    }
    source = gguf(general__file_type=3, general__alignment=32, **odd)
    out = convert(source, "q8_0")
    found = stored_values(read_header(out))
    for name, raw in odd.items():
        assert found[name.replace("__", ".")] == raw
    metadata = read_header(out).metadata
    assert metadata["general.file_type"] == 7
    assert metadata["general.quantization_version"] == 2
    assert "general.alignment" not in metadata
    kept = [key for key in read_header(source).metadata if key != "general.alignment"]
    assert list(metadata)[: len(kept)] == kept


@pytest.mark.parametrize(
    ("stored_as", "before", "type_name", "expected"),
    [
        (GgmlType.Q4_1, None, "q8_0", 2),
        (GgmlType.Q4_1, None, "f32", 2),
        (GgmlType.Q4_1, 2, "q4_0", 3),
        (GgmlType.F32, None, "q4_0", 1),
        (GgmlType.BF16, 2, "q4_0", 2),
        (GgmlType.Q8_0, None, "q8_0", 1),
        (GgmlType.Q8_0, 3, "q8_0", 3),
    ],
)
def test_generation(
    gguf: Make, stored_as: GgmlType, before: int | None, type_name: str, expected: int
) -> None:
    """One more where blocks are expanded; what was lost earlier is carried, and said."""
    source = gguf(stored_as, edgellm__generation=before)
    plan = plan_requantization(source, type_name)
    assert plan.generation == expected
    key = read_header(convert(source, type_name)).metadata.get("edgellm.generation", 1)
    assert key == expected
    assert any("quantised before" in warning for warning in plan.warnings) == (expected > 1)


@pytest.mark.parametrize("value", [0, "2", True, 1.0, 1 << 40, (1 << 32) - 1])
def test_a_generation_that_is_no_count_is_refused(gguf: Make, value: Any) -> None:
    """The key is ours, so another kind of value is damage."""
    with pytest.raises(ModelCorrupt, match=r"edgellm\.generation"):
        plan_requantization(gguf(edgellm__generation=value), "q8_0")


def test_parts_of_a_model_are_refused(gguf: Make) -> None:
    """A split file names the remedy; the keys of a file split into one part are dropped."""
    with pytest.raises(ModelUnsupported, match=r"one of 2 parts.*gguf-split --merge"):
        plan_requantization(gguf(split__count=2, split__no=0), "q8_0")
    out = convert(gguf(split__count=1, split__no=0), "q8_0")
    assert not any(key.startswith("split.") for key in read_header(out).metadata)


def test_what_is_no_model_is_refused_before_weights_are_read(gguf: Make, tmp_path: Path) -> None:
    """Missing, cut, without weights, or no GGUF at all: typed errors of the header's reader."""
    with pytest.raises(ModelNotFound):
        plan_requantization(tmp_path / "nowhere.gguf", "q8_0")
    whole = gguf().read_bytes()
    cut = tmp_path / "cut.gguf"
    for data in (whole[:-40], whole[:100], b"", b"<html>"):
        cut.write_bytes(data)
        with pytest.raises(ModelCorrupt):
            plan_requantization(cut, "q8_0")
    cut.write_bytes(pack_head(KEYS, []))
    with pytest.raises(ModelCorrupt):
        plan_requantization(cut, "q8_0")


def test_a_model_that_the_engine_would_die_of_is_refused(
    gguf: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The door that `info` and the engine ask is asked here too."""
    monkeypatch.setattr(requantize, "checked_model", STRICT)
    with pytest.raises(ModelCorrupt, match="no vocabulary"):
        plan_requantization(gguf(), "q8_0")


def test_a_weight_that_is_no_number_is_reported(gguf: Make) -> None:
    """A block whose scale is NaN or infinite stops the conversion, copied or not."""
    source = gguf(GgmlType.Q8_0)
    header, data = read_header(source), bytearray(source.read_bytes())
    for scale in (b"\x00\x7c", b"\x01\x7e"):
        data[header.data_start : header.data_start + 2] = scale
        source.write_bytes(data)
        for type_name in ("q4_0", "q8_0"):
            with pytest.raises(ModelCorrupt, match=r"token_embd\.weight' holds \d+ values"):
                convert(source, type_name)


@pytest.mark.parametrize("type_name", sorted(set(PRESETS) - {"f32", "bf16"}))
def test_what_a_scale_cannot_hold_is_refused(gguf: Make, type_name: str) -> None:
    """A weight far beyond f16 overflows the scale of every block type; bf16 holds it."""
    values = weights()
    values[3, 7] = 3e9
    source = gguf(GgmlType.F32, values=values)
    with pytest.raises(ConvertError, match=r"weight of 3e\+09; a .* holds at most 65504"):
        convert(source, type_name)
    convert(source, "bf16")


def test_without_the_engine_nothing_is_begun(
    gguf: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A type that only the engine's library stores is refused before the source is looked at."""
    monkeypatch.setattr(ggml, "_library", lambda: None)
    with pytest.raises(MissingExtra, match=r"Q4_K .*pip install 'llama-cpp-python"):
        plan_requantization(tmp_path / "nowhere.gguf", "q4_k_m")
    with pytest.raises(MissingExtra, match="Q6_K"):  # the embedding of q4_0, known by its width
        plan_requantization(gguf(GgmlType.Q8_0), "q4_0")
    convert(gguf(GgmlType.F16), "q8_0")


def test_threads_change_nothing(gguf: Make) -> None:
    """The same bytes with one thread and with five."""
    source = gguf()
    assert convert(source, "q4_k_m", 1).read_bytes() == convert(source, "q4_k_m", 5).read_bytes()
