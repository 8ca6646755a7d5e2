"""Watch: looks after an answer while the program waits for its next piece.

Only time spent waiting counts: a reader that thinks between two pieces is no slow model.
"""

from __future__ import annotations

import threading
from time import monotonic
from typing import TYPE_CHECKING, Final

from edgellm.hw.memory import available_bytes
from edgellm.hw.pressure import pressure_file, read_pressure
from edgellm.policy.progress import Progress, pace, with_sign
from edgellm.threads import Started

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from edgellm.policy.progress import Pace

LOOK_S: Final = 0.5


class Watch:
    """A thread that looks at one answer twice a second.

    Args:
        on_pace: called in that thread with every word but `fine`.
        on_late: called once when `deadline_s` has passed without a token.
        deadline_s: from now on, or None.
        on_blind: called where the system starts no thread to look from.
        clock: seconds that only grow.

    Attributes:
        full_pressure: of memory, in percent, as last read; None is unknown.
        available_bytes: of memory, as last read; None is unknown.
    """

    def __init__(
        self,
        on_pace: Callable[[Pace], None],
        on_late: Callable[[], None],
        deadline_s: float | None = None,
        *,
        on_blind: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._on_pace = on_pace
        self._on_blind = on_blind
        self._on_late = on_late
        self._clock = clock
        self._late_s = None if deadline_s is None else clock() + deadline_s
        self._waited_s = 0.0
        self._since_s: float | None = None
        self._progress = Progress.begin(0.0)
        self._end = threading.Event()
        self.full_pressure: float | None = None
        self.available_bytes: int | None = None

    def wait(self) -> None:
        """Note that the next piece is being waited for."""
        self._since_s = self._clock()

    def came(self, n_tokens: int) -> None:
        """Note that something came; `n_tokens` of the answer, or 0 for a sign of life."""
        self._waited_s, self._since_s = self._now_s(), None
        self._progress = with_sign(self._progress, self._waited_s, n_tokens=n_tokens)
        if n_tokens:
            self._late_s = None

    def _now_s(self) -> float:
        since_s = self._since_s
        return self._waited_s if since_s is None else self._waited_s + self._clock() - since_s

    def _run(self) -> None:
        path = pressure_file()
        while not self._end.wait(LOOK_S):
            pressure = read_pressure(path)
            self.full_pressure = None if pressure is None else pressure.full_avg10
            self.available_bytes = available_bytes()
            self.look()

    def look(self) -> None:
        """Look once, and say what is to be said."""
        if self._since_s is None:
            return
        if self._late_s is not None and self._clock() > self._late_s:
            self._late_s = None
            self._on_late()
        word = pace(self._progress, self._now_s(), self.full_pressure)
        if word != "fine":
            self._on_pace(word)

    def __enter__(self) -> Watch:
        try:
            Started(self._run, "edgellm-watch")
        except RuntimeError:  # "can't start new thread"
            self._on_blind()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
