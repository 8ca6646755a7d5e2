"""The program that a worker is: `python -m edgellm.runtime.worker PARENT VERSION`.

It is started by `spawning.py` with pipes for its stdin and stdout, which it takes for itself: what a
library prints goes to stderr and damages no frame.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
from typing import TYPE_CHECKING, NoReturn

from edgellm.runtime.worker.hardening import harden

if TYPE_CHECKING:
    from types import TracebackType


def main() -> int:
    """Serve the program that started this process; return the exit code."""
    orders_fd, frames_fd = _take_pipes()
    harden(int(sys.argv[1]))
    _say_little()
    sys.path.append(sys.path.pop(0))  # where this package lies comes behind the interpreter's own

    from edgellm.runtime.worker.faults import read_fault
    from edgellm.runtime.worker.frames import Sender
    from edgellm.runtime.worker.life import Life
    from edgellm.runtime.worker.serving import Worker

    sender = Sender(frames_fd)
    life = Life(sender, read_fault(frames_fd=frames_fd))
    # Never closed: a thread reads there until the process ends.
    worker = Worker(os.fdopen(orders_fd, "rb"), sender, life)
    is_same = sys.argv[2] == f"{sys.version_info.major}.{sys.version_info.minor}"
    return worker.run() if is_same else worker.refuse(sys.argv[2])


def _take_pipes() -> tuple[int, int]:
    """Return descriptors of the two pipes; stdin is then empty, and stdout is stderr."""
    orders_fd, frames_fd = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return orders_fd, frames_fd


def _say_little() -> None:
    """Let crashes say where they happened, and no exception what it was about: that may be a prompt."""
    faulthandler.enable(all_threads=False)
    sys.excepthook = lambda kind, _, trace: _break(kind, trace)
    threading.excepthook = lambda args: _say(args.exc_type, args.exc_traceback)
    sys.unraisablehook = lambda args: _say(args.exc_type, args.exc_traceback)


def _break(kind: type[BaseException], trace: TracebackType | None) -> NoReturn:
    """End the process after an error that nobody foresaw."""
    from edgellm.runtime.worker.serving import BROKE_CODE

    _say(kind, trace)
    os._exit(BROKE_CODE)


def _say(kind: type[BaseException], trace: TracebackType | None) -> None:
    """Write down what was raised, and where."""
    where = ""
    while trace is not None:
        where = f" at {os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"  # noqa: PTH119  # import little
        trace = trace.tb_next
    with contextlib.suppress(OSError):
        os.write(2, f"{kind.__name__}{where}\n".encode())


if __name__ == "__main__":
    # No tidying up: what is in memory goes with the process, and threads may be inside the engine.
    os._exit(main())
