"""Private messages and the shared tier: the place hears nothing of them, not even which prefix is wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgellm.cloud import redis_tier
from edgellm.core import Message, Mode, Request
from edgellm.routing import ShareOptions
from edgellm.runtime.local import open_session
from edgellm.runtime.session import SessionOptions

SYSTEM = "\n".join(f"Rule {n}: whoever reads this line knows number {n * 7}." for n in range(40))


class Place:
    """A shared place that notes what it is asked, and has nothing."""

    asked: list[str]

    def __init__(self, url: str) -> None:
        self.where = url

    def size(self, name: str) -> None:
        self.asked.append(f"size {name}")

    def write(self, name: str, _: Any) -> None:
        self.asked.append(f"write {name}")

    def close(self) -> None:
        pass


@pytest.mark.parametrize("call", ["generate", "warm"])
@pytest.mark.parametrize("private", [None, 0, 1])
def test_a_private_message_is_shared_with_nobody(
    edgellm_home: Path,
    tiny_models: Path,
    monkeypatch: pytest.MonkeyPatch,
    private: int | None,
    call: str,
) -> None:
    """However deep it lies; without one, the same conversation is asked for and sent."""
    Place.asked = []
    monkeypatch.setattr(redis_tier, "RedisTier", Place)
    share = ShareOptions("redis://far.example", b"5" * 32, trusted=True, writes_back=True)
    options = SessionOptions(isolation="none", mode=Mode.PREFER_LOCAL, snapshot_share=share)
    said = [("system", SYSTEM), ("user", "Mine."), ("assistant", "Yes."), ("user", "And?")]
    messages = tuple(
        Message(role, text, sensitivity="private" if n == private else "normal")
        for n, (role, text) in enumerate(said)
    )
    with open_session(tiny_models / "tiny-gemma3.gguf", options) as session:
        if call == "warm":
            session.warm(messages)
        else:
            session.generate(Request(messages, max_tokens=2))
    assert bool(Place.asked) == (private is None)
