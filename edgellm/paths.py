"""Where edgellm keeps its files: `EDGELLM_HOME`, or the platform's own folders.

The environment is read here and nowhere else for this subject. Nothing is created by asking.
"""

from __future__ import annotations

import os
from pathlib import Path

from edgellm.errors import UsageError

APP_NAME = "edgellm"
HOME_VARIABLE = "EDGELLM_HOME"


def home_dir() -> Path:
    """Return the folder that holds configuration, history and, below it, the snapshots.

    Raises:
        UsageError: `EDGELLM_HOME` is set to something that is not an absolute folder path.
    """
    chosen = os.environ.get(HOME_VARIABLE)
    if not chosen:
        import platformdirs

        return Path(platformdirs.user_data_dir(APP_NAME, appauthor=False))
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


def history_file() -> Path:
    """Return the file that keeps the lines typed in `edgellm chat`."""
    return home_dir() / "history"


def cache_dir() -> Path:
    """Return the folder for what may be deleted at any time, such as content ids."""
    return home_dir() / "cache"
