"""Descent: the plan a model is opened by, and the rungs below it that were taken.

A rung is taken for each time that memory ran out, and stays taken: what failed once is not tried again as
it was. Only a context that was made to hold one answer grows for another one that needs more.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edgellm.hw.memory import available_bytes
from edgellm.policy.fitting import Fitting, whole_cells
from edgellm.policy.ladder import next_lower
from edgellm.routing import Trigger
from edgellm.runtime.supervising.preflight import refusal, with_settings
from edgellm.runtime.supervising.siblings import smaller_siblings
from edgellm.runtime.supervising.turn import RouteFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgellm.policy.ladder import Artifact, Rung
    from edgellm.policy.plan import Plan
    from edgellm.runtime.session import SessionOptions

DEFAULT_CTX: Final = 4096
_LOWERS: Final = (Trigger.NO_FIT, Trigger.LOAD_OOM, Trigger.WORKER_DIED, Trigger.DECODE_FATAL)
"""What a rung may help. Contexts grow by themselves as far as they can."""


class Descent:
    """One model's way down.

    Args:
        path: of the model.
        options: as the user gave them.
        plan: made for them, or None where none could be made: then there is no way down.
    """

    def __init__(self, path: Path, options: SessionOptions, plan: Plan | None) -> None:
        self._path = path
        self._options = options
        self._plan = plan
        self._rungs: list[Rung] = []
        self._smaller: tuple[Artifact, ...] | None = None

    @property
    def backend(self) -> str:
        """Return what computes: `cpu` or `gpu`."""
        return "gpu" if self._plan is not None and self._plan.settings.n_gpu_layers else "cpu"

    @property
    def n_ctx(self) -> int:
        """Return the tokens of the context that a worker begins with."""
        planned = DEFAULT_CTX if self._plan is None else self._plan.settings.n_ctx
        return self._options.n_ctx or planned

    def opening(self) -> tuple[Path, SessionOptions]:
        """Return what the next worker is opened with."""
        other = next((rung.model_path for rung in reversed(self._rungs) if rung.model_path), None)
        options = self._options
        if self._plan is not None:
            settings = self._rungs[-1].settings if self._rungs else None
            options = with_settings(options, self._plan, settings)
        return Path(other) if other else self._path, options

    def fits(self, rung: Rung | None = None) -> bool:
        """Return whether what is tried next, or a rung, fits what is free now; True if unknown."""
        plan = self._plan
        if plan is None:
            return True
        last = rung or (self._rungs[-1] if self._rungs else None)
        fitting = _fitting(plan)
        if last is None:
            return fitting.plan().fits
        return last.model_path is not None or fitting.fits(last.settings)

    def refused(self) -> RouteFailed | None:
        """Return the failure of what cannot fit, None where it may be tried."""
        plan = self._plan
        if plan is None or self._options.force or self.fits():
            return None
        return RouteFailed(refusal(_fitting(plan).plan(), self._path), Trigger.NO_FIT, "load")

    def below(self, failure: RouteFailed, needed_tokens: int = 0) -> list[Rung]:
        """Return the rungs to be taken for a failure: one, or as many as it takes until it fits.

        Args:
            failure: of the answer, or of the model's start.
            needed_tokens: that the context must hold; 0 where that is not known, and it stays.
        """
        if failure.trigger not in _LOWERS or (failure.verdict and not failure.is_memory):
            return []
        found: list[Rung] = []
        while (rung := self._next([*self._rungs, *found], needed_tokens)) is not None:
            found.append(rung)
            if failure.trigger is not Trigger.NO_FIT or self.fits(rung):
                return found
        return []

    def take(self, rungs: Sequence[Rung]) -> None:
        """Go down."""
        self._rungs += rungs

    def is_short(self, needed_tokens: int) -> bool:
        """Return whether a rung made the context too small for an answer; 0 needs the plan's own."""
        if self._plan is None or not self._rungs:
            return False
        n_ctx = self._rungs[-1].settings.n_ctx
        return n_ctx < self._plan.settings.n_ctx and not 0 < needed_tokens <= n_ctx

    def grow(self, needed_tokens: int) -> bool:
        """Let a context that is short hold what an answer needs; False where it is not.

        It doubles at least, so that a conversation that goes on starts few workers.
        """
        if self._plan is None or not self.is_short(needed_tokens):
            return False
        last, most = self._rungs[-1], self._plan.settings.n_ctx
        wanted = max(whole_cells(needed_tokens), 2 * last.settings.n_ctx) if needed_tokens else most
        settings = dataclasses.replace(last.settings, n_ctx=min(wanted, most))
        self._rungs[-1] = dataclasses.replace(last, settings=settings)
        return True

    def _next(self, rungs: Sequence[Rung], needed_tokens: int) -> Rung | None:
        if self._plan is None:
            return None
        rung = next_lower(self._plan, rungs, needed_tokens=needed_tokens)
        if rung is not None:
            return rung
        if self._smaller is None:  # only now: their headers have to be read
            self._smaller = smaller_siblings(self._path)
        return next_lower(self._plan, rungs, self._smaller)


def _fitting(plan: Plan) -> Fitting:
    """Return the plan to be made anew, with the memory that is free now."""
    now = dataclasses.replace(plan.machine, available_bytes=available_bytes())
    return Fitting(plan.shape, plan.wishes, now, 0)
