"""Where edgellm keeps its files: `EDGELLM_HOME`, or the platform's own folders.

The environment is read here and nowhere else for this subject. Nothing is created by asking.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from edgellm.errors import UsageError
from edgellm.units import parse_bytes

APP_NAME = "edgellm"
HOME_VARIABLE = "EDGELLM_HOME"
CAP_VARIABLE = "EDGELLM_SNAPSHOTS_MAX"
ENCRYPT_VARIABLE = "EDGELLM_SNAPSHOT_ENCRYPT"
KEY_FILE_VARIABLE = "EDGELLM_SNAPSHOT_KEY_FILE"
SHARE_SECRET_VARIABLE = "EDGELLM_SHARE_SECRET_FILE"  # noqa: S105  # names a file
NO_CAP: Final = 1 << 62
"""In place of the most bytes that snapshots may take: no limit but the disk's."""
NOWHERE: Final = Path("/nonexistent")
"""The home of users who have none, by Debian's custom; no such user can make it."""


def home_dir() -> Path:
    """Return the folder that holds configuration, history and, below it, the snapshots.

    Below `NOWHERE` for a user without a home.

    Raises:
        UsageError: `EDGELLM_HOME` is set to something that is not an absolute folder path.
    """
    chosen = os.environ.get(HOME_VARIABLE)
    if not chosen:
        import platformdirs

        try:
            folder = Path(platformdirs.user_data_dir(APP_NAME, appauthor=False))
        except RuntimeError:  # a user whom nobody knows; older versions leave `~` as it stands
            return NOWHERE / APP_NAME
        return folder if folder.is_absolute() else NOWHERE / APP_NAME
    try:
        path = Path(chosen).expanduser()
        is_other = path.exists() and not path.is_dir()
    except (OSError, RuntimeError) as err:  # RuntimeError: `~name` of a user who does not exist
        raise UsageError(f"{HOME_VARIABLE}={chosen!r} cannot be used: {err}") from err
    if not path.is_absolute():
        raise UsageError(
            f"{HOME_VARIABLE}={chosen!r} is not an absolute path",
            hint=f"export {HOME_VARIABLE}=/some/folder",
        )
    if is_other:
        raise UsageError(f"{HOME_VARIABLE}={chosen!r} is not a folder")
    return path


def snapshots_dir() -> Path:
    """Return the root folder of the snapshot store."""
    return home_dir() / "snapshots"


def snapshots_cap_bytes() -> int | None:
    """Return the most that snapshots may take, None where nobody has said, `NO_CAP` for `off`.

    Raises:
        UsageError: `EDGELLM_SNAPSHOTS_MAX` is no number of bytes.
    """
    chosen = os.environ.get(CAP_VARIABLE)
    return parse_cap(chosen, CAP_VARIABLE) if chosen else None


def parse_cap(text: str, name: str) -> int:
    """Read a number of bytes, or `off` for no limit.

    Args:
        text: such as `20GB`.
        name: of the flag or variable, for the error.

    Raises:
        UsageError: it is neither.
    """
    if text.strip().lower() == "off":
        return NO_CAP
    try:
        return min(parse_bytes(text), NO_CAP)
    except ValueError as err:
        raise UsageError(f"{name}: {err}", hint="write it as `20GB`, `500MB` or `off`") from err


def history_file() -> Path:
    """Return the file that keeps the lines typed in `edgellm chat`."""
    return home_dir() / "history"


def cache_dir() -> Path:
    """Return the folder for what may be deleted at any time, such as content ids."""
    return home_dir() / "cache"
