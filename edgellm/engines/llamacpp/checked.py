"""A model's file, checked before it is known how to open it: what was found counts while the file stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgellm.formats.gguf_check import checked_model

if TYPE_CHECKING:
    from pathlib import Path

    from edgellm.core import ModelInfo
    from edgellm.formats.gguf import GgufHeader


class CheckedFile:
    """What `checked_model` found in one file.

    Args:
        path: of the file.

    Raises:
        ModelNotFound, ModelCorrupt, ModelUnsupported: the file is refused.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._before = _which(path)  # first: whoever writes while it is read changes that
        self._found = checked_model(path)

    def found(self, path: Path) -> tuple[GgufHeader, ModelInfo]:
        """Return header and model of a file, which is checked now where it is not the one from before.

        Raises:
            ModelNotFound, ModelCorrupt, ModelUnsupported: the file is refused.
        """
        is_same = path == self._path and self._before == _which(path) is not None
        return self._found if is_same else checked_model(path)


def _which(path: Path) -> tuple[int, ...] | None:
    """Return what tells one state of one file from any other, None without a file."""
    try:
        status = path.stat()
    except OSError:
        return None
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return (status.st_dev, status.st_ino, status.st_size, *times)
