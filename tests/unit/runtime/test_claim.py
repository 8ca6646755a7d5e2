"""Claim: how long a process waits for another one that reads the same prompt."""

from __future__ import annotations

from typing import Any

import pytest

from edgellm.runtime.claim import Claim
from edgellm.store.disk.flight import never


class _Store:
    """Notes how long it is asked to wait."""

    def await_other(self, *given: Any, **_: Any) -> bool:
        """Note it."""
        self.wait_s = given[2]
        return False


@pytest.mark.parametrize(
    ("n_tokens", "tokens_per_s", "least_s", "most_s"),
    [
        (30_000, None, 30, 30),
        (100, None, 2, 4),
        (30_000, 1000.0, 30, 40),
        (30_000, 50.0, 600, 800),
        (100, 1000.0, 0.1, 1.5),
    ],
)
def test_a_wait_is_about_the_own_prefill(
    n_tokens: int, tokens_per_s: float | None, least_s: float, most_s: float
) -> None:
    """And never over half a minute where nobody knows how long that takes."""
    store: Any = _Store()
    fingerprint: Any = None
    assert not Claim(store, fingerprint, range(n_tokens)).waited(tokens_per_s, never)
    assert least_s <= store.wait_s <= most_s
