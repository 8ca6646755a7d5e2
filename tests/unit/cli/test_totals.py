"""`edgellm stats`: what the snapshots did, model by model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgellm.store.ledger import Ledger, Use
from edgellm.store.snapshots import Saved, SnapshotStore
from edgellm.store.state import Fingerprint

if TYPE_CHECKING:
    from pathlib import Path

MODEL, OTHER = "ab" * 32, "cd" * 32


def _fill(root: Path, files: Any) -> int:
    """Record three requests, and keep a snapshot of one model; return its bytes."""
    ledger = Ledger(root)
    ledger.record(Use(MODEL, "not_stored", prefill_tokens=1000, prefill_s=10.0))
    ledger.record(Use(MODEL, "hit", 1, 900, 100, 1.0, 0.5, 5_000_000))
    ledger.record(Use(OTHER, "live", 1, 50))
    fingerprint = Fingerprint(hard=(("model", MODEL), ("name", "tiny")))
    saved = SnapshotStore(root).save(fingerprint, range(12), files.state())
    assert isinstance(saved, Saved)
    return saved.n_bytes


def test_nothing_was_asked_yet(cli: Any, edgellm_home: Path) -> None:
    """Said on stderr; no folder is made."""
    result = cli("stats")
    assert (result.code, result.out, result.err) == (0, "", "no requests yet\n")
    assert not edgellm_home.exists()


def test_the_table_has_a_line_for_each_model(
    cli: Any, edgellm_home: Path, snapshot_files: Any
) -> None:
    """With the share of hits, what they saved, and the name that the snapshots know."""
    _fill(edgellm_home / "snapshots", snapshot_files)
    heading, first, second = cli("stats").out.splitlines()
    assert heading.split()[:4] == ["MODEL", "REQUESTS", "HITS", "RATE"]
    assert first.split()[:8] == ["tiny", MODEL[:12], "2", "1", "50%", "900", "8.5", "s"]
    assert second.split()[:6] == [OTHER[:12], "1", "0", "-", "0", "-"]


def test_as_json(cli: Any, edgellm_home: Path, snapshot_files: Any) -> None:
    """Whole ids, plain numbers, and null for a speed that was not measured."""
    n_bytes = _fill(edgellm_home / "snapshots", snapshot_files)
    first, second = cli("stats", "--json").lines
    assert (first["type"], first["model"], first["name"]) == ("stats", MODEL, "tiny")
    assert first["codes"] == {"hit": 1, "not_stored": 1}
    assert (first["saved_s"], first["disk_bytes"]) == (8.5, n_bytes)
    assert (second["saved_s"], second["prefill_tokens_per_s"]) == (None, None)
