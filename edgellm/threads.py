"""Threads where memory may be out: one that cannot begin is an error, and nobody waits for it for ever.

`threading.Thread.start` waits until the new thread says that it runs. A thread that finds no memory to
say so ends without a word, and who started it never returns. So do those that wait for its work.
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_LOOK_S: Final = 0.02


class _Sign:
    """Lives as long as a thread that was given it, whatever that thread dies of."""

    __slots__ = ("__weakref__",)


class Started:
    """A daemon thread, which has begun when this is made.

    What its work raises goes to `threading.excepthook`, as from any thread.

    Args:
        target: its work.
        name: what it is for.

    Raises:
        RuntimeError: the system starts no thread, one ended before it began, or the program is
            ending.
    """

    def __init__(self, target: Callable[[], object], name: str) -> None:
        self.name = name
        if sys.is_finalizing():  # then a thread is never heard of
            raise RuntimeError("the program is ending")
        # Locks, not events: to let go of one takes no memory.
        self._begun, self._ended = _thread.allocate_lock(), _thread.allocate_lock()
        self._begun.acquire()
        self._ended.acquire()
        sign = _Sign()
        lives = weakref.ref(sign)
        self._pid = os.getpid()
        _thread.start_new_thread(self._run, (target, sign))
        del sign
        while not self._begun.acquire(timeout=_LOOK_S):
            if lives() is None:
                if self._begun.acquire(blocking=False):  # it did all its work since the look before
                    break
                raise RuntimeError("a new thread ended before it began: there is no memory for it")

    def prepare(self) -> None:
        """Do, in the new thread, what its start fails without."""

    def _run(self, target: Callable[[], object], sign: _Sign) -> None:  # noqa: ARG002  # it is held
        self.prepare()
        self._begun.release()
        try:
            target()
        except BaseException as err:  # noqa: BLE001  # no error of a thread is anybody else's
            if not isinstance(err, SystemExit):
                told = (type(err), err, err.__traceback__, None)
                threading.excepthook(threading.ExceptHookArgs(told))
        finally:
            self._ended.release()

    @property
    def is_alive(self) -> bool:
        """Return whether its work goes on."""
        return not self.join(0)

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for its end; return whether it has come. In a forked child there is no such thread."""
        if os.getpid() != self._pid:
            return True
        has_ended = self._ended.acquire(timeout=-1 if timeout_s is None else max(timeout_s, 0))
        if has_ended:
            self._ended.release()
        return has_ended
