"""Kernels against their definition, over shapes and values nobody would think of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgellm import kernels
from edgellm.kernels import _blocks, _choice, _codec_numpy, ggml

SIZE = st.integers(0, 140)


@contextmanager
def forced(isa: str) -> Iterator[None]:
    """Run one implementation; a fixture would last over all examples of a test."""
    with pytest.MonkeyPatch.context() as patch:
        library = _choice.native()
        if isa == "numpy":
            patch.setattr(_choice, "native", lambda: None)
        elif library is not None:
            assert library.force_isa(isa)
        try:
            yield
        finally:
            if library is not None:
                library.force_isa("")


@pytest.mark.parametrize("isa", kernels.available_isas())
@settings(max_examples=60)
@given(n=SIZE, m=SIZE, gap_x=st.integers(0, 9), gap_y=st.integers(0, 9), seed=st.integers(0, 99))
def test_transpose_is_numpys(isa: str, n: int, m: int, gap_x: int, gap_y: int, seed: int) -> None:
    """Any size and any gap: each row of the library gives numpy's bits and leaves the gaps."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 1 << 16, (n, m + gap_x), dtype=np.uint16)[:, :m]
    buffer = np.full((m, n + gap_y), 0xA5A5, np.uint16)
    with forced(isa):
        kernels.transpose_f16(x, buffer[:, :n])
    np.testing.assert_array_equal(x.T, buffer[:, :n])
    assert (buffer[:, n:] == 0xA5A5).all()


OPERATIONS: dict[int, Any] = {
    0: (kernels.pack_channels, kernels.unpack_channels),
    1: (kernels.pack_tokens, kernels.unpack_tokens),
}


def values(kind: str, seed: int, n: int, m: int) -> np.ndarray:
    """Give any halves, or normal ones of some size, or a few values many times."""
    rng = np.random.default_rng(seed)
    if kind == "normal":
        x = rng.standard_normal((n, m)) * 2.0 ** rng.integers(-26, 14)
        return x.clip(-65504, 65504).astype(np.float16).view(np.uint16)
    if kind == "few":
        return rng.choice(rng.integers(0, 1 << 16, 3, dtype=np.uint16), (n, m))
    return rng.integers(0, 1 << 16, (n, m), dtype=np.uint16)


@pytest.mark.parametrize("axis", OPERATIONS)
@pytest.mark.parametrize("isa", kernels.available_isas())
@settings(max_examples=60)
@given(
    n=st.integers(0, 80),
    m=st.integers(0, 280),
    bits=st.sampled_from([8, 6, 5, 4]),
    group=st.one_of(st.sampled_from([32, 64, 96, 128]), st.integers(1, 300)),
    kind=st.sampled_from(["normal", "few", "any"]),
    by_rows=st.booleans(),
    seed=st.integers(0, 999),
)
def test_the_codec_is_numpys(
    isa: str, axis: int, n: int, m: int, bits: int, group: int, kind: str, by_rows: bool, seed: int
) -> None:
    """Any size, group and values: each row packs and unpacks numpy's bits, and nothing beside."""
    x = values(kind, seed, n, m)
    pack, unpack = OPERATIONS[axis]
    codes, scale, minimum = _codec_numpy.pack(x, axis, bits, group)
    expected = np.empty((n, m), np.uint16)
    _codec_numpy.unpack(codes, scale, minimum, axis, bits, group, expected)
    buffer = np.full((n, m + 3) if by_rows else (m, n + 3), 0xA5A5, np.uint16)
    out = buffer[:, :-3] if by_rows else buffer[:, :-3].T
    with forced(isa):
        packed = pack(x, bits=bits, group=group)
        unpack(packed, m, bits=bits, group=group, out=out)
    np.testing.assert_array_equal(codes, packed.codes)
    np.testing.assert_array_equal(scale, packed.scale)
    np.testing.assert_array_equal(minimum, packed.minimum)
    np.testing.assert_array_equal(expected, out)
    assert (buffer[:, -3:] == 0xA5A5).all()


@pytest.mark.parametrize("isa", kernels.available_isas())
@settings(max_examples=60)
@given(bits=st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=70))
def test_casts_are_numpys(isa: str, bits: list[int]) -> None:
    """Any floats at all: every implementation rounds alike."""
    x = np.array(bits, np.uint32).view(np.float32)
    with forced("numpy"):
        expected = kernels.f32_to_f16(x), kernels.f32_to_bf16(x)
    with forced(isa):
        actual = kernels.f32_to_f16(x), kernels.f32_to_bf16(x)
    np.testing.assert_array_equal(expected, actual)


@pytest.mark.parametrize("name", _blocks.QUANTIZE)
@settings(max_examples=60)
@given(bits=st.lists(st.integers(0, (1 << 32) - 1), min_size=32, max_size=32))
def test_numpys_blocks_are_the_engines(name: str, bits: list[int]) -> None:
    """Any 32 finite floats: numpy stores the engine's bytes."""
    assert ggml.library_path() is not None, "install edgellm[llama]: the engine is the measure"
    x = np.array(bits, np.uint32).view(np.float32)
    x = np.where(np.isfinite(x), x, np.float32(0)).reshape(1, 32)
    expected = ggml.quantize(x, ggml.GgmlType[name])
    np.testing.assert_array_equal(expected, _blocks.quantize_rows(name, x))
