"""The breakers on disk: what one process learns another knows."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from edgellm.errors import RecordsDamaged
from edgellm.policy.breaker import LocalHealth
from edgellm.runtime.books.breakers import FILE_NAME, BreakerBook, local_key

KEY = local_key("sha", "cpu", 4096)
ORIGIN = "https://api.example.com"


@pytest.fixture
def book(edgellm_home: Path, clock: Any) -> BreakerBook:
    return BreakerBook(edgellm_home, clock=clock)


def test_contexts_of_one_power_of_two_share_a_breaker() -> None:
    """A context a little smaller is no other case."""
    assert KEY == local_key("sha", "cpu", 2049) == local_key("sha", "cpu", 4000)
    assert KEY != local_key("sha", "cpu", 4097)
    assert KEY != local_key("sha", "cuda", 4096)
    assert "sha/cpu/1" == local_key("sha", "cpu", 0)


def test_a_program_that_starts_again_knows(
    book: BreakerBook, clock: Any, edgellm_home: Path
) -> None:
    """Two deaths open it for the next process too; after rest, looks and a decode it is closed."""
    assert "closed" == book.local_state(KEY)
    assert ["closed", "open"] == [book.note_death(KEY), book.note_death(KEY)]
    other = BreakerBook(edgellm_home, clock=clock)
    assert "open" == other.local_state(KEY)
    assert "closed" == other.local_state(local_key("other", "cpu", 4096))
    clock.now_s += 61
    assert "open" == other.note_look(KEY, fits=True)
    clock.now_s += 6
    assert "half_open" == other.note_look(KEY, fits=True)
    assert "closed" == other.note_warm_up(KEY) == book.local_state(KEY)
    assert {} == dict(book.show().local)


def test_looks_and_decodes_of_a_sound_model_write_nothing(
    book: BreakerBook, edgellm_home: Path
) -> None:
    """The ordinary answer costs no file."""
    assert "closed" == book.note_look(KEY, fits=True) == book.note_warm_up(KEY)
    assert not (edgellm_home / "records").exists()


def test_an_endpoint_rests_for_all(book: BreakerBook, clock: Any, edgellm_home: Path) -> None:
    """Five failures open it; one process has the careful try, the others do not."""
    for _ in range(5):
        book.note_failure(ORIGIN, "connect", settings="s")
    other = BreakerBook(edgellm_home, clock=clock)
    assert "open" == other.cloud_state(ORIGIN, "s")
    assert not other.begin_trial(ORIGIN, "s")
    clock.now_s += 60
    assert "half_open" == other.cloud_state(ORIGIN, "s")
    assert [True, False] == [book.begin_trial(ORIGIN, "s"), other.begin_trial(ORIGIN, "s")]
    book.note_answer(ORIGIN)
    assert "closed" == other.cloud_state(ORIGIN, "s")
    assert other.begin_trial(ORIGIN, "s")


def test_other_settings_close_what_a_key_opened(book: BreakerBook) -> None:
    """After 401 the same key is not tried again, and another one is."""
    book.note_failure(ORIGIN, "auth", settings="old")
    assert ("open", "closed") == (book.cloud_state(ORIGIN, "old"), book.cloud_state(ORIGIN, "new"))


def test_one_or_all_can_be_reset(book: BreakerBook) -> None:
    """`reset` closes what it names, and says how many there were."""
    book.note_death(KEY)
    book.note_failure(ORIGIN, "server", settings="s")
    assert 0 == book.reset("nobody")
    assert 1 == book.reset(KEY)
    assert 1 == book.reset()
    assert 0 == book.reset()


def test_the_file_stays_small(book: BreakerBook) -> None:
    """Of very many models the newest are kept."""
    one = LocalHealth(deaths_s=(1.0,))
    book._write({f"model-{n}": one for n in range(259)}, {})
    book.note_death("model-259")
    known = list(book.show().local)
    assert (256, "model-259") == (len(known), known[-1])


def test_steps_at_the_same_time_all_count(book: BreakerBook) -> None:
    """Failures noted by several threads are not lost."""
    threads = [
        threading.Thread(
            target=book.note_failure, args=(ORIGIN, "server"), kwargs={"settings": "s"}
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 4 == book.show().cloud[ORIGIN].n_in_a_row


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"{}",
        b'{"version": 1}',
        b'{"version": 1, "local": {}, "cloud": []}',
        b'{"version": 1, "local": [["a"]], "cloud": []}',
        b'{"version": 1, "local": [["a", {"rest": 1}]], "cloud": []}',
    ],
)
def test_a_damaged_file_is_not_all_well(
    content: bytes, book: BreakerBook, edgellm_home: Path
) -> None:
    """What cannot be read closes no breaker; a reset of all puts an end to it."""
    book.note_death(KEY)
    (edgellm_home / "records" / FILE_NAME).write_bytes(content)
    for use in (
        lambda: book.local_state(KEY),
        lambda: book.note_death(KEY),
        lambda: book.reset(KEY),
    ):
        with pytest.raises(RecordsDamaged, match=r"breakers\.json"):
            use()
    book.reset()
    assert "closed" == book.local_state(KEY)
