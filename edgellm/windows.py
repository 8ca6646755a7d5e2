r"""What Windows asks of paths: names it cannot keep, and paths over its old limit.

Pure functions over text, so that they can be tested anywhere. Nothing here is called elsewhere than
on Windows but by tests and by what must not make such names.

Source: "Naming Files, Paths, and Namespaces", Microsoft Learn (reserved names, `\\?\`).
"""

from __future__ import annotations

import ntpath
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from os import PathLike

_FORBIDDEN: Final = '<>:"/\\|?*'
_DEVICES: Final = frozenset(
    [
        *("CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"),
        *(f"{port}{digit}" for port in ("COM", "LPT") for digit in "0123456789\u00b9\u00b2\u00b3"),
    ]
)
_DIRECT: Final = ("\\\\?\\", "\\\\.\\")
_LONG_CHARACTERS: Final = 240
"""Below the limit of 260 by what a folder must leave for a name of eight and three in it."""


def name_problem(name: str) -> str:
    """Return why Windows cannot keep a file under a name, or "" where it can.

    A colon would write into a hidden stream of another file, a device name into the device, and a
    blank or a dot at the end is dropped, which makes it another name.
    """
    for character in name:
        if character in _FORBIDDEN or ord(character) < ord(" "):
            return f"{character!r} cannot be in a name"
    if name.partition(".")[0].rstrip(" ").upper() in _DEVICES:
        return "the name of a device"
    if name.endswith((" ", ".")):
        return "a name cannot end with a blank or a dot"
    return ""


def long_path(path: str) -> str:
    r"""Return an absolute path in the form that may have more than 260 characters, `\\?\...`.

    A short path, a relative one and one that already has the form come back as they are.
    """
    drive, rest = ntpath.splitdrive(path)
    is_absolute = bool(drive) and rest[:1] in ("\\", "/")
    if len(path) < _LONG_CHARACTERS or not is_absolute or path.startswith(_DIRECT):
        return path
    path = ntpath.normpath(path)
    if path.startswith("\\\\"):
        return "\\\\?\\UNC\\" + path[2:]
    return "\\\\?\\" + path


def system_path(path: str | PathLike[str], os_name: str = os.name) -> str:
    """Return a path as the system's calls take it, however long it is."""
    text = os.fspath(path)
    return long_path(ntpath.abspath(text)) if os_name == "nt" else text
