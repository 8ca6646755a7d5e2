"""`edgellm consent`: the text is shown, No is preselected, and nobody there is a no."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from edgellm.policy.consent import Wanted
from edgellm.runtime.books.consents import ConsentBook

URL = "http://127.0.0.1:8080/v1"
ORIGIN = "http://127.0.0.1:8080"
HERE = ("--endpoint", URL, "--endpoint-model", "m")


@pytest.fixture(autouse=True)
def screen(monkeypatch) -> None:
    """Let stderr be a terminal: whoever says yes must have seen the text."""
    monkeypatch.setattr("edgellm.cli.streams.is_terminal", lambda stream: stream is sys.stderr)


def state(home: Path, app: str = "edgellm", origin: str = ORIGIN, model: str = "m") -> str:
    return ConsentBook(home).state(Wanted(app, origin, model))


@pytest.mark.parametrize("typed", [b"y\n", b"Yes\n"])
def test_a_yes_on_a_terminal_grants(cli: Any, edgellm_home: Path, typed: bytes) -> None:
    """The text stands on stderr before the question; stdout has the id alone."""
    result = cli("consent", "grant", *HERE, stdin=typed, terminal=True)
    (given,) = ConsentBook(edgellm_home).show()
    assert (result.code, result.out) == (0, f"granted: {given.consent_id}\n")
    assert result.err.startswith(f"edgellm may send to {ORIGIN}, model m:\n")
    assert result.err.index("the system prompt") < result.err.index("allow it? [y/N] ")
    assert given.text in result.err
    assert (state(edgellm_home), given.max_micro_usd_per_day) == ("valid", 0)


@pytest.mark.parametrize("typed", [b"\n", b"n\n", b"", b"ok\n"])
def test_anything_else_is_a_no(cli: Any, edgellm_home: Path, typed: bytes) -> None:
    """Enter alone, too: exit 1, and no file is written."""
    result = cli("consent", "grant", *HERE, stdin=typed, terminal=True)
    assert (result.code, result.out) == (1, "")
    assert result.err.endswith("nothing was granted\n")
    assert not edgellm_home.exists()


def test_off_a_terminal_nothing_is_granted_without_yes(cli: Any, edgellm_home: Path) -> None:
    """A piped `y` is nobody's word; with --json the error is on stdout too."""
    result = cli("consent", "grant", *HERE, "--json", stdin=b"y\n")
    assert (result.code, [line["type"] for line in result.lines]) == (1, ["error"])
    assert "nobody is there to ask" in result.err
    assert not edgellm_home.exists()
    result = cli("consent", "grant", *HERE, "--yes")
    assert (result.code, state(edgellm_home)) == (0, "valid")
    assert "may send to" in result.err


def test_who_has_not_seen_the_text_cannot_say_yes(
    cli: Any, edgellm_home: Path, monkeypatch
) -> None:
    """Where stderr goes to a file, typing yes grants nothing."""
    monkeypatch.setattr("edgellm.cli.streams.is_terminal", lambda _: False)
    result = cli("consent", "grant", *HERE, stdin=b"y\n", terminal=True)
    assert (result.code, result.out, edgellm_home.exists()) == (1, "", False)


def test_what_is_granted_is_what_was_asked_for(cli: Any, edgellm_home: Path) -> None:
    """Program, amount and days; another program has no leave by that."""
    flags = ("--app", "editor", "--usd-day", "0.5", "--days", "3", "--yes", "--json")
    (line,) = cli("consent", "grant", *HERE, *flags).lines
    assert (line["type"], line["app"], line["state"]) == ("consent", "editor", "valid")
    assert line["max_micro_usd_per_day"] == 500_000
    assert line["expires_s"] - line["granted_s"] == 3 * 24 * 3600
    assert abs(line["granted_s"] - time.time()) < 60
    assert "$0.50 a day" in line["text"]
    assert (state(edgellm_home, "editor"), state(edgellm_home)) == ("valid", "none")


def test_endpoint_and_amount_come_from_the_file(cli: Any, edgellm_home: Path) -> None:
    """What stands in the settings need not be typed again."""
    result = cli("consent", "grant", "--yes")
    assert (result.code, "no endpoint is configured" in result.err) == (2, True)
    cli("config", "set", "endpoint.url", URL)
    cli("config", "set", "endpoint.model", "m")
    cli("config", "set", "budget.usd_per_day", "0.25")
    (line,) = cli("consent", "grant", "--yes", "--json").lines
    assert (line["origin"], line["model"]) == (ORIGIN, "m")
    assert line["max_micro_usd_per_day"] == 250_000


def test_what_is_still_in_the_way_is_said(cli: Any) -> None:
    """A closed mode, an unknown price, and a price that nothing may be spent on."""
    far = ("--endpoint", "https://api.example.com", "--endpoint-model", "m", "--yes")
    err = cli("consent", "grant", *far).err
    assert "mode private: nothing is sent yet" in err
    assert "its price is not known" in err
    for name, value in (
        ("mode", "prefer-local"),
        ("endpoint.url", "https://api.example.com"),
        ("endpoint.model", "m"),
        ("endpoint.usd_per_mtok_in", "1"),
        ("endpoint.usd_per_mtok_out", "1"),
    ):
        cli("config", "set", name, value)
    err = cli("consent", "grant", "--yes").err
    assert "mode" not in err.splitlines()[-1]
    assert "nothing may be spent" in err.splitlines()[-1]
    assert "nothing may" not in cli("consent", "grant", "--yes", "--usd-day", "1").err


@pytest.mark.parametrize(
    "flags",
    [
        *(["--days", "91"], ["--days", "0"], ["--usd-day", "-1"], ["--usd-day", "nan"]),
        *(["--app", ""], ["--endpoint", "https://a:b@c/"], ["--endpoint-model", "a\nb"]),
    ],
)
def test_what_cannot_be_granted_is_not_asked_for(
    cli: Any, edgellm_home: Path, flags: list[str]
) -> None:
    """Exit 2 before the question."""
    result = cli("consent", "grant", *HERE, *flags, stdin=b"y\n", terminal=True)
    assert (result.code, result.out) == (2, "")
    assert "allow it" not in result.err
    assert not edgellm_home.exists()


def test_show_lists_what_holds_and_what_does_not(cli: Any, edgellm_home: Path) -> None:
    """A record that somebody edited is no consent any more."""
    assert cli("consent", "show").err == "nothing was granted\n"
    cli("consent", "grant", *HERE, "--yes")
    assert cli("consent", "show").out.splitlines()[1].split()[:6] == [
        *("edgellm", ORIGIN, "m", "$0.00"),
        *(cli("consent", "show").out.splitlines()[1].split()[4], "valid"),
    ]
    file = edgellm_home / "records" / "consents.json"
    file.write_text(
        file.read_text().replace('"max_micro_usd_per_day": 0', '"max_micro_usd_per_day": 9')
    )
    (line,) = cli("consent", "show", "--json").lines
    assert (line["state"], line["max_micro_usd_per_day"]) == ("changed", 9)


def test_revoke(cli: Any, edgellm_home: Path) -> None:
    """By endpoint, by program, or all; exit 3 where there is none of that name."""
    for app in ("edgellm", "editor"):
        cli("consent", "grant", *HERE, "--app", app, "--yes")
    assert cli("consent", "revoke", "https://other.example.com").code == 3
    assert cli("consent", "revoke", URL, "--app", "editor").out == "revoked: 1\n"
    assert (state(edgellm_home, "editor"), state(edgellm_home)) == ("none", "valid")
    assert cli("consent", "revoke", "--all", "--json").lines == [
        {"type": "revoked", "n_consents": 1}
    ]
    assert state(edgellm_home) == "none"
    for wrong in ([], ["--all", "--app", "editor"]):
        assert cli("consent", "revoke", *wrong).code == 2


def test_damaged_records_are_said_and_can_be_revoked(cli: Any, edgellm_home: Path) -> None:
    """Exit 5, never a silent reset; the hint is a line that works."""
    cli("consent", "grant", *HERE, "--yes")
    (edgellm_home / "records" / "consents.json").write_text("{}", encoding="utf-8")
    result = cli("consent", "show")
    assert (result.code, "`edgellm consent revoke --all`" in result.err) == (5, True)
    assert cli("consent", "grant", *HERE, "--yes").code == 5
    assert cli("consent", "revoke", "--all").code == 0
    assert cli("consent", "show").code == 0
