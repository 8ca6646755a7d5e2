"""Single flight: of several sessions that miss a prefix one reads it, and nobody waits for ever."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from edgellm.core import Done, Tier
from edgellm.runtime.session import SessionOptions
from edgellm.store.snapshots import SnapshotStore

N_SESSIONS = 4


def answer(session: Any, request: Any, dones: list[Done]) -> None:
    """Answer in a thread of its own."""
    dones.append(session.generate(request))


@pytest.mark.parametrize("memory", ["dense", "window"])
def test_one_reads_and_the_others_restore(start, ask, store, memory: str) -> None:
    """All answers are equal, and the prefix was decoded once."""
    # Reading takes long enough for all of them to miss.
    opened = [start(store=store, memory=memory, delay_s=0.0005) for _ in range(N_SESSIONS)]
    dones: list[Done] = []
    threads = [
        threading.Thread(target=answer, args=(session, ask("Why?"), dones)) for session, _ in opened
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert N_SESSIONS == len(dones)
    assert {"Yes, so it is."} == {done.text for done in dones}
    assert 1 == sum(any(at == 0 for at, _, _ in engine.decoded) for _, engine in opened)
    codes = sorted(done.snapshot.code for done in dones)
    assert ["hit"] * (N_SESSIONS - 1) + ["not_stored"] == codes


def test_one_that_is_stuck_is_waited_for_no_longer_than_it_pays(
    start, ask, store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the prompt is read here; the answer is the same."""
    monkeypatch.setattr("edgellm.runtime.claim.WAIT_MORE_S", 0.1)
    monkeypatch.setattr("edgellm.runtime.claim.SLOW_TOKENS_PER_S", 1e6)
    session, engine = start(store=store)
    request = ask("Why?")
    prompt = session._prompting.prompt(request.messages, None)
    session.room.open()
    lease = store.lease(engine.fingerprint(), prompt.tokens[: prompt.n_prefix])
    assert lease is not None
    begun = time.monotonic()
    done = session.generate(request)
    assert 0.1 <= time.monotonic() - begun < 5
    assert ("not_stored", 0) == (done.snapshot.code, done.usage.reused_tokens)
    assert "Yes, so it is." == done.text
    lease.release()


def test_a_wait_ends_with_the_answer(start, ask, store: SnapshotStore) -> None:
    """Cancelling is heard at once, not after the wait."""
    session, engine = start(store=store)
    request = ask("Why?")
    prompt = session._prompting.prompt(request.messages, None)
    session.room.open()
    lease = store.lease(engine.fingerprint(), prompt.tokens[: prompt.n_prefix])
    assert lease is not None
    with lease:
        threading.Timer(0.1, session.cancel).start()
        begun = time.monotonic()
        done = session.generate(request)
        assert time.monotonic() - begun < 3
    assert "cancelled" == done.finish_reason


def test_one_that_fails_lets_the_next_one_in(start, ask, store) -> None:
    """An engine that broke, and an answer that was given up, hold nobody up."""
    session, _ = start(store=store, fail_at=2)
    with pytest.raises(Exception, match="as it was told to"):
        session.generate(ask("Why?"))
    given_up, _ = start(store=store)
    stream = given_up.stream(ask("Why?"))
    stream.close()
    begun = time.monotonic()
    other, _ = start(store=store)
    assert "Yes, so it is." == other.generate(ask("Why?")).text
    assert time.monotonic() - begun < 3


def test_with_snapshots_off_nobody_waits(start, ask, store: SnapshotStore) -> None:
    """And nothing is locked."""
    session, _ = start(store=store, options=SessionOptions(snapshot=Tier.OFF))
    session.generate(ask("Why?"))
    assert not store.root.exists()


def test_whatever_fails_on_the_way_lets_the_next_one_in(
    start, ask, store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking again while the right is held, and choosing the first token: no lease is left."""
    session, engine = start(store=store)
    request = ask("Why?")
    prompt = session._prompting.prompt(request.messages, None)
    prefix = prompt.tokens[: prompt.n_prefix]
    session.room.open()
    longest, n_looks = type(store).longest, [0]

    def fail_at_the_second(*given: Any, **how: Any) -> Any:
        n_looks[0] += 1
        if n_looks[0] == 2:
            raise LookupError("a fault of ours")
        return longest(*given, **how)

    def fail(*_: Any) -> None:
        raise LookupError("a fault of ours")

    with monkeypatch.context() as patched:
        patched.setattr(type(store), "longest", fail_at_the_second)
        held: list[BaseException] = []  # the traceback holds the frames, and so the lease
        with pytest.raises(LookupError) as raised:
            session.generate(request)
        held.append(raised.value)
        _is_free(store, engine, prefix, prompt.cuts)
    with monkeypatch.context() as patched:
        patched.setattr("edgellm.runtime.sampling.Sampler.prime", fail)
        with pytest.raises(LookupError) as raised:
            session.generate(request)
        held.append(raised.value)
        _is_free(store, engine, prefix, prompt.cuts)
    assert 2 == len(held)
    assert "Yes, so it is." == session.generate(request).text


def _is_free(store: SnapshotStore, engine: Any, prefix: Any, cuts: Any) -> None:
    lease = store.lease(engine.fingerprint(), prefix, cuts=cuts)
    assert lease is not None
    lease.release()
