"""JSON files nobody vouches for: bounded in size, no duplicate keys, no NaN, errors in one line.

Nothing here evaluates or imports what a file names.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from edgellm.errors import ModelCorrupt, ModelNotFound, ModelUnsupported
from edgellm.fileio import open_regular, read_exactly

if TYPE_CHECKING:
    from pathlib import Path

    from edgellm.errors import ModelError

# The largest real tokenizer.json has about 35 MB and 2 million values. As Python objects a text takes
# up to 4 bytes for each of the file's, twice, and a value some 200: together less than a gigabyte.
MAX_JSON_BYTES = 64 << 20
MAX_JSON_VALUES = 3 << 20
_LFS = b"version https://git-lfs"
_AGAIN = "download it again"
_BOM = b"\xef\xbb\xbf"


def read_json_object(path: Path, *, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Read a JSON file whose top level is an object.

    Raises:
        ModelNotFound: the file is not there, or is no regular file.
        ModelCorrupt: it is too big, not UTF-8, not JSON, or not an object; line and column are told.
    """
    return parse_object(read_bounded(path, max_bytes=max_bytes), path)


def read_bounded(path: Path, *, max_bytes: int) -> bytes:
    """Read a whole small file; links are followed, anything but a regular file is refused.

    Raises:
        ModelNotFound, ModelUnsupported: the file is not there, or may not be read.
        ModelCorrupt: it is larger than `max_bytes`, or a Git LFS pointer.
    """
    try:
        with open_regular(path, follow=True) as (file, status):
            if status.st_size > max_bytes:
                raise ModelCorrupt(
                    f"{status.st_size} bytes; at most {max_bytes} are read", path=path
                )
            data = bytearray(status.st_size)
            read_exactly(file, data)
    except EOFError as err:
        raise ModelCorrupt(
            f"the file shrank while it was read: {err}", path=path, hint=_AGAIN
        ) from err
    except OSError as err:
        raise unreadable(err, path) from err
    if data.startswith(_LFS):
        raise ModelCorrupt(
            "a Git LFS pointer, not the file itself", path=path, hint="run `git lfs pull`"
        )
    return bytes(data)


def unreadable(err: OSError, path: Path) -> ModelError:
    """Return the error for a file that cannot be read: it is not there, or it may not be read."""
    if isinstance(err, PermissionError):
        return ModelUnsupported("you may not read it", path=path, hint="change its permissions")
    if isinstance(err, FileNotFoundError):
        return not_there(path)
    return ModelNotFound(f"cannot be read: {err.strerror or err}", path=path)


def not_there(path: Path) -> ModelNotFound:
    """Return the error for a missing file; a link that leads nowhere is named as what it is."""
    if path.is_symlink():
        target = str(path.readlink())
        return ModelNotFound(
            f"a link to {target!r}, which is not there", path=path, hint="fetch the model again"
        )
    return ModelNotFound("there is no such file", path=path, hint="check the name")


def parse_object(data: bytes, path: Path) -> dict[str, Any]:
    """Parse bytes as one JSON object; `path` is only for messages.

    Raises:
        ModelCorrupt: too large, not UTF-8, not JSON, or not an object.
    """
    _check_size(data, path)
    if data.startswith(_BOM):
        raise ModelCorrupt(
            "starts with a BOM (byte order mark) at line 1, column 1",
            path=path,
            hint="save it as plain UTF-8",
        )
    try:
        value = json.loads(
            data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant
        )
    except json.JSONDecodeError as err:
        message = f"not valid JSON: {err.msg} at line {err.lineno}, column {err.colno}"
        raise ModelCorrupt(message, path=path, hint=_AGAIN) from err
    except UnicodeDecodeError as err:
        raise ModelCorrupt(f"not UTF-8: byte {err.start}", path=path, hint=_AGAIN) from err
    except RecursionError as err:
        raise ModelCorrupt("JSON nested too deeply", path=path, hint=_AGAIN) from err
    except ValueError as err:
        raise ModelCorrupt(f"not valid JSON: {err}", path=path, hint=_AGAIN) from err
    if not isinstance(value, dict):
        raise ModelCorrupt(
            f"JSON {type(value).__name__} where an object is expected", path=path, hint=_AGAIN
        )
    return value


def _check_size(data: bytes, path: Path) -> None:
    if len(data) > MAX_JSON_BYTES:
        raise ModelCorrupt(
            f"JSON of {len(data)} bytes; at most {MAX_JSON_BYTES} are read", path=path, hint=_AGAIN
        )
    # Every value but the first has one of these before it; in texts they count as well.
    n_values = data.count(b",") + data.count(b"[") + data.count(b"{")
    if n_values > MAX_JSON_VALUES:
        raise ModelCorrupt(
            f"JSON of some {n_values} values; at most {MAX_JSON_VALUES} are read",
            path=path,
            hint=_AGAIN,
        )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"key {key[:80]!r} twice in one object")
            seen.add(key)
    return made


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
