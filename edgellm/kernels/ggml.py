"""The ctypes door to the quantisers of the installed engine (`libggml-base`), without the engine.

The library is found beside an installed llama_cpp package, which is not imported. Without it, numpy
does the types whose blocks are simple; both give the same bytes.

A library whose blocks have other sizes than ours is refused.

Source: ggml.h and ggml-quants.c of ggml as llama-cpp-python 0.3.36 carries it.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import logging
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from edgellm.errors import EngineUnavailable, MissingExtra
from edgellm.ggml_types import TYPES_BY_ID
from edgellm.kernels import _blocks
from edgellm.kernels._choice import numpy_is_forced

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "GgmlType",
    "TypeTraits",
    "dequantize",
    "library_path",
    "quantize",
    "row_bytes",
    "traits",
]

log = logging.getLogger(__name__)


class GgmlType(IntEnum):
    """ggml's number for each tensor type that edgellm reads or writes."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    IQ4_NL = 20
    IQ4_XS = 23
    BF16 = 30


@dataclass(frozen=True, slots=True)
class TypeTraits:
    """How a type is stored: `block_size` elements take `type_bytes` bytes."""

    block_size: int
    type_bytes: int


_TRAITS: Final = {
    ggml_type: TypeTraits(TYPES_BY_ID[ggml_type].block_size, TYPES_BY_ID[ggml_type].block_bytes)
    for ggml_type in GgmlType
}

# The soname first: it is the name the engine itself will ask the loader for, so that one process
# holds one copy.
_LIBRARY_NAMES: Final = (
    "libggml-base.so.0",
    "libggml-base.so",
    "libggml-base.dylib",
    "ggml-base.dll",
)


def traits(ggml_type: GgmlType) -> TypeTraits:
    """Give the block and byte sizes of a type."""
    return _TRAITS[ggml_type]


def row_bytes(ggml_type: GgmlType, n: int) -> int:
    """Give the bytes that a row of `n` elements takes.

    Raises:
        ValueError: `n` is negative or not a multiple of the type's block size.
    """
    stored = _TRAITS[ggml_type]
    if n < 0 or n % stored.block_size:
        raise ValueError(
            f"{n} elements do not fill blocks of {stored.block_size} ({ggml_type.name})"
        )
    return n // stored.block_size * stored.type_bytes


def library_path() -> Path | None:
    """Find the installed engine's `libggml-base`, or None. llama_cpp is not imported."""
    spec = importlib.util.find_spec("llama_cpp")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for name in _LIBRARY_NAMES:
            path = Path(folder) / "lib" / name
            if path.is_file():
                return path
    return None


def quantize(x: NDArray[np.float32], ggml_type: GgmlType) -> NDArray[np.uint8]:
    """Store rows of float32 in a ggml type, as ggml's reference code does.

    The GIL is released while the engine's library works: slabs of rows may be done by threads.
    Non-finite values are not looked for: F32, F16 and BF16 keep them (F16 makes values of 65520 and
    more infinite), the block types turn their block into nonsense. Check before calling.

    Args:
        x: shape (n_rows, n_per_row); made C-contiguous if it is not.
        ggml_type: the type to store.

    Returns:
        Shape (n_rows, row_bytes(ggml_type, n_per_row)).

    Raises:
        TypeError: `x` is not float32.
        ValueError: `x` has not two dimensions, or its rows do not fill blocks.
        MissingExtra: the type needs the engine's library, and it is not installed.
        EngineUnavailable: the library is there, but is of another kind.

    Source: `ggml_quantize_chunk`, ggml.c.
    """
    if x.dtype != np.float32:
        raise TypeError(f"quantize needs float32, not {x.dtype}")
    if x.ndim != 2:
        raise ValueError(f"quantize needs (n_rows, n_per_row), not shape {x.shape}")
    n_bytes = row_bytes(ggml_type, x.shape[1])
    x = np.ascontiguousarray(x)
    in_numpy = _blocks.QUANTIZE.get(ggml_type.name)
    library = None if in_numpy and numpy_is_forced() else _library()
    if library is None and in_numpy is None:
        raise MissingExtra(
            f"quantising to {ggml_type.name} needs the engine's library",
            hint="install it with `pip install 'llama-cpp-python>=0.3.36,<0.4'`",
        )
    if x.size == 0:
        return np.empty((x.shape[0], n_bytes), np.uint8)
    if library is None:
        return _blocks.quantize_rows(ggml_type.name, x)
    out = np.empty((x.shape[0], n_bytes), np.uint8)
    if ggml_type is GgmlType.F32:
        out[...] = x.view(np.uint8)
        return out
    written = library.ggml_quantize_chunk(
        int(ggml_type), x.ctypes.data, out.ctypes.data, 0, x.shape[0], x.shape[1], None
    )
    if written != out.nbytes:
        raise EngineUnavailable(
            f"ggml_quantize_chunk wrote {written} bytes of {ggml_type.name}, not {out.nbytes}"
        )
    return out


def dequantize(blocks: NDArray[np.uint8], ggml_type: GgmlType, n: int) -> NDArray[np.float32]:
    """Expand rows of stored blocks to float32, in numpy.

    Args:
        blocks: shape (..., row_bytes(ggml_type, n)); may be read-only.
        ggml_type: one of F32, F16, BF16, Q8_0, Q4_0, Q4_1.
        n: elements of a row.

    Returns:
        Shape (..., n); the same bits as ggml's reference code.

    Raises:
        TypeError: `blocks` is not uint8.
        ValueError: the last dimension is not a row of `n` elements, or the type is another one.

    Source: `dequantize_row_*`, ggml-quants.c.
    """
    if blocks.dtype != np.uint8:
        raise TypeError(f"dequantize needs uint8, not {blocks.dtype}")
    n_bytes = row_bytes(ggml_type, n)
    if blocks.ndim == 0 or blocks.shape[-1] != n_bytes:
        raise ValueError(f"a row of {n} x {ggml_type.name} has {n_bytes} bytes, not {blocks.shape}")
    if ggml_type.name not in _blocks.DEQUANTIZE:
        known = ", ".join(_blocks.DEQUANTIZE)
        raise ValueError(f"dequantize knows {known}, not {ggml_type.name}")
    return _blocks.dequantize_rows(ggml_type.name, blocks, n)


@functools.cache
def _library() -> ctypes.CDLL | None:
    """Open the engine's library once; None when no engine is installed.

    Raises:
        EngineUnavailable: it cannot be loaded, or its types have other sizes than ours.
    """
    path = library_path()
    if path is None:
        return None
    reinstall = "reinstall it with `pip install --force-reinstall 'llama-cpp-python>=0.3.36,<0.4'`"
    try:
        lib = ctypes.CDLL(str(path))
        lib.ggml_type_size.restype = ctypes.c_size_t
        lib.ggml_blck_size.restype = ctypes.c_int64
        quantize_chunk = lib.ggml_quantize_chunk
        quantize_init = lib.ggml_quantize_init
    except (OSError, AttributeError) as err:
        raise EngineUnavailable(
            f"cannot use the library: {err}", path=path, hint=reinstall
        ) from err
    count, pointer = ctypes.c_int64, ctypes.c_void_p
    quantize_chunk.argtypes = [ctypes.c_int, pointer, pointer, count, count, count, pointer]
    quantize_chunk.restype = ctypes.c_size_t
    for ggml_type, ours in _TRAITS.items():
        theirs = TypeTraits(lib.ggml_blck_size(ggml_type), lib.ggml_type_size(ggml_type))
        if theirs != ours:
            raise EngineUnavailable(
                f"{ggml_type.name} is {theirs} there, {ours} here", path=path, hint=reinstall
            )
        # Builds the tables some types need; ggml does it under a lock, here no thread waits for it.
        quantize_init(int(ggml_type))
    log.info("quantisers: %s", path.name)
    return lib
