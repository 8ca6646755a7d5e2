"""The text of a file of settings: read within bounds, checked key by key, edited in place."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from edgellm.config.keys import KEYS, checked, key_of
from edgellm.errors import UsageError
from edgellm.fileio import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from edgellm.config.keys import Key, Value

_MAX_FILE_BYTES: Final = 1 << 20


def read_text(path: Path) -> str:
    """Return a small file's text, "" where there is none.

    Raises:
        UsageError: it is there and cannot be read, is too long, or is no UTF-8.
    """
    try:
        with open_regular(path, follow=True) as (file, status):
            if status.st_size > _MAX_FILE_BYTES:
                raise UsageError(f"a file of settings has {status.st_size} bytes", path=path)
            return file.read(_MAX_FILE_BYTES).decode()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, UnicodeDecodeError) as err:
        raise UsageError(f"cannot be read: {err}", path=path) from err


def values_of(text: str, path: Path, keys: Mapping[str, Key] = KEYS) -> dict[str, Value]:
    """Return the settings in a file's text, checked, by dotted key.

    Raises:
        UsageError: it is no TOML, or a key or a value is wrong; names the line where it can.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as err:
        raise UsageError(f"is no TOML: {err}", path=path) from err
    values: dict[str, Value] = {}
    for name, value in _flat(document):
        where = f"{path}:{_line_of(text, name)}"
        try:
            values[name] = checked(name, key_of(name, keys), value)
        except UsageError as err:
            raise UsageError(err.message, path=where, hint=err.hint) from err
    return values


def _flat(document: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Give the settings of a document; a table that is none of ours is a wrong key itself."""
    groups = {name.partition(".")[0] for name in KEYS if "." in name}
    for name, value in document.items():
        if name in groups and isinstance(value, dict):
            yield from ((f"{name}.{inner}", one) for inner, one in value.items())
        else:
            yield name, value


def _line_of(text: str, name: str) -> int:
    """Return the line that sets a key, as near as a look at the text can tell; 1 for unknown."""
    last = name.rpartition(".")[2]
    for n, line in enumerate(text.splitlines(), start=1):
        if line.split("=")[0].strip().strip("\"'").rpartition(".")[2] == last:
            return n
    return 1


def edited(text: str, name: str, value: Value | None, path: Path) -> str:
    """Return a file's text with one key set, or taken out."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    group, _, last = name.rpartition(".")
    try:
        document: Any = tomlkit.parse(text)
        if group and value is not None and group not in document:
            document[group] = tomlkit.table()
        table = document.get(group, {}) if group else document
        if value is None:
            table.pop(last, None)
        else:
            table[last] = value
        return tomlkit.dumps(document)
    except (TOMLKitError, TypeError, AttributeError) as err:  # the last two: the group is no table
        raise UsageError(f"cannot be edited: {err}", path=path) from err
