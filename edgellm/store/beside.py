"""Beside: a call in a thread of its own while the `with` block does its half of the work."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any


class Beside:
    """Runs a call beside a block; both are done when the block is left.

    What the call raises is raised at the end of the block, unless the block has raised something
    itself. Where no thread can be started, the call is made then as well.

    Args:
        call: what is to be done.
        args: its arguments.
    """

    def __init__(self, call: Callable[..., None], *args: Any) -> None:
        self._call = call
        self._args = args
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Beside:
        """Start the call."""
        thread = threading.Thread(target=self._run, name="edgellm-snapshot-reader", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # "can't start new thread"
            return self
        self._thread = thread
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Wait for the call, or make it, and raise what it raised."""
        if self._thread is not None:
            self._thread.join()
        elif kind is None:
            self._run()
        if kind is None and self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._call(*self._args)
        except BaseException as err:  # noqa: BLE001  # carried over to the thread that waits
            self._error = err
