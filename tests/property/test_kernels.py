"""Kernels against their definition, over shapes and values nobody would think of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgellm import kernels
from edgellm.kernels import _blocks, _choice, ggml

SIZE = st.integers(0, 140)


@pytest.mark.parametrize("isa", kernels.available_isas())
@settings(max_examples=60)
@given(n=SIZE, m=SIZE, gap_x=st.integers(0, 9), gap_y=st.integers(0, 9), seed=st.integers(0, 99))
def test_transpose_is_numpys(isa: str, n: int, m: int, gap_x: int, gap_y: int, seed: int) -> None:
    """Any size and any gap: each row of the library gives numpy's bits and leaves the gaps."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 1 << 16, (n, m + gap_x), dtype=np.uint16)[:, :m]
    buffer = np.full((m, n + gap_y), 0xA5A5, np.uint16)
    with pytest.MonkeyPatch.context() as patch:
        if isa == "numpy":
            patch.setattr(_choice, "native", lambda: None)
        elif (library := _choice.native()) is not None:
            assert library.force_isa(isa)
        kernels.transpose_f16(x, buffer[:, :n])
    if (library := _choice.native()) is not None:
        library.force_isa("")
    np.testing.assert_array_equal(x.T, buffer[:, :n])
    assert (buffer[:, n:] == 0xA5A5).all()


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
