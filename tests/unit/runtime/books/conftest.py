"""What the tests of all books share: a clock that they turn."""

from __future__ import annotations

import pytest


class Clock:
    """A clock that tests turn, in seconds since 1970."""

    now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    """Return a clock that stands still until it is turned."""
    return Clock()
