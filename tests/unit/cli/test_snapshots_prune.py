"""`edgellm snapshots prune`: down to a size, the least recently used first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from edgellm.store.snapshots import Saved, SnapshotStore

if TYPE_CHECKING:
    from pathlib import Path


def test_a_store_that_is_not_there_stays_so(cli: Any, edgellm_home: Path) -> None:
    """Nothing to remove, nothing made."""
    result = cli("snapshots", "prune")
    assert result.code == 0
    assert result.out.splitlines()[0].split() == ["snapshots", "removed:", "0"]
    assert not edgellm_home.exists()


def test_what_is_over_the_size_goes(cli: Any, edgellm_home: Path, snapshot_files: Any) -> None:
    """The one that was used since stays."""
    store = SnapshotStore(edgellm_home / "snapshots")
    states = {n: snapshot_files.state(n) for n in (1500, 1501, 1502)}
    n_bytes = 0
    for n, state in states.items():
        saved = store.save(snapshot_files.FINGERPRINT, range(n), state)
        assert isinstance(saved, Saved)
        n_bytes = saved.n_bytes
    store.lookup(snapshot_files.FINGERPRINT, range(1500))
    (line,) = cli("snapshots", "prune", "--max", f"{2 * n_bytes}B", "--json").lines
    assert (line["type"], line["n_snapshots"], line["n_orphans"]) == ("pruned", 2, 0)
    assert line["freed_bytes"] >= 2 * (n_bytes - 50_000)
    assert [entry.n_tokens for entry in store.entries()] == [1500]


def test_the_variable_is_the_size_where_none_is_given(
    cli: Any, edgellm_home: Path, snapshot_files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for the saves themselves."""
    SnapshotStore(edgellm_home / "snapshots").save(
        snapshot_files.FINGERPRINT, range(1500), snapshot_files.state(1500)
    )
    monkeypatch.setenv("EDGELLM_SNAPSHOTS_MAX", "1kB")
    assert "snapshots removed: 1\n" in cli("snapshots", "prune").out
    assert "snapshots removed: 0\n" in cli("snapshots", "prune", "--max", "off").out


@pytest.mark.parametrize("value", ["lots", "-1", "5 apples"])
def test_a_size_that_is_none_is_refused(cli: Any, value: str) -> None:
    """The message names the flag and what it takes."""
    result = cli("snapshots", "prune", f"--max={value}")
    assert result.code == 2
    assert f"--max: {value!r} is no number of bytes" in result.err
    assert "`20GB`" in result.err
