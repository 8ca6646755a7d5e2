"""What strace saw of a process's network calls, where no network namespace can be made.

Only the internet families count: a name server is asked over them as well. A worker tries on purpose
whether it can open a socket, so calls that were denied are told apart from those that got one.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_LINE: Final = re.compile(r"(?:\[pid +)?(\d+)\]? +(.*)")
_UNFINISHED: Final = " <unfinished ...>"
_RESUMED: Final = re.compile(r"<\.\.\. \w+ resumed>(.*)")
_INTERNET: Final = re.compile(r"\bAF_INET6?\b|\bPF_INET6?\b")
_DENIED: Final = re.compile(r"= -1 EPERM")


@dataclass(frozen=True, slots=True)
class Traced:
    """The network calls of a process and all that it started.

    Attributes:
        n_calls: of all families.
        internet: calls of the internet families that were not denied, as strace writes them.
        n_denied: calls of those families that got EPERM.
    """

    n_calls: int
    internet: tuple[str, ...]
    n_denied: int


def strace_command(log: Path) -> list[str] | None:
    """Return the beginning of a command line that is traced, None where there is no strace.

    Args:
        log: file for what is seen.
    """
    strace = shutil.which("strace")
    if strace is None:
        return None
    return [strace, "-f", "-qq", "-e", "trace=network", "-e", "signal=none", "-o", str(log)]


def read_trace(lines: Sequence[str]) -> Traced:
    """Read what strace wrote with `-f -o`."""
    calls = list(_calls(lines))
    ours = [call for call in calls if _INTERNET.search(call)]
    denied = [call for call in ours if _DENIED.search(call)]
    return Traced(len(calls), tuple(call for call in ours if call not in denied), len(denied))


def _calls(lines: Sequence[str]) -> Iterator[str]:
    """Give each call on one line; those that were interrupted by others are joined by their process."""
    begun: dict[str, str] = {}
    for line in lines:
        found = _LINE.fullmatch(line.rstrip())
        if found is None:
            continue
        process, said = found.groups()
        resumed = _RESUMED.fullmatch(said)
        if said.endswith(_UNFINISHED):
            begun[process] = said.removesuffix(_UNFINISHED)
        elif resumed is not None:
            yield begun.pop(process, "") + resumed[1]
        elif not said.startswith(("+++", "---")):
            yield said
    yield from begun.values()  # of processes that were killed within a call
