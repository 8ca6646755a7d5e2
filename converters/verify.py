"""A written GGUF read again, with another reader than the code that wrote it, and compared."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import xxhash

from edgellm.errors import ModelError, VerifyFailed
from edgellm.fileio import open_regular, read_exactly
from edgellm.formats.cursor import StringArray
from edgellm.formats.gguf import read_header

from .gguf_head import padding

if TYPE_CHECKING:
    from pathlib import Path

    from edgellm.formats.gguf import GgufHeader

    from .layout import FilePlan

_CHUNK_BYTES: Final = 1 << 20
# Element types without which the engine does not load a vocabulary (`impl::load`, llama-vocab.cpp
# 0c1e57098). Said here again, because the writer's own table cannot tell that it is wrong.
_ENGINE_READS: Final = {
    "tokenizer.ggml.tokens": "string",
    "tokenizer.ggml.token_type": "int32",
    "tokenizer.ggml.merges": "string",
    "tokenizer.ggml.scores": "float32",
}


def verify_file(path: Path, plan: FilePlan, digests: tuple[bytes, ...]) -> str:
    """Reopen a file and hold it against its plan and against what was written.

    Args:
        path: the file, synced to the disk.
        plan: what it should be.
        digests: xxh3-128 of each tensor's bytes, taken while they were written.

    Returns:
        The file's sha256, in hex.

    Raises:
        VerifyFailed: anything differs; says what.
    """
    try:
        header = read_header(path)
    except ModelError as err:
        raise VerifyFailed(f"the file cannot be read again: {err.message}", path=path) from err
    _compare_header(header, plan, path)
    return _compare_bytes(path, plan, digests)


def _compare_header(header: GgufHeader, plan: FilePlan, path: Path) -> None:
    if header.file_bytes != plan.n_bytes or header.data_start != len(plan.head):
        raise VerifyFailed(
            f"{header.file_bytes} bytes with data at {header.data_start}; "
            f"meant were {plan.n_bytes} and {len(plan.head)}",
            path=path,
        )
    if list(header.metadata) != list(plan.key_values):
        raise VerifyFailed("the metadata keys are not those that were meant", path=path)
    for key, value in plan.key_values.items():
        if not _same(header.metadata[key], value):
            raise VerifyFailed(f"metadata {key!r} is not what was meant", path=path)
    for key, wanted in _ENGINE_READS.items():
        made_here = isinstance(plan.key_values.get(key), list)  # what is copied, engines have read
        kind = _element_type(header.metadata.get(key))
        if made_here and kind != wanted:
            raise VerifyFailed(f"metadata {key!r} is of {kind}, engines read {wanted}", path=path)
    found = [(t.name, t.shape, t.type.id, t.n_bytes) for t in header.tensors]
    meant = [(t.name, t.shape[::-1], int(t.type), t.n_bytes) for t in plan.tensors]
    if found != meant:
        raise VerifyFailed("the tensor table is not what was meant", path=path)


def _element_type(found: Any) -> str:
    if isinstance(found, StringArray):
        return "string"
    return str(found.dtype) if isinstance(found, np.ndarray) else "no list"


def _same(found: Any, meant: Any) -> bool:
    """Compare a value as read with one as planned, or as the reader gave it of another GGUF."""
    if isinstance(meant, np.ndarray):
        same_kind = isinstance(found, np.ndarray) and found.dtype == meant.dtype
        return same_kind and found.tobytes() == meant.tobytes()
    if isinstance(meant, (list, StringArray)):
        return len(found) == len(meant) and list(found) == list(meant)
    if isinstance(meant, float):
        return np.float32(found).tobytes() == np.float32(meant).tobytes()
    return type(found) is type(meant) and bool(found == meant)


def _compare_bytes(path: Path, plan: FilePlan, digests: tuple[bytes, ...]) -> str:
    whole = hashlib.sha256()
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    with open_regular(path) as (file, _):
        head = bytearray(len(plan.head))
        read_exactly(file, head)
        whole.update(head)
        if head != plan.head:
            raise VerifyFailed("the header's bytes are not what was written", path=path)
        for tensor, digest in zip(plan.tensors, digests, strict=True):
            part = xxhash.xxh3_128()
            left = tensor.n_bytes
            while left:
                chunk = buffer[: min(left, _CHUNK_BYTES)]
                read_exactly(file, chunk)
                part.update(chunk)
                whole.update(chunk)
                left -= chunk.nbytes
            if part.digest() != digest:
                raise VerifyFailed(
                    f"tensor {tensor.name!r} read back differs from what was written", path=path
                )
            pad = bytearray(padding(tensor.n_bytes))
            read_exactly(file, pad)
            if any(pad):
                raise VerifyFailed(f"the bytes after {tensor.name!r} are not zero", path=path)
            whole.update(pad)
    return whole.hexdigest()
