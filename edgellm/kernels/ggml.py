"""The ctypes door to the quantisers of the installed engine (`libggml-base`), without the engine.

The library is found beside an installed llama_cpp package, which is not imported. Without it, numpy
does the types whose blocks are simple, and gguf-py the way back from all of them; both give the
same bytes.

A library whose blocks have other sizes than ours is refused.

Source: ggml.h and ggml-quants.h of ggml as llama-cpp-python 0.3.36 carries it.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from edgellm.errors import EngineUnavailable, MissingExtra
from edgellm.ggml_types import TYPES_BY_ID
from edgellm.kernels import _blocks
from edgellm.kernels._choice import numpy_is_forced
from edgellm.kernels._ggml_types import (
    ENGINE_ONLY,
    NO_WAY_BACK,
    TRAITS,
    WRITTEN,
    GgmlType,
    TypeTraits,
    row_bytes,
    traits,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

__all__ = [
    "WRITTEN",
    "GgmlType",
    "TypeTraits",
    "can_dequantize",
    "dequantize",
    "library_path",
    "quantize",
    "require_quantizers",
    "row_bytes",
    "traits",
]

log = logging.getLogger(__name__)


_INSTALL: Final = "install it with `pip install 'llama-cpp-python>=0.3.36,<0.4'`"
_REINSTALL: Final = (
    "reinstall it with `pip install --force-reinstall 'llama-cpp-python>=0.3.36,<0.4'`"
)
# The soname first: it is the name the engine itself will ask the loader for, so that one process
# holds one copy.
_LIBRARY_NAMES: Final = (
    "libggml-base.so.0",
    "libggml-base.so",
    "libggml-base.dylib",
    "ggml-base.dll",
)


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
        ValueError: `x` has not two dimensions, its rows do not fill blocks, or the type is not one
            of `WRITTEN`.
        MissingExtra: the type needs the engine's library, and it is not installed.
        EngineUnavailable: the library is there, but is of another kind.

    Source: `ggml_quantize_chunk`, ggml.c.
    """
    if x.dtype != np.float32:
        raise TypeError(f"quantize needs float32, not {x.dtype}")
    if x.ndim != 2:
        raise ValueError(f"quantize needs (n_rows, n_per_row), not shape {x.shape}")
    out = np.empty((x.shape[0], row_bytes(ggml_type, x.shape[1])), np.uint8)
    require_quantizers({ggml_type})
    in_numpy = ggml_type.name in _blocks.QUANTIZE
    library = None if in_numpy and numpy_is_forced() else _library()
    if x.size == 0:
        return out
    x = np.ascontiguousarray(x)
    if library is None:
        return _blocks.quantize_rows(ggml_type.name, x)
    if ggml_type is GgmlType.F32:  # the library does not copy
        out[...] = x.view(np.uint8)
    else:
        _quantize_with_engine(library, x, ggml_type, out)
    return out


def _quantize_with_engine(
    library: ctypes.CDLL, x: NDArray[np.float32], ggml_type: GgmlType, out: NDArray[np.uint8]
) -> None:
    written = library.ggml_quantize_chunk(
        int(ggml_type), x.ctypes.data, out.ctypes.data, 0, x.shape[0], x.shape[1], None
    )
    if written != out.nbytes:
        raise EngineUnavailable(
            f"ggml_quantize_chunk wrote {written} bytes of {ggml_type.name}, not {out.nbytes}"
        )


def require_quantizers(types: Collection[GgmlType]) -> None:
    """Check that every one of these types can be stored here, before anything is begun.

    Raises:
        ValueError: one is not in `WRITTEN`.
        MissingExtra: one needs the engine's library, and it is not installed.
        EngineUnavailable: the library is there, but is of another kind.
    """
    unknown = [ggml_type.name for ggml_type in types if ggml_type not in WRITTEN]
    if unknown:
        raise ValueError(f"nothing is quantised to {', '.join(sorted(unknown))}")
    needing = [ggml_type.name for ggml_type in types if ggml_type.name not in _blocks.QUANTIZE]
    if needing and _library() is None:
        names = ", ".join(sorted(needing))
        raise MissingExtra(f"quantising to {names} needs the engine's library", hint=_INSTALL)


def can_dequantize(ggml_type: GgmlType) -> bool:
    """Say whether `dequantize` knows a type here."""
    if ggml_type in NO_WAY_BACK:
        return False
    return ggml_type not in ENGINE_ONLY or _library() is not None


def dequantize(blocks: NDArray[np.uint8], ggml_type: GgmlType, n: int) -> NDArray[np.float32]:
    """Expand rows of stored blocks to float32.

    The engine's own code where it is installed: it is what llama.cpp requantises with, 4 to 15
    times as fast as gguf-py, and lets other threads run.

    Args:
        blocks: shape (..., row_bytes(ggml_type, n)); may be read-only.
        ggml_type: any for which `can_dequantize` holds.
        n: elements of a row.

    Returns:
        Shape (..., n); the same bits as ggml's reference code.

    Raises:
        TypeError: `blocks` is not uint8.
        ValueError: the last dimension is not a row of `n` elements, or the type is another one.
        EngineUnavailable: the library is there, but is of another kind.

    Source: `dequantize_row_*`, ggml-quants.h.
    """
    if blocks.dtype != np.uint8:
        raise TypeError(f"dequantize needs uint8, not {blocks.dtype}")
    n_bytes = row_bytes(ggml_type, n)
    if blocks.ndim == 0 or blocks.shape[-1] != n_bytes:
        raise ValueError(f"a row of {n} x {ggml_type.name} has {n_bytes} bytes, not {blocks.shape}")
    shape = (*blocks.shape[:-1], n)
    if ggml_type.name in _blocks.DEQUANTIZE:
        return _blocks.dequantize_rows(ggml_type.name, blocks, n)
    if not can_dequantize(ggml_type):
        raise ValueError(f"dequantize does not know {ggml_type.name}")
    library = None if numpy_is_forced() and ggml_type not in ENGINE_ONLY else _library()
    if library is None:
        return _dequantize_with_gguf(blocks, ggml_type).reshape(shape)
    return _dequantize_with_engine(library, np.ascontiguousarray(blocks), ggml_type, shape)


def _dequantize_with_engine(
    library: ctypes.CDLL, blocks: NDArray[np.uint8], ggml_type: GgmlType, shape: tuple[int, ...]
) -> NDArray[np.float32]:
    """Call a function by its exported name.

    `ggml_get_type_traits` has them too, in a struct whose layout is no promise.
    """
    out = np.empty(shape, np.float32)
    to_float = library[f"dequantize_row_{TYPES_BY_ID[ggml_type].name}"]
    to_float.restype = None
    to_float(
        ctypes.c_void_p(blocks.ctypes.data),
        ctypes.c_void_p(out.ctypes.data),
        ctypes.c_int64(out.size),
    )
    return out


def _dequantize_with_gguf(blocks: NDArray[np.uint8], ggml_type: GgmlType) -> NDArray[np.float32]:
    from gguf import GGMLQuantizationType, quants

    if blocks.size == 0:
        return np.empty(0, np.float32)
    with np.errstate(all="ignore"):  # scales that are no numbers are legal bits
        return quants.dequantize(blocks.reshape(1, -1), GGMLQuantizationType(int(ggml_type)))


@functools.cache
def _library() -> ctypes.CDLL | None:
    """Open the engine's library once; None when no engine is installed.

    Raises:
        EngineUnavailable: it cannot be loaded, or its types have other sizes than ours.
    """
    path = library_path()
    if path is None:
        return None
    try:
        lib = ctypes.CDLL(str(path))
        lib.ggml_type_size.restype = ctypes.c_size_t
        lib.ggml_blck_size.restype = ctypes.c_int64
        quantize_chunk = lib.ggml_quantize_chunk
        quantize_init = lib.ggml_quantize_init
    except (OSError, AttributeError) as err:
        raise EngineUnavailable(
            f"cannot use the library: {err}", path=path, hint=_REINSTALL
        ) from err
    count, pointer = ctypes.c_int64, ctypes.c_void_p
    quantize_chunk.argtypes = [ctypes.c_int, pointer, pointer, count, count, count, pointer]
    quantize_chunk.restype = ctypes.c_size_t
    for ggml_type, ours in TRAITS.items():
        theirs = TypeTraits(lib.ggml_blck_size(ggml_type), lib.ggml_type_size(ggml_type))
        if theirs != ours:
            raise EngineUnavailable(
                f"{ggml_type.name} is {theirs} there, {ours} here", path=path, hint=_REINSTALL
            )
        if ggml_type in WRITTEN:
            # Builds the tables some types need; ggml does it under a lock, here no thread waits.
            quantize_init(int(ggml_type))
    log.info("quantisers: %s", path.name)
    return lib
