"""`edgellm audit`, `edgellm why` and `edgellm stats --cost`, over logs that were really written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgellm.config import set_value
from edgellm.routing import CloudUse
from edgellm.runtime.books.audit import AuditLog
from edgellm.runtime.books.record import SENDING, AuditRecord

ORIGIN = "https://api.example.com"
HERE = AuditRecord(
    app="edgellm",
    reason="the first choice",
    model="Tiny",
    finish="stop",
    prompt_tokens=1000,
    completion_tokens=500,
)
THERE = AuditRecord(
    app="editor",
    mode="prefer-local",
    route="cloud",
    reason="the model does not fit as planned",
    trigger="no_fit",
    model="Tiny",
    finish="stop",
    n_switches=1,
    cloud=CloudUse(ORIGIN, "m", 30, 10, 7, usd=0.000044, bytes_out=512, bytes_in=900),
    micro_usd=44,
    consent_id="c0ffee",
    reservation_id="r1",
)


@pytest.fixture
def ids(edgellm_home: Path) -> list[str]:
    """Two answers, one made here and one by an endpoint."""
    log = AuditLog(edgellm_home)
    return [log.append(record, b"a prompt") for record in (HERE, THERE)]


def test_nothing_was_answered_yet(cli: Any, edgellm_home: Path) -> None:
    """Said on stderr; why has nothing to explain, and no folder is made by reading."""
    for command in (("show",), ("verify",)):
        assert cli("audit", *command).code == 0
    assert cli("audit", "show").err == "no answers yet\n"
    result = cli("why")
    assert (result.code, result.out) == (3, "")
    assert "no answer was made yet" in result.err


def test_show_lists_the_latest(cli: Any, ids: list[str]) -> None:
    """A line each, the newest last; --last takes fewer."""
    heading, first, second = cli("audit", "show").out.splitlines()
    assert heading.split()[:3] == ["ID", "TIME", "APP"]
    assert [first.split()[0], second.split()[0]] == ids
    assert "1000+500" in first
    assert second.split()[-3:] == ["0+0", "30+7", "$0.000044"]
    (line,) = cli("audit", "show", "--last", "1", "--json").lines
    assert (line["type"], line["id"], line["app"]) == ("record", ids[1], "editor")
    assert line["cloud"]["bytes_out"] == 512


def test_verify_counts_what_is_whole(cli: Any, ids: list[str]) -> None:
    """Exit 0 and the number."""
    assert cli("audit", "verify").out == "records: 2, all as they were written\n"
    told = {"type": "audit", "ok": True, "n_records": 2, "n_open": 0}
    assert cli("audit", "verify", "--json").lines == [told]


def test_an_edited_record_is_found_and_the_log_can_be_put_aside(
    cli: Any, ids: list[str], edgellm_home: Path
) -> None:
    """Exit 5 and which one; the hint is a command that keeps the old log."""
    log = edgellm_home / "records" / "audit.jsonl"
    log.write_bytes(log.read_bytes().replace(b"Tiny", b"Huge", 1))
    result = cli("audit", "verify", "--json")
    assert (result.code, result.lines[0]["code"]) == (5, "records_damaged")
    assert "record 0 is not what was written" in result.err
    assert "`edgellm audit restart`" in result.err
    assert cli("audit", "restart", stdin=b"\n", terminal=True).code == 1
    assert log.exists()
    (line,) = cli("audit", "restart", "--json").lines
    assert (Path(line["aside"]) / "records" / "audit.jsonl").exists()
    assert cli("audit", "verify").out == "records: 1, all as they were written\n"


def test_why_explains_one_answer(cli: Any, ids: list[str]) -> None:
    """By its id, or the latest; what was sent, at what cost and by which leave."""
    assert cli("why").out == cli("why", ids[1]).out
    shown = cli("why", ids[1]).out
    for words in (
        *("cloud (start)", "the model does not fit as planned", "no fit", "c0ffee", "r1"),
        f"{ORIGIN}, m: 30 tokens read (10 cached), 7 made, $0.000044, 512 B sent",
    ):
        assert words in shown
    assert "sent out:         nothing" in cli("why", ids[0]).out
    assert cli("why", ids[0], "--json").lines[0]["completion_tokens"] == 500
    assert "a prompt" not in shown
    assert cli("why", "7-00000000").code == 3


def test_costs(cli: Any, ids: list[str]) -> None:
    """Tokens on both sides, spend, and what the ones made here would have cost there."""
    (line,) = cli("stats", "--cost", "--json").lines
    assert line["type"] == "costs"
    assert (line["local_prompt_tokens"], line["local_completion_tokens"]) == (1000, 500)
    assert (line["cloud_prompt_tokens"], line["cloud_completion_tokens"]) == (30, 7)
    assert (line["spent_micro_usd"], line["avoided_micro_usd"]) == (44, None)
    assert "not known: set endpoint.url" in cli("stats", "--cost").out
    for name, value in (
        ("endpoint.url", ORIGIN),
        ("endpoint.model", "m"),
        ("endpoint.usd_per_mtok_in", "1"),
        ("endpoint.usd_per_mtok_out", "2"),
        ("local_usd_per_mtok", "0.1"),
        ("budget.usd_per_day", "1"),
    ):
        set_value(name, value)
    shown = cli("stats", "--cost").out
    for words in (
        *("$0.000044", "30 read (10 cached), 7 made", "1000 read, 500 made"),
        "$0.00185 at the endpoint's prices",  # (1000 + 2 * 500 - 150) millionths
        "$0.00, 0 tokens, 0 B; the limit is far",
    ):
        assert words in shown
    (line,) = cli("stats", "--cost", "--json").lines
    assert (line["avoided_micro_usd"], line["local_micro_usd"], line["budget"]) == (
        *(1850, 150, "below"),
    )


def test_what_was_sent_and_never_ended_is_shown(
    cli: Any, ids: list[str], edgellm_home: Path
) -> None:
    """A request whose program was killed is listed, counted and explained; one that ended is not."""
    log = AuditLog(edgellm_home)
    for turn in ("a", "b"):
        log.append(replace(THERE, finish=SENDING, turn=turn, micro_usd=900), b"a prompt")
    log.append(replace(THERE, turn="a"), b"a prompt")
    shown = cli("audit", "show")
    assert [row.split()[0] for row in shown.out.splitlines()[1:]] == [*ids, *_names(log)[2:]]
    assert shown.out.splitlines()[3].split()[-4] == "sending"
    assert "sent, end not known: 1 (its program was killed" in shown.err
    verified = cli("audit", "verify")
    assert verified.out.splitlines()[0] == "records: 5, all as they were written"
    assert verified.out.splitlines()[1].startswith("sent, end not known: 1")
    assert cli("audit", "verify", "--json").lines == [
        {"type": "audit", "ok": True, "n_records": 5, "n_open": 1}
    ]
    told = cli("why", _names(log)[2]).out
    assert "not known: the program was killed" in told
    assert "at most, " in told
    assert "answers by endpoints: 2, 1 of unknown end" in cli("stats", "--cost").out


def _names(log: AuditLog) -> list[str]:
    return [name for name, _ in log.show()]
