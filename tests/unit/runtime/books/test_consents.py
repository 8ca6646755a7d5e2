"""The book of consents: given, found, shown, taken back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from edgellm.errors import RecordsDamaged
from edgellm.policy.consent import Wanted, draft
from edgellm.runtime.books.consents import FILE_NAME, ConsentBook

NOW_S = 1_800_000_000.0
WANTED = Wanted("app", "http://127.0.0.1:8080", "m")
DRAFT = draft(WANTED, micro_usd_per_day=0, now_s=NOW_S)


@pytest.fixture
def book(edgellm_home: Path) -> ConsentBook:
    return ConsentBook(edgellm_home, clock=lambda: NOW_S + 1)


def test_nobody_consented_at_first_not_even_for_loopback(book: ConsentBook) -> None:
    """A server on this machine needs a consent like any other: it may pass on what it is sent."""
    assert "none" == book.state(WANTED)
    book.grant(DRAFT)
    assert "valid" == book.state(WANTED)
    assert "none" == book.state(replace(WANTED, app="other"))


def test_a_consent_outlives_the_program(book: ConsentBook, edgellm_home: Path) -> None:
    """Another process finds it, as it was given."""
    given = book.grant(DRAFT)
    assert ("valid", given) == ConsentBook(edgellm_home, clock=lambda: NOW_S).find(WANTED)
    assert "expired" == ConsentBook(edgellm_home, clock=lambda: NOW_S * 2).state(WANTED)


def test_a_new_one_takes_the_place_of_the_old(book: ConsentBook) -> None:
    """Granting again for the same place leaves one, for another place both."""
    book.grant(DRAFT)
    newer = book.grant(draft(WANTED, micro_usd_per_day=5, now_s=NOW_S))
    assert (newer,) == book.show()
    book.grant(draft(replace(WANTED, model="n"), micro_usd_per_day=5, now_s=NOW_S))
    assert 2 == len(book.show())


def test_revoking_takes_back(book: ConsentBook) -> None:
    """By program, by place, or all of them; what is left still counts."""
    for app in ("one", "two"):
        for port in (1, 2):
            wanted = Wanted(app, f"http://127.0.0.1:{port}", "m")
            book.grant(draft(wanted, micro_usd_per_day=0, now_s=NOW_S))
    assert 0 == book.revoke(app="three")
    assert 1 == book.revoke(app="one", origin="http://127.0.0.1:1")
    assert 1 == book.revoke(origin="http://127.0.0.1:1")
    assert "valid" == book.state(Wanted("one", "http://127.0.0.1:2", "m"))
    assert 2 == book.revoke()
    assert () == book.show()


def test_an_edited_file_gives_no_leave(book: ConsentBook, edgellm_home: Path) -> None:
    """A record with another amount or model is there, and counts for nothing."""
    book.grant(DRAFT)
    path = edgellm_home / "records" / FILE_NAME
    value = json.loads(path.read_text())
    for field, edited in (("max_micro_usd_per_day", 10**9), ("expires_s", 2 * 10**9)):
        changed = json.loads(json.dumps(value))
        changed["consents"][0][field] = edited
        path.write_text(json.dumps(changed))
        assert "changed" == book.state(WANTED)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"version": 2, "consents": []}',
        b'{"version": 1, "consents": [{"app": "a"}]}',
        b'{"version": 1, "consents": [1]}',
        b'{"version": 1, "consents": {}}',
        b"\xff",
        b" " * (5 << 20),
        b"[" * 100_000,
    ],
)
def test_a_damaged_file_is_no_empty_book(
    content: bytes, book: ConsentBook, edgellm_home: Path
) -> None:
    """What cannot be read is an error everywhere, until all consents are taken back."""
    book.grant(DRAFT)
    path = edgellm_home / "records" / FILE_NAME
    path.write_bytes(content)
    for use in (
        book.show,
        lambda: book.state(WANTED),
        lambda: book.grant(DRAFT),
        lambda: book.revoke(app="app"),
    ):
        with pytest.raises(RecordsDamaged, match=r"consents\.json"):
            use()
    assert 0 == book.revoke()
    assert "none" == book.state(WANTED)
