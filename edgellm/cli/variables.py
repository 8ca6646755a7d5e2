"""The environment variables of the command line: switches, each read and checked here alone.

A value that is neither on nor off is refused: a guess could send text out, or keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgellm.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

OFFLINE_VARIABLE: Final = "EDGELLM_OFFLINE"
HISTORY_VARIABLE: Final = "EDGELLM_HISTORY"
_OFF: Final = ("0", "false", "off")
_ON: Final = ("1", "true", "on")


def offline_variable(environ: Mapping[str, str]) -> bool:
    """Return whether `EDGELLM_OFFLINE` asks for offline mode; unset or empty, it does not.

    Raises:
        UsageError: its value is neither on nor off.
    """
    return _switch(environ, OFFLINE_VARIABLE, default=False)


def history_variable(environ: Mapping[str, str]) -> bool:
    """Return whether `EDGELLM_HISTORY` lets a chat keep typed lines; unset or empty, it does.

    Raises:
        UsageError: its value is neither on nor off.
    """
    return _switch(environ, HISTORY_VARIABLE, default=True)


def _switch(environ: Mapping[str, str], name: str, *, default: bool) -> bool:
    value = environ.get(name, "")
    word = value.strip().lower()
    if word in _ON or word in _OFF:
        return word in _ON
    if word:
        wanted = "off" if default else "on"
        raise UsageError(
            f"{name}={value!r} is none of {', '.join(_OFF)}, {', '.join(_ON)}",
            hint=f"export {name}={wanted} or unset it",
        )
    return default
