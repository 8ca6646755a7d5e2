"""Siblings: smaller files of the same model that lie beside the one asked for.

The same model is one whose header says the same of it but for how weights are stored: architecture,
sizes, tokenizer, template. Its tokens mean the same, so that an answer that was begun can be gone on with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from edgellm.errors import ModelError
from edgellm.formats.cursor import StringArray
from edgellm.formats.gguf_check import checked_model
from edgellm.policy.ladder import Artifact

if TYPE_CHECKING:
    from pathlib import Path

    from edgellm.core import ModelInfo
    from edgellm.formats.gguf import GgufHeader

MAX_FILES: Final = 32
"""Headers that are read at most; folders with more hold something else."""

_SAME: Final = (
    "architecture",
    "n_params",
    "n_layers",
    "n_vocab",
    "n_embd",
    "n_heads",
    "n_kv_heads",
)
_TOKENIZER: Final = "tokenizer."


def smaller_siblings(path: Path) -> tuple[Artifact, ...]:
    """Return the smaller files of the same model in the same folder; files that are none count not.

    Args:
        path: of the model.
    """
    try:
        header, model = checked_model(path)
        beside = sorted(path.resolve().parent.glob("*.gguf"))[:MAX_FILES]
    except (ModelError, OSError):
        return ()
    found = (_artifact(other, header, model) for other in beside)
    return tuple(artifact for artifact in found if artifact is not None)


def _artifact(path: Path, header: GgufHeader, model: ModelInfo) -> Artifact | None:
    """Return a file if it is the same model, and smaller."""
    try:
        if not path.is_file() or path.stat().st_size >= model.file_bytes:
            return None
        other_header, other = checked_model(path)
    except (ModelError, OSError):
        return None
    is_same = all(getattr(model, name) == getattr(other, name) for name in _SAME)
    if not is_same or not _same_tokens(header, other_header):
        return None
    return Artifact(str(path), other.file_bytes)


def _same_tokens(one: GgufHeader, other: GgufHeader) -> bool:
    """Return whether text becomes the same tokens, and a conversation the same text."""
    mine = {key: value for key, value in one.metadata.items() if key.startswith(_TOKENIZER)}
    theirs = {key: value for key, value in other.metadata.items() if key.startswith(_TOKENIZER)}
    return mine.keys() == theirs.keys() and all(_equal(mine[key], theirs[key]) for key in mine)


def _equal(one: object, other: object) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return bool(np.array_equal(one, other))
    if isinstance(one, StringArray) and isinstance(other, StringArray):
        return one.all_raw() == other.all_raw()
    return bool(one == other)
