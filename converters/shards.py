"""The weight files of a checkpoint, open for reading from several threads."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, BinaryIO

from edgellm.errors import ModelCorrupt
from edgellm.fileio import open_regular, read_exactly
from edgellm.formats.checked_json import unreadable

if TYPE_CHECKING:
    from pathlib import Path


class Shards:
    """Opens each file once, at its first read; closed by the end of the `with` block."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._files: dict[Path, BinaryIO] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Shards:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def read(self, path: Path, offset: int, n_bytes: int) -> bytearray:
        """Read exactly `n_bytes`.

        Raises:
            ModelNotFound, ModelUnsupported: the file is not there, or may not be read.
            ModelCorrupt: it became shorter since its header was read.
        """
        into = bytearray(n_bytes)
        try:
            with self._lock:
                file = self._files.get(path)
                if file is None:
                    file, _ = self._stack.enter_context(open_regular(path, follow=True))
                    self._files[path] = file
                file.seek(offset)
                read_exactly(file, into)
        except EOFError as err:
            raise ModelCorrupt(f"the file changed during conversion: {err}", path=path) from err
        except OSError as err:
            raise unreadable(err, path) from err
        return into
