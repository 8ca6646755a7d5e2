"""The shared tier, asked for by one process and spoken to by another: here two ends of two pipes."""

from __future__ import annotations

import os
import threading

import pytest

from edgellm.errors import FetchError
from edgellm.runtime.worker import tier
from edgellm.runtime.worker.frames import MAX_RAW_BYTES, FrameError, Raw, Sender, read_frame
from edgellm.runtime.worker.messages import TierAnswer, TierCall, from_wire
from edgellm.runtime.worker.tier import FramedTier, Gathering, TierServer

MAX_BYTES = 3 * MAX_RAW_BYTES


class Shelf:
    """A place in memory."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.n_asked = 0
        self.closed = threading.Event()

    def size(self, name: str) -> int | None:
        self.n_asked += 1
        return len(self.values[name]) if name in self.values else None

    def read(self, name: str, start: int, n_bytes: int) -> bytes:
        self.n_asked += 1
        return self.values.get(name, b"")[start : start + n_bytes]

    def write(self, name: str, pieces) -> None:
        self.n_asked += 1
        if name == "full":
            raise FetchError("the place is full")
        self.values[name] = b"".join(pieces)

    def close(self) -> None:
        self.closed.set()


class Pair:
    """A framed tier, a server, and two threads that carry frames between them."""

    def __init__(self) -> None:
        self.place = Shelf()
        self.refusal = ""
        self.errors: list[BaseException] = []
        asked, answers = os.pipe(), os.pipe()
        self.tier = FramedTier(Sender(asked[1]))
        self.server = TierServer(
            self.place,
            refusal=lambda: self.refusal,
            max_bytes=MAX_BYTES,
            put=Sender(answers[1]).put,
        )
        self._ends = (asked[1], answers[1])
        self._threads = [
            threading.Thread(target=self._carry, args=(asked[0], self.server.called, self.server)),
            threading.Thread(target=self._carry, args=(answers[0], self.tier.answered, self.tier)),
        ]
        for thread in self._threads:
            thread.start()

    def _carry(self, fd: int, message, raws) -> None:
        with os.fdopen(fd, "rb") as file:
            try:
                while (frame := read_frame(file)) is not None:
                    if isinstance(frame, Raw):
                        raws.came(frame)
                    else:
                        message(from_wire(frame))
            except FrameError as err:
                self.errors.append(err)

    def close(self) -> None:
        self.server.close()
        assert self.place.closed.wait(5)
        for fd in self._ends:
            os.close(fd)
        for thread in self._threads:
            thread.join(5)


@pytest.fixture
def pair():
    """Give a pair, and take it apart."""
    one = Pair()
    yield one
    one.close()


@pytest.mark.parametrize("n_bytes", [1, MAX_RAW_BYTES, 2 * MAX_RAW_BYTES + 7])
def test_values_go_there_and_come_back(pair, n_bytes):
    """What is written has that size, and pieces of it are read, shorter where it ends."""
    value = os.urandom(n_bytes)
    pair.tier.write("name", (b"seal", bytearray(value)))
    assert pair.tier.size("name") == 4 + n_bytes
    assert pair.tier.read("name", 0, MAX_BYTES) == b"seal" + value
    assert pair.tier.read("name", 4 + n_bytes - 1, 10) == value[-1:]
    assert pair.errors == []


def test_what_is_not_there_is_none(pair):
    """No value has no size and no bytes."""
    assert pair.tier.size("nothing") is None
    assert pair.tier.read("nothing", 0, 10) == b""
    pair.tier.write("empty", (b"",))
    assert pair.place.values == {"empty": b""}


def test_a_failure_of_the_place_is_one_here(pair):
    """The words of the place come through, and the next request is served."""
    with pytest.raises(FetchError, match="the place is full"):
        pair.tier.write("full", (b"x",))
    assert pair.tier.size("full") is None


def test_a_refusal_is_asked_for_each_time(pair):
    """Where the policy says no, nothing reaches the place, whatever the worker was told before."""
    pair.tier.write("name", (b"x",))
    pair.refusal = "mode private keeps prompts on this machine"
    n_before = pair.place.n_asked
    for ask in (
        lambda: pair.tier.size("name"),
        lambda: pair.tier.read("name", 0, 1),
        lambda: pair.tier.write("name", (b"y",)),
    ):
        with pytest.raises(FetchError, match="mode private"):
            ask()
    assert pair.place.n_asked == n_before


def test_many_threads_are_served(pair):
    """Requests of several threads at once get their own answers."""
    values = {f"n{n}": os.urandom(1000 + n) for n in range(8)}
    wrong: list[str] = []

    def use(name: str) -> None:
        for _ in range(5):
            pair.tier.write(name, (values[name],))
            if pair.tier.read(name, 0, 5000) != values[name]:
                wrong.append(name)

    threads = [threading.Thread(target=use, args=(name,)) for name in values]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_no_answer_is_a_failure(monkeypatch):
    """A worker does not wait for ever for a program that does not answer."""
    monkeypatch.setattr(tier, "WAIT_S", 0.01)
    read_end, write_end = os.pipe()
    with pytest.raises(FetchError, match="no answer"):
        FramedTier(Sender(write_end)).size("name")
    os.close(read_end)
    os.close(write_end)


def test_a_value_too_long_is_damage():
    """Neither side takes more bytes than were asked for or may be exchanged."""
    with pytest.raises(FrameError, match="at most 10"):
        Gathering(11, 10)
    gathering = Gathering(3, 10)
    gathering.add(b"ab")
    with pytest.raises(FrameError, match="more than the announced 3"):
        gathering.add(b"cd")
    server = TierServer(Shelf(), refusal=str, max_bytes=5, put=lambda _: None)
    with pytest.raises(FrameError):
        server.called(TierCall(16, "write", "n", 0, 6))
    with pytest.raises(FrameError):
        server.called(TierCall(16, "read", "n", 0, 6))
    with pytest.raises(FrameError, match="nobody announced"):
        server.came(Raw(99, b"x"))
    server.close()


def test_what_comes_too_late_is_dropped():
    """An answer to a request that was given up harms nobody."""
    framed = FramedTier(Sender(-1))
    framed.answered(TierAnswer(99, n_bytes=5))
    framed.came(Raw(99, b"x"))
