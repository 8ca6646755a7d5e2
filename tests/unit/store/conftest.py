"""What the tests of the store share."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.fixture(scope="session")
def dead_pid() -> int:
    """Return the id of a process that is no more."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid
