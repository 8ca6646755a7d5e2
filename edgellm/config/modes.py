"""The mode that counts: what was wished, capped by the administrator's lock and `EDGELLM_OFFLINE`.

Each of the two can make it stricter, and nothing can make it looser.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edgellm.config.file import read_text, values_of
from edgellm.config.keys import KEYS, MODES, OFF, ON
from edgellm.core import Mode
from edgellm.errors import UsageError
from edgellm.paths import APP_NAME

if TYPE_CHECKING:
    from collections.abc import Sequence

LOCK_NAME: Final = "lock.toml"
OFFLINE_VARIABLE: Final = "EDGELLM_OFFLINE"


def stricter(first: Mode, second: Mode) -> Mode:
    """Return the one of two modes that allows less."""
    return min(first, second, key=lambda mode: MODES.index(mode.value))


def allowed_mode(wished: Mode, lock_files: Sequence[Path] | None = None) -> Mode:
    """Return the mode that counts: the wish, capped by the lock and by `EDGELLM_OFFLINE`.

    Raises:
        UsageError: the lock or the variable cannot be understood; nobody guesses what it meant.
    """
    locked = locked_mode(lock_files)
    if locked is not None:
        wished = stricter(wished, locked)
    word = os.environ.get(OFFLINE_VARIABLE, "").strip().lower()
    if word in ON:
        return Mode.OFFLINE
    if word and word not in OFF:
        raise UsageError(
            f"{OFFLINE_VARIABLE}={word!r} is none of {', '.join(OFF)}, {', '.join(ON)}",
            hint=f"export {OFFLINE_VARIABLE}=1 or unset it",
        )
    return wished


def locked_mode(lock_files: Sequence[Path] | None = None) -> Mode | None:
    """Return the loosest mode that the administrator allows, or None where nobody says.

    Args:
        lock_files: where to look; None means the system's own places. The strictest counts.

    Raises:
        UsageError: a lock is there and cannot be read or understood.
    """
    locked: Mode | None = None
    for path in lock_places() if lock_files is None else lock_files:
        if os.path.islink(path) and not os.path.exists(path):  # noqa: PTH110, PTH114  # these do not raise
            raise UsageError("the administrator's lock leads nowhere", path=path)
        values = values_of(read_text(path), path, keys={"mode": KEYS["mode"]})
        if "mode" in values:
            mode = Mode(values["mode"])
            locked = mode if locked is None else stricter(locked, mode)
    return locked


def lock_places() -> tuple[Path, ...]:
    """Return where an administrator's lock may lie.

    `XDG_CONFIG_DIRS` may name a further place and hides none: it could take the lock away.
    """
    import platformdirs

    named = Path(platformdirs.site_config_dir(APP_NAME, appauthor=False)) / LOCK_NAME
    if os.name != "posix" or sys.platform == "darwin":
        return (named,)
    fixed = tuple(Path(folder) / APP_NAME / LOCK_NAME for folder in ("/etc/xdg", "/etc"))
    return fixed if named in fixed else (*fixed, named)
