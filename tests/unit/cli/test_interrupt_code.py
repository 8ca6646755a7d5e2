"""The exit code of a program that Ctrl-C ends, wherever it is."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, signal, sys
from edgellm.cli.interrupts import orderly_end
try:
    with orderly_end():
        exec("os.kill(os.getpid(), signal.SIGINT)\\nfor _ in range(10**7): pass")
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_an_interrupt_within_an_exec_is_no_end_by_the_signal() -> None:
    """While a dataclass is made Python runs a text, and would end by the signal though it is caught."""
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=False)
    assert (ran.returncode, ran.stderr) == (130, b"")
