"""WatchedEngine: the engine as a worker runs it, which says what it is doing while it does it.

The program must know at any time in which phase its worker is, and see that it goes on: a long prompt
is many chunks, and each is a sign of life.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgellm.engines.llamacpp import LlamaCppEngine

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from edgellm.engines.base import EngineSettings
    from edgellm.engines.llamacpp.checked import CheckedFile
    from edgellm.runtime.worker.life import Life
    from edgellm.store.state import KVState


class WatchedEngine(LlamaCppEngine):
    """An engine that tells its phases to a `Life`."""

    def __init__(
        self, path: Path, settings: EngineSettings, life: Life, checked: CheckedFile | None = None
    ) -> None:
        """Load the model; see `LlamaCppEngine`."""
        self._life = life
        life.step()
        super().__init__(path, settings, checked)

    def reserve(self, n_ctx: int) -> None:
        """Make the context, a phase of its own; see `Engine.reserve`."""
        before = self._life.phase
        self._life.enter("context")
        self._life.step()
        super().reserve(n_ctx)
        self._life.enter(before)

    def _run(self, context: Any, chunk: NDArray[np.int32], start: int, *, every: bool) -> None:
        self._life.step()
        super()._run(context, chunk, start, every=every)
        if self._life.phase != "decode":  # there the tokens are the signs
            self._life.sign()

    def capture(self) -> KVState:
        """Copy the memory out, a phase of its own; see `Engine.capture`."""
        before = self._life.phase
        self._life.enter("snapshot")
        self._life.step()
        state = super().capture()
        self._life.enter(before)
        return state

    def restore(self, state: KVState) -> None:
        """Replace the memory, a phase of its own; see `Engine.restore`."""
        before = self._life.phase
        self._life.enter("snapshot")
        self._life.step()
        super().restore(state)
        self._life.enter(before)
