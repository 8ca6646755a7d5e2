"""May a snapshot leave for, or come from, a place that machines share? Pure: facts in, a reason out.

A snapshot can be turned back into its prompt, so sending one is sending the prompt. Fetching tells the
place which prefix is wanted, by a name that only those who know the shared secret can compute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from edgellm.config import stricter
from edgellm.policy.bars import OPEN_MODES
from edgellm.routing import is_loopback_host

if TYPE_CHECKING:
    from edgellm.core import Mode

_LOCAL_SCHEMES: Final = ("unix",)


@dataclass(frozen=True, slots=True)
class Permit:
    """An answer to "may we?".

    Attributes:
        allowed: yes or no.
        reason: why not, one phrase; "" for yes.
    """

    allowed: bool
    reason: str = ""


def may_share(
    mode: Mode, url: str, *, trusted: bool, locked: Mode | None = None, is_private: bool = False
) -> Permit:
    """Return whether snapshots may be exchanged with a shared tier, by the rules of routes.

    Args:
        mode: which routes the session allows.
        url: where the tier is.
        trusted: whether the user said that this place may see prompts.
        locked: the loosest mode that the administrator allows, or None.
        is_private: whether a message of the prefix is.
    """
    mode = mode if locked is None else stricter(mode, locked)
    if mode not in OPEN_MODES:
        return Permit(allowed=False, reason=f"mode {mode.value} keeps prompts on this machine")
    if is_private:
        return Permit(allowed=False, reason="a message is private")
    if trusted or is_loopback(url):
        return Permit(allowed=True)
    return Permit(allowed=False, reason="the place is not this machine and was not called trusted")


def is_loopback(url: str) -> bool:
    """Return whether a URL leads nowhere beyond this machine: to `is_loopback_host`, or a socket file."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    if parts.scheme in _LOCAL_SCHEMES:
        return not parts.netloc
    return is_loopback_host(host)
