"""Storing: what is measured, what follows for a session, and what the user is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgellm.core import Tier, Warn
from edgellm.engines import scripted_memory
from edgellm.errors import SnapshotIncompatible, UsageError
from edgellm.runtime.loss import LossBook, describe, measure_losses
from edgellm.runtime.session import SessionOptions
from edgellm.runtime.speeds import Speeds
from edgellm.store.format.codec import pack_state
from edgellm.store.ledger import Ledger
from edgellm.store.snapshots import SnapshotStore
from edgellm.store.state import Fingerprint, KVState


@pytest.fixture
def _wide_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the engines rows of 64 channels: packing makes narrower ones no smaller."""
    monkeypatch.setattr(scripted_memory, "N_CHANNELS", 64)


def fast_disk(monkeypatch: pytest.MonkeyPatch, tokens_per_s: float, bytes_per_s: float) -> None:
    """Say how fast prompts are read and snapshots restored."""
    monkeypatch.setattr(Speeds, "prompt_tokens_per_s", tokens_per_s)
    monkeypatch.setattr(Speeds, "restore_bytes_per_s", bytes_per_s)
    monkeypatch.setattr(Speeds, "save_bytes_per_s", bytes_per_s)


def test_auto_keeps_what_nobody_has_measured(start, ask, store) -> None:
    """The first prefix of a machine is kept, exact, and found by the next session."""
    session, _ = start(store=store, options=SessionOptions())
    cold = session.generate(ask("Why?"))
    session.close()
    session, _ = start(store=store, options=SessionOptions())
    warm = session.generate(ask("Why?"))
    assert ("miss: not stored; being stored", "hit") == (cold.snapshot.reason, warm.snapshot.reason)
    assert ("exact", "exact") == (cold.snapshot.tier, warm.snapshot.tier)


def test_auto_keeps_nothing_that_costs_more_than_it_saves(start, ask, store, monkeypatch) -> None:
    """The answer is the same, the reason has the figures, and the next session is not kept waiting."""
    fast_disk(monkeypatch, 1e6, 1e6)
    session, _ = start(store=store, options=SessionOptions())
    done = session.generate(ask("Why?"))
    session.close()
    assert "not_worth" == done.snapshot.code
    assert "miss: not stored; not kept: a snapshot costs " in done.snapshot.reason
    assert [] == list(store.entries())
    assert "Yes, so it is." == done.text


@pytest.mark.parametrize("memory", ["dense", "window"])
def test_auto_squeezes_where_the_disk_is_slow(start, ask, store, monkeypatch, memory: str) -> None:
    """The bits stay: a warm run's calls are those of the cold one."""
    fast_disk(monkeypatch, 10, 20e6)
    runs = []
    for _ in range(2):
        session, engine = start(store=store, options=SessionOptions(), memory=memory)
        done = session.generate(ask("Why?"))
        session.close()
        runs.append((done.snapshot, engine.decoded))
    cold, warm = runs
    assert cold[0].reason.endswith("being stored, byte planes: the disk is slow")
    assert ("hit", cold[1][1:]) == (warm[0].code, warm[1])


@pytest.mark.usefixtures("_wide_rows")
@pytest.mark.parametrize("memory", ["dense", "window"])
def test_loss_is_measured_once_and_leaves_no_trace(start, ask, store, memory: str) -> None:
    """The memory goes on as if nothing had been measured; the next session knows the figures."""
    allowed = SessionOptions(snapshot_loss=1e-9)
    session, engine = start(store=store, options=allowed, memory=memory)
    events = list(session.stream(ask("Why?")))
    session.close()
    told = [event.message for event in events if isinstance(event, Warn)]
    assert 1 == len(told)
    assert told[0].startswith("measured once what rounding costs this model, in nats: q8 ")
    assert told[0].endswith("; kept as exact")
    plain, other = start(options=SessionOptions(snapshot=Tier.OFF), memory=memory)
    plain.generate(ask("Why?"))
    n_prefix = len(other.decoded[0][1])
    assert other.decoded[1:] == [
        call
        for call in engine.decoded
        if call[0] > n_prefix or (call[0] == n_prefix and call[1] == other.decoded[1][1])
    ]
    again, _ = start(
        store=SnapshotStore(store.root.parent / "other"), options=allowed, memory=memory
    )
    assert not any(isinstance(event, Warn) for event in again.stream(ask("Why?")))


@pytest.mark.usefixtures("_wide_rows")
def test_the_fewest_bytes_that_fit_are_taken(start, ask, store) -> None:
    """Whoever allows much gets q4, and a session that allows nothing misses it."""
    much = SessionOptions(snapshot_loss=1e3)
    session, _ = start(store=store, options=much)
    done = session.generate(ask("Why?"))
    session.close()
    assert "q4" == done.snapshot.tier
    assert "; being stored, q4: " in done.snapshot.reason
    assert [Tier.Q4] == [info.tier for info in store.entries()]
    session, _ = start(store=store, options=SessionOptions())
    assert "too_coarse" == session.generate(ask("Why?")).snapshot.code
    session.close()


def test_loss_is_for_auto_alone(start, store) -> None:
    """A tier that was chosen is not chosen again."""
    with pytest.raises(UsageError, match="snapshot_loss is for snapshot=auto, not q8"):
        start(store=store, options=SessionOptions(snapshot=Tier.Q8, snapshot_loss=0.1))


@pytest.mark.usefixtures("_wide_rows")
def test_measuring_needs_room_and_an_engine_that_takes_its_state(engine_types) -> None:
    """Without room nothing is measured; the state is put back in any case."""
    engine = engine_types["recording"]("yes")
    engine.reserve(300)
    engine.decode([97 + n % 26 for n in range(200)])
    state = engine.capture()
    losses = measure_losses(engine, state)
    assert [Tier.Q8, Tier.Q6, Tier.Q5, Tier.Q4] == list(losses)
    assert all(loss >= 0 for loss in losses.values())
    assert engine.capture().parts[0].sections[0].rows.tobytes() == (
        state.parts[0].sections[0].rows.tobytes()
    )
    engine.decode([65] * 60)
    assert {} == measure_losses(engine, engine.capture())
    assert "could not be measured" in describe({}, 0.1)


def test_a_book_of_losses_believes_nothing(engine_types, tmp_path: Path) -> None:
    """What is no file of ours was not measured."""
    fingerprint = engine_types["recording"]("yes").fingerprint()
    book = LossBook(tmp_path / "losses")
    assert book.get(fingerprint) is None
    book.put(fingerprint, {Tier.Q8: 0.5, Tier.Q4: 2.0})
    (path,) = (tmp_path / "losses").iterdir()
    assert {Tier.Q8: 0.5, Tier.Q4: 2.0} == LossBook(tmp_path / "losses").get(fingerprint)
    whole = json.loads(path.read_text())
    wrong: list[Any] = [
        [], 1, {**whole, "format": 2}, {"format": 1}, {**whole, "kl_mean": {"q8": -1}},
        {**whole, "kl_mean": {"q8": float("nan")}}, {**whole, "kl_mean": []},
    ]  # fmt: skip
    for value in [*map(json.dumps, wrong), "", "{", "[" * 5000, " " * 5000 + json.dumps(whole)]:
        path.write_text(value)
        assert LossBook(tmp_path / "losses").get(fingerprint) is None, value[:40]
    (tmp_path / "file").write_text("in the way")
    LossBook(tmp_path / "file").put(fingerprint, {Tier.Q8: 0.5})  # no failure


def test_speeds_of_now_come_before_those_of_earlier(tmp_path: Path, engine_types) -> None:
    """And the ledger gets one line a record, under the model's content id."""
    fingerprint = engine_types["recording"]("yes").fingerprint()
    first = Speeds(Ledger(tmp_path))
    assert (None, None, None) == (
        *(first.prompt_tokens_per_s, first.restore_bytes_per_s, first.save_bytes_per_s),
    )
    first.record("hit")  # of no model yet
    first.note_model(fingerprint)
    first.record("not_stored", read=(100, 2.0))
    first.note_saved(1000, 0.5)
    first.record("hit", reused_tokens=90, restored=(1000, 0.25))
    other = Speeds(Ledger(tmp_path))
    other.note_model(fingerprint)
    assert (50, 4000, 2000) == (
        *(other.prompt_tokens_per_s, other.restore_bytes_per_s, other.save_bytes_per_s),
    )
    other.note_prompt(10, 0.1)
    other.note_restored(10, 0.1)
    assert (100, 100, 2000) == (
        *map(round, (other.prompt_tokens_per_s, other.restore_bytes_per_s, other.save_bytes_per_s)),
    )
    assert ["not_stored", "saved", "hit"] == [use.code for use in Ledger(tmp_path).uses()]


def test_every_request_is_counted_once(start, ask, store) -> None:
    """Its code, what it reused and what it read; a session without snapshots counts nothing."""
    for _ in range(2):
        session, _ = start(store=store)
        dones = [session.generate(ask(text)) for text in ("Why?", "How?")]
        session.close()
    uses = [use for use in Ledger(store.root).uses() if use.code != "saved"]
    assert ["not_stored", "live", "hit", "live"] == [use.code for use in uses]
    assert dones[-1].usage.reused_tokens == uses[-1].reused_tokens
    assert uses[2].restore_bytes > 0
    assert all(use.prefill_tokens > 0 for use in uses)
    session, _ = start(options=SessionOptions(snapshot=Tier.OFF), store=store)
    session.generate(ask("Why?"))
    assert 4 == len([use for use in Ledger(store.root).uses() if use.code != "saved"])


@pytest.mark.usefixtures("_wide_rows")
def test_a_state_of_other_settings_is_used_where_loss_is_allowed(
    start, ask, store, engine_types, monkeypatch
) -> None:
    """And named; where none is allowed it is a miss. Nothing is kept on top of it."""
    session, _ = start(store=store)
    session.generate(ask("Why?"))
    session.close()
    source = start()[1].fingerprint()

    class Other(engine_types["recording"]):
        def fingerprint(self) -> Fingerprint:
            hard = {**dict(source.hard), "kv_type": "q8_0"}
            return Fingerprint(tuple(sorted(hard.items())), source.soft)

        def relatives(self) -> tuple[Fingerprint, ...]:
            return (source,)

        def adapt(self, state: KVState, made_under: Fingerprint) -> KVState:
            assert source == made_under
            return state

    session, _ = start(store=store, engine_type=Other)
    assert "not_stored" == session.generate(ask("Why?")).snapshot.code
    session.close()
    store.remove([info.key for info in store.entries() if info.field("kv_type") == "q8_0"])
    session, engine = start(
        store=store, engine_type=Other, options=SessionOptions(snapshot=Tier.Q8)
    )
    done = session.generate(ask("Why?"))
    session.close()
    assert ("converted", "converted from kv_type f16: rounding differs") == (
        *(done.snapshot.code, done.snapshot.reason),
    )
    assert Tier.Q8.value == done.snapshot.tier  # f16 rows were rounded to q8_0
    assert done.usage.reused_tokens == engine.decoded[0][0] > 128
    assert 1 == len(list(store.entries()))
    monkeypatch.setattr(
        Other, "adapt", lambda *_: (_ for _ in ()).throw(SnapshotIncompatible("no"))
    )
    session, _ = start(store=store, engine_type=Other, options=SessionOptions(snapshot=Tier.Q8))
    assert "not_stored" == session.generate(ask("Why?")).snapshot.code


def test_packing_is_of_the_engines_rows(engine_types) -> None:
    """Rows of 8 channels cannot be packed: what cannot be rounded has no loss to measure."""
    engine = engine_types["recording"]("yes")
    engine.reserve(400)
    engine.decode([97] * 200)
    state = engine.capture()
    assert pack_state(state, Tier.Q4) is state
    assert {} == measure_losses(engine, state)
