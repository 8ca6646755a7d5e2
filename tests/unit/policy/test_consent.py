"""A consent holds for what its text said, and for nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgellm.errors import UsageError
from edgellm.policy.consent import ALL_DATA, DAY_S, MAX_DAYS, Consent, Wanted, draft, look, sealed

NOW_S = 1_800_000_000
WANTED = Wanted("app", "https://api.example.com", "m")
GIVEN = sealed(draft(WANTED, micro_usd_per_day=500_000, now_s=NOW_S))


def state(*consents: Consent, wanted: Wanted = WANTED, now_s: float = NOW_S + 1) -> str:
    return look(consents, wanted, now_s)[0]


def test_the_text_says_all_that_is_agreed_to() -> None:
    """Who, where, which model, what of the conversation, how much, until when."""
    for part in (
        "app may send to https://api.example.com, model m",
        "every message of the conversation",
        "the system prompt",
        "descriptions of tools",
        "$0.50 a day",
        "2027-04-15",
    ):
        assert part in GIVEN.text


def test_a_yes_makes_it_valid() -> None:
    """A draft is no consent; the sealed one is, and has a name."""
    assert "none" == state()
    assert "changed" == state(draft(WANTED, micro_usd_per_day=500_000, now_s=NOW_S))
    assert ("valid", GIVEN) == look([GIVEN], WANTED, NOW_S + 1)
    assert 16 == len(GIVEN.consent_id)


@pytest.mark.parametrize(
    "change",
    [
        {"app": "other"},
        {"origin": "https://api.example.org"},
        {"model": "n"},
        {"data": ("history",)},
        {"max_micro_usd_per_day": 10**9},
        {"granted_s": NOW_S - 1},
        {"expires_s": NOW_S + 1000 * DAY_S},
        {"expires_s": GIVEN.expires_s + 1},
        {"text": "yes"},
        {"text": ""},
        {"seal": "0" * 64},
        {"seal": ""},
    ],
)
def test_an_edited_record_is_no_consent(change: dict[str, object]) -> None:
    """Any field that is not as it was when the user said yes makes it none."""
    assert "valid" != state(replace(GIVEN, **change))


def test_sealing_again_does_not_lengthen_it() -> None:
    """Who knows how the seal is made gets no consent of more than 90 days, nor one of other text."""
    assert "changed" == state(sealed(replace(GIVEN, expires_s=NOW_S + 91 * DAY_S)))
    assert "changed" == state(sealed(replace(GIVEN, max_micro_usd_per_day=10**9)))


@pytest.mark.parametrize("at_s", [-(10**30), -1, 10**15, 10**30])
def test_a_time_that_is_no_date_is_no_consent(at_s: int) -> None:
    """Not even where somebody sealed it: nobody was shown such a text."""
    odd = sealed(replace(GIVEN, granted_s=at_s - 1, expires_s=at_s))
    assert "changed" == state(odd)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (replace(WANTED, app="other"), "none"),
        (replace(WANTED, origin="https://api.example.com:8443"), "none"),
        (replace(WANTED, origin="http://api.example.com"), "none"),
        (replace(WANTED, model="n"), "changed"),
        (replace(WANTED, data=("history",)), "valid"),
    ],
)
def test_another_want_needs_another_consent(wanted: Wanted, expected: str) -> None:
    """Another program or place has none; another model of the same place has changed."""
    assert expected == state(GIVEN, wanted=wanted)


def test_less_data_is_not_more() -> None:
    """A consent for messages alone is none for a system prompt and tools."""
    part = sealed(draft(replace(WANTED, data=("history",)), micro_usd_per_day=1, now_s=NOW_S))
    assert "changed" == state(part)
    assert "valid" == state(part, wanted=replace(WANTED, data=("history",)))
    assert ("history", "system", "tools") == ALL_DATA


def test_it_ends() -> None:
    """After its last second it has expired; so it is for a clock that was set far back."""
    assert "valid" == state(GIVEN, now_s=GIVEN.expires_s - 1)
    assert "expired" == state(GIVEN, now_s=GIVEN.expires_s)
    assert "expired" == state(GIVEN, now_s=NOW_S - 2 * DAY_S)
    assert MAX_DAYS * DAY_S == GIVEN.expires_s - GIVEN.granted_s


def test_a_valid_one_counts_among_others() -> None:
    """Expired and changed ones beside it do no harm, in any order."""
    old = sealed(draft(WANTED, micro_usd_per_day=1, now_s=NOW_S - 100 * DAY_S))
    other = sealed(draft(replace(WANTED, model="n"), micro_usd_per_day=1, now_s=NOW_S))
    assert "valid" == state(old, other, GIVEN) == state(GIVEN, old, other)
    assert "expired" == state(other, old) == state(old, other)


@pytest.mark.parametrize(
    ("change", "amount", "days"),
    [
        ({"app": ""}, 1, 1),
        ({"app": "a\nYou agreed"}, 1, 1),
        ({"model": "\x1b[2J"}, 1, 1),
        ({"origin": "x" * 300}, 1, 1),
        ({"data": ()}, 1, 1),
        ({"data": ("everything",)}, 1, 1),
        ({}, -1, 1),
        ({}, 1, 91),
        ({}, 1, 0),
    ],
)
def test_nothing_unclear_is_asked(change: dict[str, object], amount: int, days: int) -> None:
    """Names that could forge the text, and amounts and times out of range, are refused."""
    with pytest.raises(UsageError):
        draft(replace(WANTED, **change), micro_usd_per_day=amount, now_s=NOW_S, days=days)
