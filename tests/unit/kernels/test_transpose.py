"""transpose_f16: every row of the native library against numpy, and what the door refuses."""

from __future__ import annotations

import numpy as np
import pytest

from edgellm import kernels

SHAPES = [(0, 0), (0, 5), (5, 0), (1, 1), (1, 64), (64, 1), (7, 9), (32, 8), (33, 15), (257, 192)]


def _noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(0, 1 << 16, shape, dtype=np.uint16)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_row_gives_numpys_bits(native_isa: str, shape: tuple[int, int]) -> None:
    """Whatever the size, a row moves each element to the transposed place."""
    x = _noise(*shape)
    actual = kernels.transpose_f16(x)
    assert actual.flags.c_contiguous
    np.testing.assert_array_equal(x.T, actual)


@pytest.mark.parametrize("special", [0x7C00, 0xFC00, 0x7E01, 0x7C01, 0x8000, 0x0001, 0x7BFF])
def test_special_halves_keep_their_bits(native_isa: str, special: int) -> None:
    """Infinities, signalling NaNs, -0 and denormals are moved, never read as numbers."""
    x = np.full((40, 24), special, np.uint16)
    assert (kernels.transpose_f16(x) == special).all()


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(lambda a: a[:, :50], id="gap"),
        pytest.param(lambda a: a[::2, 3:70], id="every-second-row"),
        pytest.param(lambda a: a[:, ::2], id="every-second-column"),
        pytest.param(lambda a: a[::-1], id="rows-backwards"),
        pytest.param(lambda a: a[:, ::-1], id="columns-backwards"),
        pytest.param(lambda a: a.T, id="transposed"),
        pytest.param(lambda a: np.broadcast_to(a[:1], a.shape), id="repeated-row"),
        pytest.param(lambda a: np.broadcast_to(a[:, :1], a.shape), id="repeated-column"),
        pytest.param(lambda a: np.asfortranarray(a)[5:60], id="fortran"),
    ],
)
def test_any_strides_may_come_in(native_isa: str, view: object) -> None:
    """A view with gaps, steps or negative strides is read as numpy reads it."""
    x = view(_noise(65, 80))
    np.testing.assert_array_equal(x.T, kernels.transpose_f16(x))


def test_an_odd_address_is_read_and_written(native_isa: str) -> None:
    """Elements that begin at an odd byte, as in a packed file, are handled like all others."""
    raw = np.random.default_rng(1).integers(0, 256, 2 * 33 * 40 + 1, dtype=np.uint8)
    x = raw[1:].view(np.uint16).reshape(33, 40)
    out = np.zeros(2 * 33 * 40 + 1, np.uint8)[1:].view(np.uint16).reshape(40, 33)
    kernels.transpose_f16(x, out)
    np.testing.assert_array_equal(x.T, out)


def test_gaps_between_rows_of_out_keep_their_content(native_isa: str) -> None:
    """Writing into a larger buffer touches the rows alone."""
    x, buffer = _noise(65, 33), np.full((33, 80), 7, np.uint16)
    returned = kernels.transpose_f16(x, buffer[:, :65])
    np.testing.assert_array_equal(x.T, buffer[:, :65])
    assert (buffer[:, 65:] == 7).all()
    assert np.shares_memory(returned, buffer)


def test_a_read_only_source_is_fine(native_isa: str) -> None:
    """A mapped file comes as a read-only array."""
    x = _noise(64, 64)
    x.flags.writeable = False
    np.testing.assert_array_equal(x.T, kernels.transpose_f16(x))


@pytest.mark.parametrize("dtype", [np.float16, np.int16, np.uint8, ">u2"])
def test_another_dtype_is_refused(dtype: object) -> None:
    """Only uint16 in this machine's byte order passes; the message names the view to take."""
    with pytest.raises(TypeError, match=r"x must be an array of uint16.*view\(np.uint16\)"):
        kernels.transpose_f16(np.zeros((4, 4), dtype))


def test_what_is_no_array_is_refused() -> None:
    """A nested list has no buffer to read from."""
    with pytest.raises(TypeError, match="not list"):
        kernels.transpose_f16([[1, 2]])


def test_another_rank_is_refused() -> None:
    """Two dimensions, nothing else."""
    with pytest.raises(ValueError, match="two dimensions, not shape"):
        kernels.transpose_f16(np.zeros(4, np.uint16))


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (np.zeros((4, 6), np.uint16), "out has shape"),
        (np.zeros((6, 8), np.uint16)[:, ::2], "out has strides"),
        (np.zeros((6, 4), np.uint16)[::-1], "out has strides"),
        (np.broadcast_to(np.zeros((1, 4), np.uint16), (6, 4)), "read-only"),
    ],
)
def test_an_out_that_does_not_fit_is_refused(out: np.ndarray, message: str) -> None:
    """A wrong shape, a stride inside a row, rows backwards, a read-only buffer."""
    with pytest.raises(ValueError, match=message):
        kernels.transpose_f16(np.zeros((4, 6), np.uint16), out)


def test_an_overlapping_out_is_refused() -> None:
    """In place is not possible, so it is refused before anything is overwritten."""
    x = _noise(8, 8)
    with pytest.raises(ValueError, match="share memory"):
        kernels.transpose_f16(x, x)
