"""Memory for states: lent again when nobody has it any more, never to two at a time."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from edgellm.engines.llamacpp import lent
from edgellm.engines.llamacpp.lent import Lender

MIN_BYTES = 1 << 20

can_be_kept = pytest.mark.skipif(
    lent._FREE is None, reason="this system has no MADV_FREE, so nothing is kept"
)


@pytest.fixture(autouse=True)
def small_pieces_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep pieces as small as those of these tests."""
    monkeypatch.setattr(lent, "MIN_BYTES", MIN_BYTES)


def address(array: np.ndarray) -> int:
    """Where an array begins."""
    return int(array.ctypes.data)


@can_be_kept
def test_a_piece_comes_back_with_its_last_view():
    """A view of a view keeps the piece from being lent again, and no longer."""
    lender = Lender()
    piece = lender.lend(MIN_BYTES + 3)
    assert piece.shape == (MIN_BYTES + 3,)
    assert piece.flags.writeable
    where = address(piece)
    view = piece[4:68].view(np.uint16).reshape(4, 8).T
    del piece
    assert lender.n_kept_bytes == 0
    assert address(lender.lend(MIN_BYTES)) != where
    memory = view[1:].data
    del view
    other = lender.lend(MIN_BYTES + 3)
    assert address(other) != where
    del memory, other
    assert lender.n_kept_bytes >= MIN_BYTES


@can_be_kept
def test_the_same_piece_serves_one_state_after_the_other():
    """A smaller state is put in the piece of a larger one; a larger one gets another, which then stays."""
    lender = Lender()
    sizes = (2 * MIN_BYTES, MIN_BYTES, 2 * MIN_BYTES)
    where = {address(lender.lend(n_bytes)) for n_bytes in sizes}
    assert len(where) == 1
    lender.lend(3 * MIN_BYTES)
    assert lender.n_kept_bytes == 3 * MIN_BYTES


@can_be_kept
def test_what_was_written_is_there_while_it_is_lent():
    """Of two pieces neither shows what is in the other, however often both are lent."""
    lender = Lender()
    for number in range(8):
        one, two = lender.lend(MIN_BYTES), lender.lend(MIN_BYTES)
        one.fill(number)
        two.fill(100 + number)
        assert (one == number).all()
        assert (two == 100 + number).all()
        del one, two
    assert lender.n_kept_bytes == MIN_BYTES


def test_small_and_huge_pieces_are_not_kept(monkeypatch: pytest.MonkeyPatch):
    """What the allocator keeps by itself, and what would be too much to be found in this process."""
    monkeypatch.setattr(lent, "MAX_KEPT_BYTES", 2 * MIN_BYTES)
    lender = Lender()
    for n_bytes in (0, MIN_BYTES - 1, 2 * MIN_BYTES + 1):
        assert lender.lend(n_bytes).shape == (n_bytes,)
        assert lender.n_kept_bytes == 0


def test_nothing_is_kept_that_the_system_cannot_take_back(monkeypatch: pytest.MonkeyPatch):
    """Without MADV_FREE every state gets fresh memory."""
    monkeypatch.setattr(lent, "_FREE", None)
    lender = Lender()
    lender.lend(MIN_BYTES).fill(1)
    assert lender.n_kept_bytes == 0


@can_be_kept
def test_a_system_that_refuses_keeps_nothing(monkeypatch: pytest.MonkeyPatch):
    """An advice that is not known there, as in some sandboxes."""
    monkeypatch.setattr(lent, "_FREE", 12345)
    monkeypatch.setattr(lent, "_HUGE", 12345)
    lender = Lender()
    lender.lend(MIN_BYTES).fill(1)
    assert lender.n_kept_bytes == 0


def test_no_memory_is_a_memory_error(monkeypatch: pytest.MonkeyPatch):
    """As with any other array, whatever the system calls it."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(lent.mmap, "mmap", refuse)
    if lent._FREE is not None:
        with pytest.raises(MemoryError, match=f"no {MIN_BYTES} bytes for a state"):
            Lender().lend(MIN_BYTES)


def test_threads_never_share_a_piece():
    """Each finds in its piece what it has written there."""
    lender = Lender()
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(50):
            piece = lender.lend(MIN_BYTES)
            piece[:: 1 << 12] = number
            if (piece[:: 1 << 12] != number).any():
                wrong.append(number)
            del piece

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
