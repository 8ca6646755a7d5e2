"""Place: the model on this machine, and the worker that holds it.

A worker is started when it is needed and the one before has ended, each as the descent says.
"""

from __future__ import annotations

import os
import sys
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final

from edgellm.errors import EdgeLLMError
from edgellm.policy.deaths import trigger_of
from edgellm.routing import Trigger
from edgellm.runtime.session import SessionFacts
from edgellm.runtime.supervising.descent import Descent
from edgellm.runtime.supervising.inquest import Inquest
from edgellm.runtime.supervising.starting import Start
from edgellm.runtime.supervising.turn import RouteFailed
from edgellm.runtime.worker.ending import WorkerEnded
from edgellm.runtime.worker.handle import Worker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from edgellm.policy.ladder import Rung
    from edgellm.policy.plan import Plan
    from edgellm.policy.route import LocalState
    from edgellm.routing import Phase
    from edgellm.runtime.session import SessionOptions
    from edgellm.runtime.supervising.starting import StartWorker
    from edgellm.runtime.worker.ending import Ending

LOAD_LIMIT_S: Final = 1800.0
"""The longest that a model may take to load: the largest from a slow network."""
_PATIENCE_S: Final = 1.0
_LOOK_S: Final = 0.05
_NO_FACTS: Final = SessionFacts("none", 0, 0, 0, 0, "", "", "", 0.0)


class Place:
    """One model on this machine.

    Args:
        path: of the model.
        options: as the user gave them.
        plan: made for them, or None where none could be made.
        start: starts a worker; None is `Worker.start`.

    Attributes:
        absent: why no worker can ever be, None while one may.
        descent: the plan, and the rungs below it that were taken.
        inquest: finds out why workers end.
    """

    def __init__(
        self,
        path: Path,
        options: SessionOptions,
        plan: Plan | None,
        start: StartWorker | None = None,
    ) -> None:
        self.path = path
        self.absent: EdgeLLMError | None = None
        self.descent = Descent(path, options, plan)
        self.inquest = Inquest(path)
        self._start = start or Worker.start
        self._starting: Start | None = None
        self._worker: Worker | None = None
        self._facts = _NO_FACTS
        self._has_died = self._has_loaded = False
        self._owner = os.getpid()

    @property
    def worker(self) -> Worker | None:
        """Return the worker whose model is loaded, None while there is none; it may have ended."""
        return self._worker

    @property
    def is_alive(self) -> bool:
        """Return whether a worker stands ready."""
        return self._worker is not None and self._worker.ending is None

    def facts(self) -> SessionFacts:
        """Return the settings of the worker that there is, or was last."""
        if self._worker is not None:
            self._facts = self._worker.facts()
        return self._facts

    def ready(self, cancelled: Callable[[], bool]) -> Worker | None:
        """Return a worker whose model is loaded, None when `cancelled` says so before.

        Raises:
            RouteFailed: it cannot be started, or ended since it was used last.
            EdgeLLMError: it cannot be started, and nothing follows from that.
        """
        if self._worker is not None:
            if self._worker.ending is None:
                return self._worker
            raise self.death(self._worker.ending)
        if cancelled():
            return None
        if self._starting is None:
            self._check_fit(cancelled)
            self.inquest.begin(None)
            self._starting = Start(self._start, *self.descent.opening(), self.inquest.begin)
        try:
            worker = self._starting.wait(cancelled, LOAD_LIMIT_S)
        except TimeoutError as err:
            self.end(at_once=True)
            raise self.inquest.silent("load") from err
        except WorkerEnded as ended:
            self._starting = None
            if cancelled():  # a session that is closed ends it
                return None
            raise self.death(ended.ending) from ended
        except EdgeLLMError as err:
            self._starting = None
            raise self.failure(err, "load") from err
        if worker is not None:
            self._starting, self._worker, self._has_loaded = None, worker, True
        return worker

    def _check_fit(self, cancelled: Callable[[], bool]) -> None:
        """Refuse what cannot fit before anything is loaded, unless the user insists.

        Behind a death the memory gets a moment: what died gives its own back while it goes.
        """
        until_s = monotonic() + (_PATIENCE_S if self._has_died else 0.0)
        while (refused := self.descent.refused()) is not None:
            if monotonic() >= until_s or cancelled():
                raise refused
            sleep(_LOOK_S)

    def death(self, ending: Ending, *, available_bytes: int | None = None) -> RouteFailed:
        """Return the failed route that the worker's end is; the next answer starts another.

        Args:
            ending: how it ended.
            available_bytes: of memory, as last read while it lived.
        """
        self.facts()
        self._worker, self._has_died = None, True
        return self.inquest.failure(ending, available_bytes=available_bytes)

    def failure(self, error: EdgeLLMError, phase: Phase) -> RouteFailed | EdgeLLMError:
        """Return what an error of the worker means: a failed route, or the error itself."""
        trigger = trigger_of(error, phase)
        is_forked = os.getpid() != self._owner  # and has no worker to start anew
        if trigger is None or is_forked:
            return error
        if trigger is Trigger.UNSUPPORTED and not self._has_loaded:
            self.absent = error  # else what was there is wanting for a moment, as a process may be
        return RouteFailed(error, trigger, phase)

    def state(self, failure: RouteFailed | None, needed_tokens: int = 0) -> LocalState:
        """Return what this machine can still do about a failure, None being the first choice.

        Args:
            failure: why the route taken last failed.
            needed_tokens: as `Descent.below` takes them.
        """
        if self.absent is not None:
            return "absent"
        if failure is None or failure.trigger is Trigger.CLOUD_FAILED:
            return "ready"
        if failure.trigger is Trigger.UNSUPPORTED:
            return "absent"
        if failure.verdict is not None and not failure.verdict.may_restart:
            return "exhausted"
        if failure.trigger is Trigger.WORKER_KILLED:
            return "ready"
        return "lower" if self.descent.below(failure, needed_tokens) else "exhausted"

    def lower(self, failure: RouteFailed, needed_tokens: int = 0) -> Rung | None:
        """Take what rungs a failure asks for; the worker that stands above them is ended.

        Args:
            failure: why the route taken last failed.
            needed_tokens: as `Descent.below` takes them.

        Returns:
            The last rung taken, None where the failure asks for none or none is left.
        """
        found = self.descent.below(failure, needed_tokens)
        if not found:
            return None
        self.descent.take(found)
        self.end(at_once=True)
        return found[-1]

    def grow(self, needed_tokens: int) -> bool:
        """Let a context that a rung made smaller hold more; the worker that has it is ended.

        Returns:
            False where no rung did, or it holds so many tokens; 0 needs what the plan has.
        """
        grows = self.descent.grow(needed_tokens)
        if grows:
            self.end()
        return grows

    def end(self, *, at_once: bool = False) -> None:
        """End the worker that is there or on its way; the next answer starts another.

        Args:
            at_once: do not wait for snapshots that are being written.
        """
        self.facts()
        worker, self._worker = self._worker, None
        starting, self._starting = self._starting, None
        if starting is not None:
            starting.drop()
        if worker is not None:
            if at_once or sys.is_finalizing():  # then nobody hears it close
                worker.kill()
            else:
                worker.close()
