"""Inquest: what the machine showed when a worker ended, put before the policy's classification.

The counters of its control group are read when work begins and again after the end: what they grew by in
between happened to it, or beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgellm.errors import WorkerDied
from edgellm.hw.cgroups import memory_group
from edgellm.hw.pressure import pressure_file, read_pressure
from edgellm.policy.deaths import DeathFacts, Verdict, classify, death_error
from edgellm.routing import Trigger
from edgellm.runtime.supervising.turn import RouteFailed

if TYPE_CHECKING:
    from pathlib import Path

    from edgellm.hw.cgroups import MemoryCounters
    from edgellm.routing import Phase
    from edgellm.runtime.worker.ending import Ending


class Inquest:
    """Finds out why the workers of one model end.

    Args:
        path: the model's file, for messages.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._group = memory_group()
        self._before: MemoryCounters = self._group.counters()

    def begin(self, pid: int | None) -> None:
        """Read the counters: something begins.

        Args:
            pid: of the worker, which may have been put into another group since it was started; None
                is this process, whose group a worker begins in.
        """
        self._group = memory_group(pid)
        self._before = self._group.counters()

    def failure(self, ending: Ending, *, available_bytes: int | None = None) -> RouteFailed:
        """Return the failed route that a worker's end is.

        Args:
            ending: how it ended.
            available_bytes: of memory, as last read while it lived.
        """
        if ending.asked in ("kill", "cancel"):  # by the watch: it was silent for too long
            return self.silent(ending.phase)
        pressure = read_pressure(pressure_file())
        facts = DeathFacts(
            returncode=None if ending.asked else ending.returncode,
            phase=ending.phase,
            log=ending.stderr_tail,
            raised=ending.exception,
            before=self._before,
            after=self._group.counters(),
            full_pressure=None if pressure is None else pressure.full_avg10,
            available_bytes=available_bytes,
        )
        verdict = classify(facts)
        error = death_error(verdict, facts, str(self._path))
        return RouteFailed(error, verdict.trigger or Trigger.WORKER_KILLED, ending.phase, verdict)

    def silent(self, phase: Phase) -> RouteFailed:
        """Return the failed route of a worker that lived, and gave no sign of it for too long."""
        said = "it gave no sign of life, and was ended"
        verdict = Verdict("crashed", Trigger.WORKER_KILLED, (said,), may_restart=phase != "load")
        error = WorkerDied(
            f"the engine's process stalled ({phase}): {said}",
            phase=phase,
            evidence=verdict.evidence,
            path=self._path,
        )
        return RouteFailed(error, Trigger.WORKER_KILLED, phase, verdict)
