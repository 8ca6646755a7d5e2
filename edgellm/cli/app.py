"""The entry of `edgellm`, so small that Ctrl-C and closed streams are met before the first import.

All else is in `commands`, which is imported inside `main`: an interrupt there is quiet too.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from edgellm.errors import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from collections.abc import Sequence

_STANDARD_STREAMS: Final = (0, 1, 2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: what follows the program's name; None takes the process's.
    """
    try:
        _fill_closed_streams()
        from edgellm.cli import streams
        from edgellm.cli.early import early_worker
        from edgellm.cli.interrupts import Terminated, orderly_end

        streams.prepare(sys.stdout, sys.stderr)
        arguments = sys.argv[1:] if arguments is None else list(arguments)
        try:
            with orderly_end(), early_worker(arguments):
                from edgellm.cli.commands import run_command

                return run_command(arguments)
        except Terminated as end:
            return end.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _fill_closed_streams() -> None:
    """Open the null device where a standard stream is closed.

    Else the next file that is opened, a model or a snapshot, would get the number of stdout or
    stderr, and what a library in C prints would land in it. Python's own `sys.stdin` and
    `sys.stdout` stay None: that nobody writes or reads is for the commands to judge.
    """
    for number in _STANDARD_STREAMS:
        if not _is_open(number):
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
