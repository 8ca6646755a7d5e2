"""`edgellm breaker`: what rests, why, and how it is let go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgellm.runtime.books.breakers import BreakerBook

MODEL, ORIGIN, OTHER = "abc/cpu/4096", "https://api.example.com", "http://127.0.0.1:8080"


@pytest.fixture
def failed(edgellm_home: Path) -> BreakerBook:
    """A model that died twice, an endpoint that failed once, and one that refused the key."""
    book = BreakerBook(edgellm_home)
    for _ in range(2):
        book.note_death(MODEL)
    book.note_failure(OTHER, "server", settings="mark-of-a-key")
    book.note_failure(ORIGIN, "auth", settings="mark-of-a-key")
    return book


def test_nothing_failed(cli: Any, edgellm_home: Path) -> None:
    """Said on stderr; nothing is made."""
    result = cli("breaker", "show")
    assert (result.code, result.out, result.err) == (0, "", "nothing has failed lately\n")
    assert not edgellm_home.exists()


def test_show(cli: Any, failed: BreakerBook) -> None:
    """Each with its state and a reason; the mark of a key is nobody's to see."""
    rows = {line.split()[1]: line for line in cli("breaker", "show").out.splitlines()[1:]}
    assert "open    memory ran out 2 times" in rows[MODEL]
    assert "closed  1 of the last 1 failed" in rows[OTHER]
    assert "open    its key or address was refused" in rows[ORIGIN]
    result = cli("breaker", "show", "--json")
    assert {(row["kind"], row["state"]) for row in result.lines} == {
        *(("local", "open"), ("cloud", "closed"), ("cloud", "open")),
    }
    assert "mark-of-a-key" not in result.out


def test_reset(cli: Any, failed: BreakerBook) -> None:
    """One by its name, or all; exit 3 for a name that is not there."""
    assert cli("breaker", "reset", "nobody").code == 3
    assert cli("breaker", "reset", ORIGIN).out == "reset: 1\n"
    assert failed.local_state(MODEL) == "open"
    assert cli("breaker", "reset", "--json").lines == [{"type": "reset", "n_breakers": 2}]
    assert failed.local_state(MODEL) == "closed"
    assert cli("breaker", "reset").code == 0


def test_a_damaged_file_is_reset_by_the_command_that_its_error_names(
    cli: Any, failed: BreakerBook, edgellm_home: Path
) -> None:
    """Exit 5 until then."""
    (edgellm_home / "records" / "breakers.json").write_text("[]", encoding="utf-8")
    result = cli("breaker", "show")
    assert result.code == 5
    assert cli("breaker", "reset").code == 0
    assert cli("breaker", "show").code == 0
