"""The definition of transposing, in numpy, and what every kernel asks of its arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ITEM_BYTES = 2


def check_transpose(x: NDArray[np.uint16], out: NDArray[np.uint16] | None) -> NDArray[np.uint16]:
    """Check what `transpose_f16` may rely on, once for all implementations; make `out` if None.

    Args:
        x: shape (n, m).
        out: shape (m, n), elements of a row side by side, or None.

    Returns:
        The array to write into.

    Raises:
        TypeError: `x` or `out` is not a uint16 array in this machine's byte order.
        ValueError: a shape or a stride of `out` does not fit, or the two share memory.
    """
    check_matrix("x", x)
    if out is None:
        return np.empty((x.shape[1], x.shape[0]), np.uint16)
    check_matrix("out", out)
    if out.shape != (x.shape[1], x.shape[0]):
        expected = (x.shape[1], x.shape[0])
        raise ValueError(f"out has shape {out.shape}; x of {x.shape} needs {expected}")
    if not out.flags.writeable:
        raise ValueError("out is read-only")
    if out.size and not rows_follow(out):
        raise ValueError(
            f"out has strides {out.strides}; rows must lie one after another, gaps allowed"
        )
    if np.may_share_memory(x, out):
        raise ValueError("x and out share memory")
    return out


def transpose_f16(x: NDArray[np.uint16], out: NDArray[np.uint16]) -> None:
    """Write `out[c, t] = x[t, c]`; both were checked."""
    np.copyto(out, x.T)


def check_matrix(name: str, array: NDArray[Any], dtype: type[np.generic] = np.uint16) -> None:
    """Refuse what is not a matrix of `dtype` in this machine's byte order.

    Raises:
        TypeError: not an array, or of another dtype.
        ValueError: not two dimensions.
    """
    if not isinstance(array, np.ndarray) or array.dtype != dtype:
        kind, wanted = getattr(array, "dtype", type(array).__name__), np.dtype(dtype).name
        raise TypeError(
            f"{name} must be an array of {wanted}, not {kind}; use `.view(np.{wanted})`"
        )
    if array.ndim != 2:
        raise ValueError(f"{name} must have two dimensions, not shape {array.shape}")


def rows_follow(array: NDArray[np.uint16]) -> bool:
    """Say whether rows hold their elements side by side and follow one another, gaps allowed."""
    return _follow(array.shape, array.strides)


def strides_of(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int] | None:
    """Give the elements from row to row and from column to column of a matrix of halves.

    One of them is 1; with one row, whatever the strides say, the other is its length.

    Args:
        shape: of the matrix.
        strides: in bytes.

    Returns:
        None where neither rows nor columns hold their elements side by side and follow one another.
    """
    if _follow(shape, strides):
        return (shape[1] if shape[0] == 1 else strides[0] // _ITEM_BYTES), 1
    if _follow(shape[::-1], strides[::-1]):
        return 1, (shape[0] if shape[1] == 1 else strides[1] // _ITEM_BYTES)
    return None


def _follow(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    n_rows, n_columns = shape
    side_by_side = n_columns <= 1 or strides[1] == _ITEM_BYTES
    return side_by_side and (n_rows <= 1 or strides[0] >= n_columns * _ITEM_BYTES)
