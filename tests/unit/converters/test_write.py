"""One pass over the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from edgellm.converters import write as write_module
from edgellm.converters.plan import make_plan
from edgellm.converters.shards import Shards
from edgellm.converters.write import Slab, cut, interleave, write_file
from edgellm.errors import ConvertError, ModelCorrupt
from edgellm.formats.safetensors import read_header

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Make = Callable[..., Path]

UNTIED = "llama3-untied-sharded-bf16"


def whole(folder: Path, type_name: str, n_threads: int = 1) -> bytes:
    out = bytearray()
    write_file(make_plan(folder, type_name), out.extend, n_threads=n_threads)
    return bytes(out)


def poke(folder: Path, name: str, values: list[float]) -> None:
    """Overwrite the first bf16 elements of a tensor."""
    path = folder / "model.safetensors"
    entry = next(t for t in read_header(path).tensors if t.name == name)
    bits = (np.array(values, "<f4").view("<u4") >> 16).astype("<u2").tobytes()
    data = bytearray(path.read_bytes())
    data[entry.offset : entry.offset + len(bits)] = bits
    path.write_bytes(data)


def test_rows_of_a_head_go_from_halves_to_pairs() -> None:
    """Row i of the first half is followed by row i of the second, head by head."""
    rows = np.arange(16, dtype=np.float32)[:, None] * np.ones((1, 3), np.float32)
    order = interleave(rows, 8)[:, 0].astype(int).tolist()
    assert order == [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]
    assert interleave(rows, 0) is rows


@pytest.mark.parametrize("type_name", ["f32", "bf16", "q8_0", "q4_0"])
def test_slab_size_and_threads_change_nothing(
    checkpoint: Make, monkeypatch: pytest.MonkeyPatch, type_name: str
) -> None:
    """Tiny slabs and many threads write the same bytes as one slab a tensor."""
    folder = checkpoint(UNTIED)
    expected = whole(folder, type_name)
    monkeypatch.setattr(write_module, "SLAB_ELEMENTS", 100)
    assert whole(folder, type_name, n_threads=5) == expected
    assert len(expected) == make_plan(folder, type_name).n_bytes


def test_slabs_are_whole_heads_and_cover_the_tensor(
    checkpoint: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where rows are interleaved no slab cuts a head."""
    monkeypatch.setattr(write_module, "SLAB_ELEMENTS", 700)
    for tensor in make_plan(checkpoint(UNTIED), "f32").tensors:
        slabs = list(cut(tensor))
        assert sum(slab.n_rows * slab.n_per_row for slab in slabs) * 4 == tensor.n_bytes
        assert [slab.first for slab in slabs[1:]] == [s.first + s.n_rows for s in slabs[:-1]]
        if tensor.head_rows:
            assert all(slab.n_rows % tensor.head_rows == 0 for slab in slabs)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("type_name", ["bf16", "q8_0"])
def test_weights_that_are_no_numbers_are_reported(
    checkpoint: Make, type_name: str, bad: float
) -> None:
    """NaN and infinity stop a conversion, in every type, naming the tensor."""
    folder = checkpoint()
    poke(folder, "model.norm.weight", [1.0, bad])
    with pytest.raises(ModelCorrupt, match=r"'model\.norm\.weight' holds 1 values"):
        whole(folder, type_name)


def test_a_weight_beyond_f16_never_becomes_infinite(checkpoint: Make) -> None:
    """f16 refuses it and says what would hold it; bf16 keeps it; Q8_0 only while its scale fits."""
    folder = checkpoint()
    poke(folder, "model.embed_tokens.weight", [1.0e5])
    with pytest.raises(ConvertError, match="F16 number holds at most 65504") as caught:
        whole(folder, "f16")
    assert "bf16" in caught.value.hint
    whole(folder, "bf16")
    whole(folder, "q8_0")
    poke(folder, "model.embed_tokens.weight", [1.0e8])
    with pytest.raises(ConvertError, match="Q8_0 scale holds at most"):
        whole(folder, "q8_0")


def test_a_file_that_shrinks_after_planning_is_corrupt(checkpoint: Make) -> None:
    """A short read is an error with the file's name."""
    folder = checkpoint()
    plan = make_plan(folder, "f16")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ModelCorrupt, match="changed during conversion"):
        write_file(plan, lambda _: None, n_threads=2)


def test_progress_rises_to_the_exact_size(checkpoint: Make) -> None:
    """The last call says that all bytes are done."""
    seen: list[tuple[int, int]] = []
    plan = make_plan(checkpoint(), "q8_0")
    write_file(
        plan, lambda _: None, n_threads=2, progress=lambda done, total: seen.append((done, total))
    )
    assert seen == sorted(seen)
    assert seen[-1] == (plan.n_bytes, plan.n_bytes)


def test_a_computed_tensor_needs_no_file(checkpoint: Make) -> None:
    """llama3's factors are packed from memory."""
    tensor = make_plan(checkpoint(UNTIED), "f16").tensors[0]
    with Shards() as shards:
        packed = write_module.pack(Slab(tensor, 0, 8, 1), shards)
    assert tensor.name == "rope_freqs.weight"
    assert np.frombuffer(packed, "<f4").tolist() == tensor.values.tolist()  # type: ignore[union-attr]
