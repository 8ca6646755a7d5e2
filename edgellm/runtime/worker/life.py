"""Life: what a worker is doing, told to the program as it changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgellm.runtime.worker.messages import StepMade, to_wire

if TYPE_CHECKING:
    from edgellm.routing import Phase
    from edgellm.runtime.worker.faults import Fault
    from edgellm.runtime.worker.frames import Sender


class Life:
    """What the worker is doing, as it tells the program.

    Args:
        sender: where frames go.
        fault: what is to fail on purpose, or None.

    Attributes:
        call: the number of the answer being made, 0 before the first.
        phase: what is being done.
    """

    def __init__(self, sender: Sender, fault: Fault | None = None) -> None:
        self._sender = sender
        self._fault = fault
        self.call = 0
        self.phase: Phase = "load"

    def enter(self, phase: Phase) -> None:
        """Say that another phase begins."""
        if phase != self.phase:
            self.phase = phase
            self.sign()

    def sign(self) -> None:
        """Give a sign of life."""
        self._sender.send(to_wire(StepMade(self.call, self.phase)))

    def step(self) -> None:
        """Count a step of this phase; the place where faults happen."""
        if self._fault is not None:
            self._fault.step(self.phase)
