"""Speeds, and the room that rests on the disk: what is known before anything was measured here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgellm.runtime.speeds import Speeds
from edgellm.store.ledger import Ledger, Use
from edgellm.store.snapshots import SnapshotStore
from edgellm.store.state import Fingerprint

if TYPE_CHECKING:
    from pathlib import Path


def test_speeds_of_before_are_those_of_the_model_once_it_is_known(tmp_path: Path) -> None:
    """Whoever asks before that is answered, and asked again later."""
    ledger = Ledger(tmp_path)
    ledger.record(Use("ab" * 32, "not_stored", prefill_tokens=1000, prefill_s=2.0))
    speeds = Speeds(ledger)
    assert speeds.prompt_tokens_per_s is None
    speeds.note_model(Fingerprint((("model", "ab" * 32),), ()))
    assert 500 == speeds.prompt_tokens_per_s


def test_what_may_be_taken_of_the_disk_is_what_the_store_says(tmp_path: Path) -> None:
    """One floor for who decides and for who writes."""
    stores = [SnapshotStore(tmp_path, floor_bytes=n) for n in (0, 10**9)]
    free = [one.free_bytes for one in stores]
    assert abs(free[0] - free[1] - 10**9) < 10**8
