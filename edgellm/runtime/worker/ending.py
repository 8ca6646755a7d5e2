"""How a worker ended: the facts from which its death is classified elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from edgellm.routing import Phase

Asked = Literal["", "close", "cancel", "kill", "damage"]
"""Why this program ended its worker; "" where it did not.

`close`: it did not close in time; `cancel`: it did not hear a cancel; `kill`: `Worker.kill`; `damage`:
what it sent was no frame.
"""


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a worker.

    Attributes:
        returncode: of the process, negative for a signal.
        phase: what it was doing, as it last said.
        stderr_tail: the last 8 KiB of what it and its libraries wrote there.
        exception: what it could not go on after, in its own last words, or "".
        ran_s: how long it ran.
        asked: why this program ended it, or "".
        damage: what was wrong with what it sent, or "".
        was_closed: whether it ended in order, because it was told to.
    """

    returncode: int
    phase: Phase
    stderr_tail: str
    exception: str
    ran_s: float
    asked: Asked = ""
    damage: str = ""
    was_closed: bool = False


class WorkerEnded(Exception):
    """The worker ended while something was wanted of it.

    Attributes:
        ending: the facts.
    """

    def __init__(self, ending: Ending) -> None:
        what = ending.damage or ending.exception or f"exit code {ending.returncode}"
        super().__init__(f"the worker ended in phase {ending.phase}: {what}")
        self.ending = ending
