"""Why a start is not warm: seeded causes, and the class each of them gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest

from edgellm.core import Message, Tier
from edgellm.engines.scripted import CHATML, ScriptedEngine
from edgellm.runtime.session import SessionOptions
from edgellm.runtime.why import Doctor, Why
from edgellm.store.snapshots import Saved, SnapshotStore

DAY = datetime(2026, 11, 29, 9, 59, tzinfo=timezone.utc)
SYSTEM = (
    "You answer in one sentence, name your sources, and never raise your voice.\n"
    "Who asks twice is answered twice, and nobody is told what the others asked about.\n"
)


TOOLS = ('{"name": "get_weather"}', '{"name": "get_time"}')


def _doctor(store: SnapshotStore, engine: Any, clock: datetime = DAY, **options: Any) -> Doctor:
    engine.reserve(4096)
    return Doctor(engine, store, SessionOptions(**options), clock=lambda: clock)


def _look(store: SnapshotStore, system: str = SYSTEM, *, engine: Any = None, **options: Any) -> Why:
    doctor = _doctor(store, engine or ScriptedEngine(), **options)
    return doctor.look([Message("system", system)])


def _seed(
    store: SnapshotStore,
    system: str = SYSTEM,
    *,
    engine: Any = None,
    state: Callable[[int], Any] | None = None,
    fields: Mapping[str, str] | None = None,
    **options: Any,
) -> None:
    """Store the prefix of a system prompt, as an engine with other hard fields would if asked."""
    engine = engine or ScriptedEngine()
    prompt = _doctor(store, engine, **options).prompt([Message("system", system)])
    prefix = prompt.tokens[: prompt.n_prefix]
    engine.decode(prefix)
    fingerprint = engine.fingerprint()
    hard = {**dict(fingerprint.hard), **(fields or {})}
    fingerprint = replace(fingerprint, hard=tuple(sorted(hard.items())))
    kept = state(len(prefix)) if state else engine.capture()
    outcome = store.save(fingerprint, prefix, kept)
    assert isinstance(outcome, Saved)


def _classes(found: Why) -> tuple[str, str]:
    return found.code, found.cause


def test_a_stored_prefix_is_a_hit(store: SnapshotStore):
    """What is stored is found, with its key and all of its tokens."""
    _seed(store)
    found = _look(store)
    assert ("hit", "", "") == (found.code, found.cause, found.fix)
    assert found.n_usable == found.n_tokens > 128
    assert [found.key] == [entry.key for entry in store.entries()]


def test_a_hit_that_may_round_otherwise_says_so(store: SnapshotStore):
    """As the run does that uses it."""
    _seed(store)
    assert "rounding" not in _look(store).message
    found = _look(store, engine=ScriptedEngine(n_batch=64))
    assert "hit" == found.code
    assert found.message.endswith("; rounding may differ (n_batch: 512, now 64)")


def test_a_changed_line_is_found(store: SnapshotStore):
    """An edit is told by token, by offset in the prompt, by line and column, and by both texts."""
    _seed(store)
    found = _look(store, SYSTEM.replace("asks twice", "asks three times"))
    difference = found.difference
    assert ("not_stored", "text") == _classes(found)
    assert difference is not None
    assert (2, 11) == (difference.line, difference.column)
    # `twice` and `three` begin with the same letter.
    before = "<|im_start|>system\n" + SYSTEM[: SYSTEM.index("asks twice") + len("asks t")]
    assert len(before) == difference.offset
    assert ("w", "h") == (chr(difference.stored_id or 0), chr(difference.now_id or 0))
    assert "asks twice" in difference.stored_text
    assert "asks three times" in difference.now_text


@pytest.mark.parametrize(
    ("stored", "now", "cause"),
    [
        (f"Today is 2026-11-28. {SYSTEM}", f"Today is 2026-11-29. {SYSTEM}", "date"),
        (f"{SYSTEM}Run 3fa9c2d14b00.", f"{SYSTEM}Run 3fa9c2d99e00.", "id"),
        (f"{SYSTEM}{TOOLS[0]}, {TOOLS[1]}", f"{SYSTEM}{TOOLS[1]}, {TOOLS[0]}", "tool_order"),
        (SYSTEM, f"{SYSTEM}Be brief.", "text"),
    ],
)
def test_differences_in_the_system_prompt(store: SnapshotStore, stored: str, now: str, cause: str):
    """Each kind of change of the text gets its class."""
    _seed(store, stored)
    assert ("not_stored", cause) == _classes(_look(store, now))


def test_a_doubled_beginning(store: SnapshotStore):
    """A beginning token that one of two templates writes is told as that."""
    _seed(store, engine=ScriptedEngine(chat_template="{{ bos_token }}" + CHATML))
    assert ("not_stored", "bos") == _classes(_look(store))


def test_another_template(store: SnapshotStore):
    """A change of what stands around the messages is the template's."""
    _seed(store, chat_template=CHATML.replace("system", "System").replace("m.role", "m.role|upper"))
    found = _look(store)
    assert ("not_stored", "template") == _classes(found)
    assert found.difference is not None
    assert found.difference.line is None


@pytest.mark.parametrize(
    ("field", "value", "cause"),
    [
        ("model", "0" * 32, "model_file"),
        ("adapters", "ab:1", "lora"),
        ("rope", "yarn 2", "rope"),
        ("kv_type", "q8_0", "kv_type"),
        ("flash_attention", "off", "flash_attention"),
        ("engine", "scripted 0", "build"),
    ],
)
def test_fields_of_the_fingerprint(store: SnapshotStore, field: str, value: str, cause: str):
    """The same tokens under another fingerprint name the field, what is stored and what is now."""
    _seed(store, fields={field: value})
    found = _look(store)
    assert ("not_stored", cause) == _classes(found)
    assert [(field, value)] == [(change.name, change.stored) for change in found.changes]


def test_a_coarser_tier(store: SnapshotStore, snapshot_files: Any):
    """A rounded snapshot does not serve who asks for the bits, and serves who asks for less."""
    _seed(store, state=lambda n: snapshot_files.packed(Tier.Q4, n))
    assert ("too_coarse", "tier") == _classes(_look(store))
    assert "hit" == _look(store, snapshot=Tier.Q4).code


def test_damage(store: SnapshotStore):
    """A damaged file is told; it is still there when it is asked for again."""
    _seed(store)
    (entry,) = store.entries()
    content = bytearray(entry.path.read_bytes())
    content[-200] ^= 4
    entry.path.write_bytes(content)
    for _ in range(2):
        assert ("corrupt", "damaged") == _classes(_look(store))


def test_nothing_stored(store: SnapshotStore):
    """An empty store, and one with another prompt of the same model."""
    assert ("not_stored", "never_stored") == _classes(_look(store))
    _seed(store, "Zebras xylophone quietly; jumbled vexing wizards hack. " * 4)
    found = _look(store)
    assert ("not_stored", "never_stored") == _classes(found)
    assert found.difference is None


def test_a_shorter_prefix_is_too_short(store: SnapshotStore):
    """What is never kept is not looked for."""
    assert ("too_short", "too_short") == _classes(_look(store, "Be kind."))


def test_without_a_prefix_there_is_nothing_to_keep(store: SnapshotStore):
    """A prompt that begins with the user's words has no prefix."""
    found = _look(store, engine=ScriptedEngine(chat_template="{{ messages[-1].content }}"))
    assert ("no_prefix", "no_prefix") == _classes(found)


def test_off_is_told(store: SnapshotStore):
    """Off because the user said so."""
    assert ("off", "off") == _classes(_look(store, snapshot=Tier.OFF))


def test_an_earlier_boundary_is_a_hit_of_part(store: SnapshotStore):
    """Of documents in a fixed order those before the first that changed are there."""
    rules = SYSTEM * 2
    engine = ScriptedEngine()
    doctor = _doctor(store, engine)
    first = Message("system", f"{rules}\n\n{SYSTEM}", marks=(len(rules),))
    prompt = doctor.prompt([first])
    assert len(prompt.cuts) > 1
    engine.decode(prompt.tokens[: prompt.cuts[0]])
    store.save(engine.fingerprint(), prompt.tokens[: prompt.cuts[0]], engine.capture())
    other = Message("system", f"{rules}\n\n{SYSTEM.upper()}", marks=(len(rules),))
    found = _doctor(store, ScriptedEngine()).look([other])
    assert ("hit", prompt.cuts[0]) == (found.code, found.n_usable)
    assert found.n_usable < found.n_tokens
    assert "earlier boundary" in found.message


def test_the_same_tokens_cut_elsewhere(store: SnapshotStore):
    """Documents given as one text, or one as several: nothing of the text differs."""
    _seed(store)
    half = SYSTEM.index("Who asks")
    marked = Message("system", SYSTEM, marks=(half,))
    doctor = _doctor(store, ScriptedEngine())
    assert doctor.prompt([marked]).tokens == doctor.prompt([Message("system", SYSTEM)]).tokens
    found = doctor.look([marked])
    assert ("not_stored", "cuts") == _classes(found)
    assert "cut elsewhere" in found.message
    assert (found.difference, found.changes) == (None, ())
    assert found.created_s > 0
    assert found.key not in [entry.key for entry in store.entries()]
