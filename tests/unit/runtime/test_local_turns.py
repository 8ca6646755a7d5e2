"""Turns that are kept: taken up again in another session, as if it had never ended."""

from __future__ import annotations

import hashlib
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from edgellm.core import Message, Tier
from edgellm.engines.scripted import CHATML, ScriptedEngine
from edgellm.runtime.prompting import PromptText
from edgellm.runtime.session import SessionOptions
from edgellm.runtime.turns import Turns, head_names, text_name
from edgellm.store.snapshots import SnapshotStore
from edgellm.store.texts import Texts

if TYPE_CHECKING:
    from pathlib import Path

ANSWERS = ("The first answer.", "The second one.", "The third.", "The fourth.")
TURNS = SessionOptions(snapshot=Tier.EXACT, snapshot_turns=True)
KINDS = [
    {"memory": memory, "restore_moves": moves} for memory in ("dense", "window") for moves in (0, 1)
]
THINKING = (
    "{% for m in messages %}{% set said = m.content.split('</think>')[-1] if m.role == 'assistant' "
    "else m.content %}{{ '<|im_start|>' + m.role + '\\n' + said + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def talk(session: Any, ask: Any, n_turns: int, turns: list[str] | None = None) -> list[Any]:
    """Ask on, and return what was answered."""
    turns = [] if turns is None else turns
    dones = []
    for _ in range(n_turns):
        turns.append(f"Question {len(turns)}?")
        dones.append(session.generate(ask(*turns)))
        assert session._writer.settle(30)
        turns.append(dones[-1].text)
    return dones


def behind(engine: Any, n_tokens: int) -> list[Any]:
    """Return the decode calls from a position on."""
    return [call for call in engine.decoded if call[0] >= n_tokens]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("tier", [Tier.EXACT, Tier.Q8])
def test_another_session_goes_on_as_if_it_had_never_ended(
    start, ask, store, written, monkeypatch, kind: dict[str, Any], tier: Tier
) -> None:
    """Each turn in a session of its own: the calls and their bits are those of one session."""
    monkeypatch.setattr("edgellm.engines.scripted_memory.N_CHANNELS", 64)
    options = SessionOptions(snapshot=tier, snapshot_turns=True)
    one, whole = start(ANSWERS, options=options, store=store, **kind)
    expected = [done.text for done in talk(one, ask, 4)]
    assert (tier is Tier.EXACT) == (list(ANSWERS) == expected)  # rounding spoils a script
    one.close()
    store.remove()
    turns: list[str] = []
    n_held = 0
    for n, answer in enumerate(expected):
        session, engine = start(ANSWERS, options=options, store=store, **kind)
        (done,) = talk(session, ask, 1, turns)
        assert (answer, n_held) == (done.text, done.usage.reused_tokens)
        if n:
            assert ("hit: continues the conversation", "hit") == (
                *(done.snapshot.reason, done.snapshot.code),
            )
        assert behind(whole, n_held)[: len(engine.decoded)] == engine.decoded
        n_held = session.engine.position
        session.close()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_conversation_between_two_others_is_taken_up(start, ask, store, written, kind) -> None:
    """A, B, A in one session: the second part of A is what it would have been without B."""
    alone, whole = start(ANSWERS, options=TURNS, store=store, **kind)
    talk(alone, ask, 2)
    alone.close()
    store.remove()
    session, engine = start(ANSWERS, options=TURNS, store=store, **kind)
    turns: list[str] = []
    talk(session, ask, 1, turns)
    n_held = engine.position
    written(session)
    session.generate(ask("Something else?", system="You answer in verse, at length. " * 6))
    written(session)
    n_calls = len(engine.decoded)
    (done,) = talk(session, ask, 1, turns)
    assert (n_held, ANSWERS[1]) == (done.usage.reused_tokens, done.text)
    assert behind(whole, n_held) == engine.decoded[n_calls:]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_thinking_that_is_cut_out_leaves_the_older_turns(start, ask, store, kind) -> None:
    """The last answer is read again without its thoughts, nothing before it is."""
    script = tuple(f"<think>hm, {n}</think>So it is, {n}." for n in range(4))
    options = {"options": TURNS, "store": store, "chat_template": THINKING, **kind}
    one, whole = start(script, **options)
    reused = [done.usage.reused_tokens for done in talk(one, ask, 4)]
    one.close()
    turns: list[str] = []
    for n in range(4):
        session, engine = start(script, **options)
        (done,) = talk(session, ask, 1, turns)
        session.close()
        calls = [call[0] for call in engine.decoded]
        if n:
            assert "hit" == done.snapshot.code
            assert reused[n] <= done.usage.reused_tokens
            assert done.usage.reused_tokens > done.usage.prompt_tokens - 60
            assert min(calls) == done.usage.reused_tokens
    store.remove()
    again, other = start(script, **options)
    talk(again, ask, 4)
    assert whole.decoded == other.decoded


def test_without_the_option_only_the_prefix_is_kept(start, ask, store) -> None:
    """It is the default: one file."""
    session, _ = start(ANSWERS, store=store)
    talk(session, ask, 2)
    session.close()
    assert 1 == len(list(store.entries()))


@pytest.mark.parametrize("options", [TURNS, SessionOptions(snapshot=Tier.OFF, snapshot_turns=True)])
def test_an_answer_that_was_cut_short_is_taken_up_without_its_last_token(
    start, ask, store, options
) -> None:
    """That one was never decoded; it is read with what follows."""
    options = TURNS
    session, _ = start(ANSWERS, options=options, store=store)
    done = session.generate(ask("Why?", max_tokens=5))
    n_held = session.engine.position
    session.close()
    session, engine = start(ANSWERS, options=options, store=store)
    again = session.generate(ask("Why?", done.text, "And?"))
    assert n_held == again.usage.reused_tokens == engine.decoded[0][0]


def test_a_conversation_that_says_otherwise_is_not_taken_up(start, ask, store) -> None:
    """An answer that was edited, a question, or the system prompt: the longest equal part serves."""
    session, _ = start(ANSWERS, options=TURNS, store=store)
    turns: list[str] = []
    talk(session, ask, 2, turns)
    session.close()
    n_first = len(turns[0])
    for changed, at_least in ((1, 0), (2, n_first)):
        edited = list(turns)
        edited[changed] = "Something else."
        session, _ = start(ANSWERS, options=TURNS, store=store)
        done = session.generate(ask(*edited, "And now?"))
        fresh, _ = start(ANSWERS, options=SessionOptions(snapshot=Tier.OFF, snapshot_turns=True))
        expected = fresh.generate(ask(*edited, "And now?"))
        assert expected.text == done.text
        assert expected.usage.prompt_tokens == done.usage.prompt_tokens
        assert done.usage.reused_tokens > at_least
        session.close()


def test_tokens_that_do_not_say_the_text_are_not_used(start, ask, store, monkeypatch) -> None:
    """The hash finds, the tokens decide."""
    session, engine = start(ANSWERS, options=TURNS, store=store)
    done = session.generate(ask("Why?"))
    tokens = engine._memory.tokens()
    session.close()
    find = Texts.find
    wrongs = (tokens[:-1], [*tokens, 65], [0, *tokens[1:]], [65, *tokens], [])
    for n, wrong in enumerate(wrongs):

        def lie(texts: Texts, name: str, wrong: Any = tuple(wrong)) -> Any:
            found = find(texts, name)
            return found and (wrong, found[1])

        monkeypatch.setattr(Texts, "find", lie)
        session, _ = start(ANSWERS, options=TURNS, store=store)
        again = session.generate(ask("Why?", done.text, f"And {n}?"))
        assert again.usage.reused_tokens < len(tokens)
        session.close()
    assert len(engine.decoded[0][1]) < again.usage.reused_tokens  # the question's end is found


def test_control_tokens_are_held_against_their_places(start) -> None:
    """A text that spells them is another conversation than one that has them."""
    session, engine = start(chat_template=CHATML)
    session.room.open()
    turns = Turns(engine, None)  # type: ignore[arg-type]  # not asked here
    text = "<|im_start|>user\nhi<|im_end|>"
    controls = ((0, 12), (19, 29))
    tokens = engine.tokenize(text, special=True, add_bos=False)
    assert turns._spells(tokens, PromptText(text, controls))
    assert not turns._spells(tokens, PromptText(text, controls[:1]))
    assert not turns._spells(list(text.encode()), PromptText(text, controls))
    assert turns._spells(list(text.encode()), PromptText(text, ()))
    assert text_name(text, (), controls) != text_name(text, (), ())
    assert text_name(text, (12,), controls) != text_name(text, (13,), controls)


def test_names_of_beginnings_are_those_of_their_texts() -> None:
    """Hashed in one go or each by itself, surrogates too."""
    text, controls = "ab\ud83d\ude00cdef\u00e4gh", ((0, 1), (4, 6))
    ends = range(len(text), 0, -1)
    expected = {
        end: text_name(text[:end], (3,), [span for span in controls if span[1] <= end])
        for end in ends
    }
    assert expected == head_names(text, (3,), controls, ends)
    assert len(expected) == len(set(expected.values()))


def test_a_long_conversation_is_looked_for_in_one_look_at_the_folder(tmp_path: Path) -> None:
    """With thirty answers and a thousand files it takes some milliseconds."""
    store = SnapshotStore(tmp_path, floor_bytes=0)
    engine = ScriptedEngine("")
    engine.reserve(256)
    folder = store.files.folder(engine.fingerprint().digest())
    folder.mkdir(parents=True)
    for n in range(500):
        key = hashlib.sha256(str(n).encode()).hexdigest()
        (folder / f"{key[:32]}.ekv").touch()
        (folder / f"{key[32:]}-{key[:32]}.ekt").touch()
    messages = []
    for n in range(30):
        messages.append(Message("user", f"question number {n} " * 5))
        messages.append(Message("assistant", f"answer number {n} " * 20))
    text = "".join(message.role + message.content for message in messages)
    turns = Turns(engine, store)
    boundary: Any = SimpleNamespace(cuts=(10,))
    took_s = []
    for _ in range(5):
        begun = time.process_time()
        assert turns.recall(messages, PromptText(text), boundary) is None
        took_s.append(time.process_time() - begun)
    assert min(took_s) < 0.02  # 3 ms on the machine where listing anew each time took 800
