"""LocalSession.warm: the prefix is read and on disk when it returns, and says what happened."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

from edgellm.core import Message, Tier
from edgellm.errors import EngineFailed, UsageError
from edgellm.runtime.session import SessionOptions
from edgellm.store.disk.room import LOCK_NAME
from edgellm.store.snapshots import SnapshotStore

OFF = SessionOptions(snapshot=Tier.OFF)


@pytest.fixture
def system(ask) -> tuple[Message, ...]:
    """Give the system prompt alone."""
    return tuple(ask("Why?").messages[:1])


@pytest.mark.parametrize("memory", ["dense", "window"])
def test_the_next_start_is_warm(start, ask, store, system, memory: str) -> None:
    """Once written, and from then on a hit, with the same name whatever is asked."""
    codes = []
    for _ in range(2):
        session, _ = start(store=store, memory=memory)
        use = session.warm(system)
        codes.append(use.code)
        assert [use.key] == [info.key for info in store.entries()]
        session.close()
    session, engine = start(store=store, memory=memory)
    done = session.generate(ask("Why?"))
    assert ["stored", "hit"] == codes
    assert ("hit", use.key) == (done.snapshot.code, done.snapshot.key)
    assert 1 < len(engine.decoded)
    assert all(start > 0 for start, _, _ in engine.decoded)


@pytest.mark.parametrize("options", [None, OFF])
def test_the_session_goes_on_from_what_it_read(start, ask, store, system, options) -> None:
    """The first answer decodes what a cold run decodes behind the boundary, with the same bits."""
    session, engine = start(store=store, options=options)
    session.warm(system)
    n_calls = len(engine.decoded)
    done = session.generate(ask("Why?"))
    fresh, cold = start(options=OFF)
    assert fresh.generate(ask("Why?")).text == done.text
    assert cold.decoded[1:] == engine.decoded[n_calls:]


def test_what_cannot_be_kept_is_said(start, store, system) -> None:
    """Off, nothing stable, too short: each with its code, and no failure."""
    cases = [
        (OFF, {}, system, "off"),
        (None, {"memory": "recurrent"}, system, "off"),
        (None, {"chat_template": None}, [Message("user", "Why?")], "no_prefix"),
        (None, {}, [Message("system", "Be brief. " * 5)], "too_short"),
    ]
    for options, engine_options, messages, code in cases:
        session, _ = start(store=store, options=options, **engine_options)
        if "memory" in engine_options and not session.engine.snapshot_block():
            continue  # this engine keeps recurrent memories as well
        assert code == session.warm(messages).code
    assert [] == list(store.entries())


def test_a_disk_that_refuses_is_told(start, tmp_path, system) -> None:
    """The reason is that of the disk."""

    def fault(step: str, path: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    session, _ = start(store=SnapshotStore(tmp_path / "store", fault=fault))
    use = session.warm(system)
    assert "not_stored" == use.code
    assert "miss: not stored; not kept: " in use.reason


def test_where_nothing_can_be_written_nothing_is_captured(start, ask, tmp_path, system) -> None:
    """A full disk and a cap of nothing: said as what they are, with the calls of any other run."""
    free, cold = start(store=SnapshotStore(tmp_path / "free"))
    text = free.generate(ask("Why?")).text
    for limit, why in (({"floor_bytes": 1 << 60}, "stay free"), ({"cap_bytes": 0}, "no room")):
        store = SnapshotStore(tmp_path / "store", **limit)
        session, _ = start(store=store)
        use = session.warm(system)
        assert "not_stored" == use.code
        assert f"; not kept: {store.closed}" in use.reason
        assert why in use.reason
        session, engine = start(store=store)
        done = session.generate(ask("Why?"))
        assert (text, cold.decoded) == (done.text, engine.decoded)
        assert ("not_stored", use.reason) == (done.snapshot.code, done.snapshot.reason)
        assert not [entry for entry in engine.log if entry[0] == "capture"]
    assert [] == [*(tmp_path / "store").rglob("*.ekv"), *(tmp_path / "store").rglob("*.lock")]


def test_a_store_that_others_hold_is_no_success(start, ask, store, system) -> None:
    """What was skipped was not stored, though nothing failed."""
    store.files.room._wait_s = 0.05
    session, _ = start(store=store)
    with store.files.room.locks.take(LOCK_NAME):
        use = session.warm(system)
    assert "not_stored" == use.code
    assert "miss: not stored; not kept: other processes are saving" == use.reason
    assert "stored" == start(store=store)[0].warm(system).code


def test_what_another_process_stored_meanwhile_counts(start, store, system, monkeypatch) -> None:
    """It is there, whoever wrote it."""
    session, _ = start(store=store)
    other = SnapshotStore(store.root)

    def save(*args: Any, **how: Any) -> Any:
        other.save(*args, **how)
        return SnapshotStore.save(store, *args, **how)

    monkeypatch.setattr(store, "save", save)
    assert "stored" == session.warm(system).code


def test_warming_is_refused_where_an_answer_would_be(start, ask, store, system) -> None:
    """One thing at a time, and nothing after the end."""
    session, _ = start(store=store)
    stream = session.stream(ask("Why?"))
    next(stream)
    with pytest.raises(UsageError, match="another answer"):
        session.warm(system)
    stream.close()
    session.close()
    with pytest.raises(EngineFailed, match="closed"):
        session.warm(system)
