"""LocalSession and the store: off, cold and warm are one answer, and the disk cannot spoil it."""

from __future__ import annotations

import errno
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from edgellm.core import Done, Failure, Mode, Tier, Token, Warn
from edgellm.errors import EngineFailed
from edgellm.runtime.local import LocalSession
from edgellm.runtime.session import SessionOptions
from edgellm.store.snapshots import Saved, Skipped, SnapshotStore

OFF = SessionOptions(snapshot=Tier.OFF)
KINDS = [
    dict(zip(("memory", "restore_moves", "n_batch"), kind, strict=True))
    for kind in itertools.product(("dense", "window"), (False, True), (512, 7))
]


def outcomes(session: LocalSession) -> tuple[Saved | Skipped, ...]:
    """Close a session and return what became of its snapshots."""
    session.close()
    assert session._writer is not None
    return session._writer.outcomes


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_off_cold_and_warm_are_the_same_bits(start, ask, store, kind: dict[str, Any]) -> None:
    """The same calls with the same logits; the warm run leaves out the first, and nothing else."""
    dones, calls = [], []
    for options in (OFF, None, None):
        session, engine = start(store=store, options=options, **kind)
        dones.append(session.generate(ask("Why?")))
        calls.append(engine.decoded)
        session.close()
    off, cold, warm = dones
    assert calls[0] == calls[1] == [calls[1][0], *calls[2]]
    assert "Yes, so it is." == off.text == cold.text == warm.text
    n_prefix = len(calls[0][0][1])
    assert (0, 0, n_prefix) == tuple(done.usage.reused_tokens for done in dones)
    assert off.usage.prompt_tokens == cold.usage.prompt_tokens == warm.usage.prompt_tokens
    assert ["off: asked", "miss: not stored; being stored", "hit"] == [
        done.snapshot.reason for done in dones
    ]
    assert ["off", "exact", "exact"] == [done.snapshot.tier for done in dones]
    assert "" == off.snapshot.key != cold.snapshot.key == warm.snapshot.key
    assert [warm.snapshot.key] == [info.key for info in store.entries()]


def test_memory_that_moves_is_settled_with_snapshots_off_too(start, ask) -> None:
    """Where a restore changes the order of sums, a run without a store does one as well."""
    session, engine = start(options=OFF, restore_moves=True)
    session.generate(ask("Why?"))
    assert ["decode", "capture", "restore", "decode"] == [entry[0] for entry in engine.log[:4]]
    session, engine = start(options=OFF)
    session.generate(ask("Why?"))
    assert {"decode"} == {entry[0] for entry in engine.log}


SECOND_PROCESS = """
import json, sys
from pathlib import Path
from edgellm.core import Request, event_to_wire
from edgellm.engines.scripted import CHATML, ScriptedEngine
from edgellm.runtime.local import LocalSession
from edgellm.store.snapshots import SnapshotStore

root, options, request = json.loads(sys.argv[1])
engine = ScriptedEngine("Yes, so it is.", **options)
with LocalSession(engine, store=SnapshotStore(Path(root))) as session:
    print(json.dumps(event_to_wire(session.generate(Request.from_wire(request)))))
"""


@pytest.mark.parametrize("memory", ["dense", "window"])
def test_a_second_process_starts_warm(start, ask, store: SnapshotStore, memory: str) -> None:
    """The snapshot is found by what it is of, not by who made it."""
    session, engine = start(store=store, memory=memory)
    cold = session.generate(ask("Why?"))
    assert isinstance(outcomes(session)[0], Saved)
    given = json.dumps([str(store.root), {"memory": memory}, ask("How?").to_wire()])
    out = subprocess.run(
        [sys.executable, "-c", SECOND_PROCESS, given], capture_output=True, check=True
    ).stdout
    warm = Done.from_wire(json.loads(out))
    assert (cold.text, cold.snapshot.key, "hit") == (
        *(warm.text, warm.snapshot.key, warm.snapshot.reason),
    )
    assert len(engine.decoded[0][1]) == warm.usage.reused_tokens


@pytest.mark.parametrize("text", ["Why?", "", "\n\n1", "<|im_end|>", "👋", "word " * 500])
def test_every_question_finds_the_same_snapshot(start, ask, store, text: str) -> None:
    """The prefix does not depend on what the user says."""
    session, _ = start(store=store)
    key = session.generate(ask("first")).snapshot.key
    session.close()
    session, _ = start(store=store)
    use = session.generate(ask(text)).snapshot
    assert ("hit", key) == (use.reason, use.key)


def test_another_system_prompt_is_another_snapshot(start, ask, store) -> None:
    """Nothing of it is taken for the first one's, though they begin alike."""
    session, _ = start(store=store)
    session.generate(ask("Why?"))
    session.close()
    session, _ = start(store=store)
    other = session.generate(ask("Why?", system="You answer in one sentence, name " * 6))
    assert (0, "miss: not stored; being stored") == (
        *(other.usage.reused_tokens, other.snapshot.reason),
    )
    session.close()
    assert 2 == len(list(store.entries()))


def test_a_short_prefix_is_not_kept(start, ask, store) -> None:
    """Decoding it is faster than the file is worth, and the reason says so."""
    session, _ = start(store=store)
    use = session.generate(ask("Why?", system="Be brief.")).snapshot
    assert ("exact", "") == (use.tier, use.key)
    assert use.reason.startswith("not kept: ")
    assert use.reason.endswith(" tokens are fewer than 128")
    assert () == outcomes(session)
    assert not store.root.exists()


def test_recurrent_memory_turns_snapshots_off_and_says_so_once(start, ask, store) -> None:
    """A memory that cannot be captured: one warning, and the reason in every answer."""
    session, engine = start(store=store, memory="recurrent")
    first = list(session.stream(ask("Why?")))
    second = list(session.stream(ask("How?")))
    assert ["prefix snapshots are off: recurrent memory"] == [
        event.message for event in first + second if isinstance(event, Warn)
    ]
    for done in (first[-1], second[-1]):
        assert ("off", "", "off: recurrent memory") == (
            *(done.snapshot.tier, done.snapshot.key, done.snapshot.reason),
        )
    assert {"decode"} == {entry[0] for entry in engine.log}
    assert not store.root.exists()


def test_recurrent_memory_is_no_warning_when_snapshots_are_off_anyway(start, ask, store) -> None:
    """Who asked for none misses none."""
    session, _ = start(store=store, options=OFF, memory="recurrent")
    assert not any(isinstance(event, Warn) for event in session.stream(ask("Why?")))


def test_a_setting_that_may_change_the_rounding_is_said(start, ask, store) -> None:
    """Another batch size: the snapshot serves, and the reason names what differs."""
    session, _ = start(store=store, n_batch=512)
    session.generate(ask("Why?"))
    session.close()
    session, _ = start(store=store, n_batch=64)
    done = session.generate(ask("Why?"))
    assert "hit, rounding may differ (n_batch: 512, now 64)" == done.snapshot.reason
    assert done.usage.reused_tokens > 128


def test_another_model_finds_nothing(start, ask, store) -> None:
    """Weights that differ have snapshots that differ, whatever the prompt."""
    session, _ = start("No.", store=store)
    session.generate(ask("Why?"))
    session.close()
    session, _ = start("Yes.", store=store)
    done = session.generate(ask("Why?"))
    assert ("Yes.", 0) == (done.text, done.usage.reused_tokens)
    assert done.snapshot.reason.startswith("miss: not stored")


@pytest.mark.parametrize("damage", ["flip", "cut", "extend", "empty", "folder", "link"])
def test_a_damaged_snapshot_is_a_miss_and_the_same_answer(
    start, ask, store: SnapshotStore, damage: str
) -> None:
    """It is never restored, the answer is that of a cold run, and a whole one takes its place."""
    session, cold = start(store=store)
    session.generate(ask("Why?"))
    session.close()
    (info,) = store.entries()
    data = info.path.read_bytes()
    info.path.unlink()
    if damage == "folder":
        info.path.mkdir()
    elif damage == "link":
        (store.root / "elsewhere").write_bytes(data)
        info.path.symlink_to(store.root / "elsewhere")
    else:
        flipped = data[:-300] + bytes([data[-300] ^ 1]) + data[-299:]
        damaged = {"flip": flipped, "cut": data[:-1], "extend": data + b"\0", "empty": b""}
        info.path.write_bytes(damaged[damage])
    session, again = start(store=store)
    *events, done = session.stream(ask("Why?"))
    assert done.snapshot.reason.startswith("miss: ")
    assert done.snapshot.code in {"corrupt", "unreadable"}
    assert (0, cold.decoded) == (done.usage.reused_tokens, again.decoded)
    if damage not in {"folder", "link"}:
        assert "corrupt" == done.snapshot.code
        assert ["damaged" in event.message for event in events if isinstance(event, Warn)] == [True]
        assert isinstance(outcomes(session)[0], Saved)
        assert [] == store.check()


def test_a_state_the_engine_refuses_is_a_miss(start, ask, store, engine_types) -> None:
    """A whole snapshot that the engine cannot take: prefilled instead, from an empty memory."""

    class Refusing(engine_types["recording"]):
        def restore(self, state) -> None:
            bad = type(state)(state.n_tokens, state.parts[:0])
            super().restore(bad)

    session, cold = start(store=store)
    session.generate(ask("Why?"))
    session.close()
    session, engine = start(store=store, engine_type=Refusing)
    done = session.generate(ask("Why?"))
    assert done.snapshot.reason.startswith("miss: the parts of the memory are others than here")
    assert "restore_failed" == done.snapshot.code
    assert (0, cold.decoded) == (done.usage.reused_tokens, engine.decoded)


def test_a_boundary_that_cannot_be_settled_is_decoded_again(start, ask, engine_types) -> None:
    """A failed restore of the state just captured leaves an empty memory, not a wrong answer."""

    class Refusing(engine_types["recording"]):
        def restore(self, state) -> None:
            super().restore(type(state)(state.n_tokens, state.parts[:0]))

    session, engine = start(engine_type=Refusing, restore_moves=True, options=OFF)
    done = session.generate(ask("Why?"))
    first, second, suffix = engine.decoded[:3]
    assert first == second
    assert len(first[1]) == suffix[0]
    assert "Yes, so it is." == done.text


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
def test_a_disk_that_refuses_does_not_touch_the_answer(start, ask, tmp_path, code: int) -> None:
    """Full, read-only, forbidden or broken, at every step: the answer stands, nothing is left."""
    steps = ["mkdir", "create", "write", "fsync", "rename", "fsync_dir"]
    expected = start(options=OFF)[0].generate(ask("Why?")).text
    for n, step in enumerate(steps):

        def fault(name: str, path: str, step: str = step) -> None:
            if name == step:
                raise OSError(code, os.strerror(code), path)

        store = SnapshotStore(tmp_path / str(n), fault=fault)
        session, _ = start(store=store)
        events = list(session.stream(ask("Why?")))
        assert isinstance(events[-1], Done)
        assert expected == events[-1].text
        (outcome,) = outcomes(session)
        assert isinstance(outcome, Skipped)
        left = [p.suffix for p in store.root.rglob("*") if p.suffix in {".ekv", ".tmp"}]
        assert ([".ekv"] if step == "fsync_dir" else []) == left


def test_a_store_that_is_a_file_does_not_touch_the_answer(start, ask, tmp_path: Path) -> None:
    """Neither looking up nor saving can work there."""
    (tmp_path / "store").write_text("")
    session, _ = start(store=SnapshotStore(tmp_path / "store"))
    done = session.generate(ask("Why?"))
    assert "Yes, so it is." == done.text
    assert isinstance(outcomes(session)[0], Skipped)


@pytest.mark.parametrize("max_tokens", [1, None])
def test_a_home_that_cannot_be_written_is_said_once(start, ask, tmp_path, max_tokens) -> None:
    """One warning before the first answer's end, however short; the figures say it each time."""
    (tmp_path / "home").write_text("")
    session, _ = start(store=SnapshotStore(tmp_path / "home" / "snapshots"))
    said = []
    for system in ("Be brief. " * 20, "Be exact. " * 20):
        events = list(session.stream(ask("Why?", system=system, max_tokens=max_tokens)))
        said += [event.message for event in events if isinstance(event, Warn)]
        assert isinstance(events[-1], Done)
        assert "; not kept: cannot write: " in events[-1].snapshot.reason
    (message,) = said
    assert message.startswith("the prefix snapshot was not kept: cannot write: ")
    assert str(tmp_path / "home") in message


def test_a_write_that_fails_after_the_answer_is_said_with_the_next(start, ask, tmp_path) -> None:
    """Nobody waits for a slow disk; what became of it is told as soon as somebody listens."""
    gate = threading.Event()

    def fault(step: str, path: str) -> None:
        assert gate.wait(30)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    session, _ = start(store=SnapshotStore(tmp_path / "store", fault=fault))
    first = list(session.stream(ask("Why?")))
    assert not any(isinstance(event, Warn) for event in first)
    assert first[-1].snapshot.reason.endswith("; being stored")
    gate.set()
    assert session._writer.settle(30)
    second = list(session.stream(ask("How?")))
    assert isinstance(second[0], Warn)
    assert second[0].message.startswith("the prefix snapshot was not kept: ")


def test_a_snapshot_dropped_for_another_is_no_failure(start, ask, tmp_path) -> None:
    """A busy writer is not a broken disk: the next run of that prompt will be kept."""
    gate = threading.Event()

    def fault(step: str, path: str) -> None:
        assert gate.wait(30)

    session, _ = start(store=SnapshotStore(tmp_path / "store", fault=fault))
    events = []
    for system in ("Be brief. " * 20, "Be exact. " * 20):
        events += session.stream(ask("Why?", system=system))
    gate.set()
    reasons = [event.snapshot.reason for event in events if isinstance(event, Done)]
    dropped = "miss: not stored; not kept: the writer is busy with the snapshot before"
    assert ["miss: not stored; being stored", dropped] == reasons
    assert not any(isinstance(event, Warn) for event in events)


@pytest.mark.parametrize("tier", [Tier.EXACT, Tier.AUTO])
def test_captured_before_the_suffix_written_after_the_first_token(
    start, ask, tmp_path: Path, tier: Tier
) -> None:
    """Nothing is written before the reader has the first token and asks for the next."""
    order: list[Any] = []
    store = SnapshotStore(tmp_path / "store", fault=lambda step, path: order.append(step))
    session, engine = start(store=store, options=SessionOptions(snapshot=tier))
    engine.log = order
    stream = session.stream(ask("Why?"))
    order.append(next(stream))
    time.sleep(0.05)  # a writer that was started too early would show now
    before = list(order)
    for event in stream:
        order.append(event)
        time.sleep(0.005)  # leaves the writer time to be early or late
    session.close()
    kinds = [entry[0] if isinstance(entry, tuple) else entry for entry in before]
    assert ["decode", "capture", "decode"] == kinds[:3]
    assert isinstance(kinds[3], Token)
    assert 4 == len(kinds)
    (n_prefix,) = {
        entry[1] for entry in before if isinstance(entry, tuple) and entry[0] == "capture"
    }
    assert (0, n_prefix) == (before[0][1], before[2][1])
    assert "fsync_dir" in order[4:]


def test_the_first_token_does_not_wait_for_the_disk(start, ask, tmp_path: Path) -> None:
    """A writer that hangs holds up neither the answer nor, for more than two seconds, the exit."""
    hanging, reached = threading.Event(), threading.Event()

    def hang(step: str, path: str) -> None:
        reached.set()
        hanging.wait(20)

    session, _ = start(store=SnapshotStore(tmp_path / "store", fault=hang))
    assert "Yes, so it is." == session.generate(ask("Why?")).text
    assert reached.wait(5)
    started = time.monotonic()
    session.close()
    assert 1.9 < time.monotonic() - started < 4
    hanging.set()
    session._writer._thread.join(5)


def test_an_exit_waits_for_a_writer_that_is_only_slow(start, ask, tmp_path: Path) -> None:
    """Half a second later the snapshot is whole, so `close` waits for it."""
    store = SnapshotStore(tmp_path / "store", fault=lambda step, path: time.sleep(0.02))
    session, _ = start(store=store)
    session.generate(ask("Why?", max_tokens=1))
    session.close()
    assert 1 == len(list(store.entries()))


def test_an_answer_of_one_token_is_kept_as_well(start, ask, store) -> None:
    """So is an empty one: the prefix was read all the same."""
    for n, script in enumerate(("a", "")):
        session, _ = start(script, store=store)
        assert script == session.generate(ask("Why?")).text
        session.close()
        assert n + 1 == len(list(store.entries()))


@pytest.mark.parametrize("mode", list(Mode))
def test_staying_here_is_nothing_to_say(start, ask, mode: Mode) -> None:
    """The default modes warn of nothing."""
    session, _ = start(options=SessionOptions(mode=mode))
    assert {Token, Done} == {type(event) for event in session.stream(ask("Why?"))}


def test_a_model_without_a_template_gets_raw_text_and_says_so_once(start, ask, store) -> None:
    """System text, blank line, question; a warning with the first answer only."""
    session, engine = start(store=store, chat_template=None)
    events = [list(session.stream(ask("Why?"))) for _ in range(2)]
    assert [1, 0] == [sum(isinstance(e, Warn) for e in answer) for answer in events]
    assert "no chat template" in events[0][0].message
    text = ask("Why?").messages[0].content + "\n\nWhy?"
    assert text.encode() == bytes(sum((tokens for _, tokens, _ in engine.decoded[:2]), ()))
    assert "Yes, so it is." == events[0][-1].text == events[1][-1].text


def test_the_users_template_replaces_the_models(start, ask) -> None:
    """`--chat-template` is what the model reads, and no warning about a missing one."""
    template = "{% for m in messages %}{{ m.content }};{% endfor %}"
    session, engine = start(chat_template=None, options=SessionOptions(chat_template=template))
    *tokens, done = session.stream(ask("Why?", system=None))
    assert {Token} == {type(event) for event in tokens}
    read = b"".join(bytes(tokens) for _, tokens, _ in engine.decoded)
    assert b"Why?;" == read[: done.usage.prompt_tokens]


def test_a_template_that_fails_is_a_failure_and_no_loss(start, ask) -> None:
    """The error names the template; the live conversation is still there afterwards."""
    refusing = (
        "{% for m in messages %}{% if m.content == 'bad' %}{{ raise_exception('no') }}{% endif %}"
        "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
        "{% endfor %}{{ '<|im_start|>assistant\\n' }}"
    )
    session, _ = start(("One.", "Two."), chat_template=refusing)
    first = session.generate(ask("a"))
    failed = list(session.stream(ask("a", "One.", "bad")))
    assert ["template"] == [event.code for event in failed]
    second = session.generate(ask("a", "One.", "b"))
    n_live = first.usage.prompt_tokens + first.usage.completion_tokens
    assert ("Two.", n_live) == (second.text, second.usage.reused_tokens)


def test_tokens_are_numbered_and_make_the_text(start, ask) -> None:
    """Sequence numbers from 0 without gaps; the pieces are the text; `Done` is last."""
    session, _ = start("Grüße, 👋 und 값!")
    *tokens, done = session.stream(ask("Why?"))
    assert list(range(len(tokens))) == [token.seq for token in tokens]
    assert "Grüße, 👋 und 값!" == done.text == "".join(token.text for token in tokens)
    assert (done.usage.completion_tokens, "stop") == (len(done.text.encode()), done.finish_reason)


def test_figures_of_an_answer(start, ask, store) -> None:
    """Times are there where something happened, and the seed can be asked for again."""
    session, engine = start(store=store, delay_s=1e-5)
    done = session.generate(ask("Why?"))
    times = done.timings
    assert times.ttft_ms >= times.prefill_ms > 0
    assert times.decode_tokens_per_s > 0
    assert done.seed is not None
    assert sum(len(tokens) for _, tokens, _ in engine.decoded) == (
        done.usage.prompt_tokens + done.usage.completion_tokens
    )


def test_an_answer_that_was_never_asked_for_costs_nothing(start, ask) -> None:
    """A stream that nobody reads does no work, and is in nobody's way."""
    session, engine = start()
    unread = session.stream(ask("Why?"))
    assert [] == engine.log
    assert "Yes, so it is." == session.generate(ask("How?")).text
    unread.close()


def test_facts_are_those_of_the_engine(start, ask) -> None:
    """The context is 0 until a request has sized it."""
    session, _ = start(n_batch=64)
    assert (0, 64, "scripted") == (
        *(session.facts().n_ctx, session.facts().n_batch, session.facts().engine),
    )
    session.generate(ask("Why?"))
    assert 4096 == session.facts().n_ctx


def test_a_session_closes_its_engine_and_answers_no_more(start, ask) -> None:
    """Closing twice is fine; a request afterwards is a failure, not a crash."""
    session, _ = start()
    with session:
        pass
    session.close()
    (failure,) = session.stream(ask("Why?"))
    assert isinstance(failure, Failure)
    assert "closed" in failure.message
    with pytest.raises(EngineFailed, match="closed"):
        session.generate(ask("Why?"))


def test_a_template_that_writes_the_time_is_said_once(start, ask, store) -> None:
    """The date stands before the system text, so next to nothing can be kept: one warning."""
    dated = "{{ '<|im_start|>' + strftime_now('%d %b %Y') }}{% for m in messages %}{{ m.content }}"
    session, _ = start(store=store, chat_template=dated + "{% endfor %}")
    events = [*session.stream(ask("Why?")), *session.stream(ask("How?"))]
    said = [event.message for event in events if isinstance(event, Warn)]
    assert len(said) == 1
    assert "writes the time into the system prompt: only the 1 tokens" in said[0]


def test_an_answer_gone_on_with_that_was_made_otherwise_says_so(start, ask) -> None:
    """A journal that this engine would not have made, as with other numerics, is no secret."""
    session, _ = start(options=OFF)
    whole = list(session.steps(ask("Why?")))
    ids = [id_ for step in whole for id_ in step.ids]
    for journal, is_other in ((ids[:2], False), ([ids[0] + 1, ids[1]], True)):
        fresh, _ = start(options=OFF)
        done = list(fresh.steps(ask("Why?"), journal=journal))[-1].event
        assert isinstance(done, Done)
        assert done.degraded is is_other
