"""Who may exchange snapshots with a place that machines share."""

from __future__ import annotations

import pytest

from edgellm.core import Mode
from edgellm.policy.permits import is_loopback, may_share

HERE = (
    "redis://127.0.0.1:6379/0",
    "redis://127.9.9.9",
    "rediss://localhost:6380",
    "redis://user:pw@[::1]:6379",
    "unix:///run/redis.sock",
)
ELSEWHERE = (
    "redis://10.0.0.7:6379",
    "redis://cache.example:6379",
    "redis://localhost.example",
    "redis://0.0.0.0",
    "redis://127.0.0.1.example",
    "redis://2130706433",
    "redis://[fe80::1]:6379",
    "redis://",
    "unix://host/path",
    "redis://[bad",
)


@pytest.mark.parametrize("url", HERE)
def test_loopback_needs_no_word_of_trust(url: str) -> None:
    """A server on this machine may be used when the mode lets anything leave the process."""
    assert is_loopback(url)
    assert may_share(Mode.PREFER_LOCAL, url, trusted=False).allowed
    assert may_share(Mode.PREFER_CLOUD, url, trusted=False).allowed


@pytest.mark.parametrize("url", ELSEWHERE)
def test_elsewhere_needs_trust(url: str) -> None:
    """Any other host, and whatever cannot be read, is refused until it is called trusted."""
    assert not is_loopback(url)
    refused = may_share(Mode.PREFER_LOCAL, url, trusted=False)
    assert not refused.allowed
    assert "trusted" in refused.reason
    assert may_share(Mode.PREFER_LOCAL, url, trusted=True).allowed


@pytest.mark.parametrize("mode", [Mode.PRIVATE, Mode.OFFLINE])
@pytest.mark.parametrize("url", [*HERE, *ELSEWHERE])
def test_no_trust_opens_a_closed_mode(mode: Mode, url: str) -> None:
    """Private and offline mean what they say, whatever was trusted."""
    refused = may_share(mode, url, trusted=True)
    assert not refused.allowed
    assert mode.value in refused.reason


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("locked", list(Mode))
def test_the_lock_caps_what_a_session_allows(mode: Mode, locked: Mode) -> None:
    """Snapshots are exchanged only where both the session and the administrator are open."""
    both_open = {mode, locked} <= {Mode.PREFER_LOCAL, Mode.PREFER_CLOUD}
    permit = may_share(mode, HERE[0], trusted=True, locked=locked)
    assert both_open == permit.allowed


def test_a_private_prefix_is_not_shared() -> None:
    """A message that is private keeps its prefix here, trusted place or not."""
    permit = may_share(Mode.PREFER_CLOUD, HERE[0], trusted=True, is_private=True)
    assert (False, "a message is private") == (permit.allowed, permit.reason)
