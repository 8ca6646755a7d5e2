"""The stable prefix is the same for every user text, in token space."""

from __future__ import annotations

import random
import time
from contextlib import closing
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgellm.core import Message
from edgellm.engines.base import EngineSettings
from edgellm.engines.llamacpp import LlamaCppEngine
from edgellm.errors import TemplateError
from edgellm.prompt.boundary import stable_prefix
from edgellm.prompt.encoding import PromptEncoder
from edgellm.prompt.provenance import PromptText, PromptWriter
from edgellm.prompt.spellings import Spellings
from edgellm.prompt.template import RawTemplate, make_prompter

NOW = datetime(2026, 5, 17, 9, 30, 12)  # noqa: DTZ001
SYSTEM = "You are a helpful assistant. Answer in short sentences (at most 12 words)."
STARTS = (
    "",
    " ",
    "  ",
    "\n",
    "\n\n",
    "\t",
    "\r\n",
    "1",
    " 12",
    "a",
    "The",
    " the",
    "é",
    "\U0001f44b",
)
STARTS += ("값", "\u0301", "\u200d", "'s", '"', ")", "(", "]]", "...", "<", "<|im_end|>", "#", "_")
STARTS += ("\x00", "\u00a0", "\u3000", "٣", "½", "ﬁ", "`", "99999", "!", "[/INST]", "-", "=")


def user_texts(n_texts):
    """Texts that begin with whatever tokenizers treat specially, then random ones."""
    rng = random.Random(20)
    texts = [start + rest for start in STARTS for rest in (" more", "9 lives", "\n")]
    ranges = ((32, 127), (32, 0x300), (0x300, 0xD7FF), (0x10000, 0x1FFFF), (10, 11), (32, 33))
    while len(texts) < n_texts:
        letters = (chr(rng.randrange(*rng.choice(ranges))) for _ in range(rng.randrange(1, 6)))
        texts.append("".join(letters))
    return texts


def boundary(vocabulary, source, messages, now=NOW, encode=None):
    prompter = make_prompter(source, bos_text="<s>", eos_text="</s>")
    write = PromptWriter(prompter, vocabulary.spellings).write
    return stable_prefix(
        write, messages, encode or encoder(vocabulary), vocabulary.special_ids, now
    )


def encoder(vocabulary, tokenize=None):
    return PromptEncoder(
        tokenize or vocabulary.tokenize,
        spellings=vocabulary.spellings,
        control_ids=vocabulary.special_ids,
        bos_id=vocabulary.tokenize("", special=False, add_bos=True)[0],
        bos_text="<s>",
    )


def conversation(user, system=SYSTEM):
    return [Message("system", system), Message("user", user)]


@pytest.mark.parametrize(
    ("system", "n_texts"),
    [(SYSTEM, 50), ("Be brief.\n", 25), ("Count: 12", 25), ("Say (", 25), ("the ", 25)],
)
def test_every_user_text_finds_the_same_prefix(vocabulary, template, system, n_texts):
    """Many user texts, one prefix, and every prompt starts with it; e2e has all of them."""
    encode = encoder(vocabulary)
    prefixes = set()
    for user in user_texts(200)[:: 200 // n_texts]:
        found = boundary(vocabulary, template, conversation(user, system), encode=encode)
        assert 0 < found.n_prefix < len(found.tokens)
        assert not found.volatile
        prefixes.add(found.tokens[: found.n_prefix])
    assert 1 == len(prefixes)


@settings(max_examples=30)
@given(user=st.text(min_size=1, max_size=20))
def test_any_user_text_finds_the_same_prefix(vocabulary, template, user):
    """So does any other text."""
    one = boundary(vocabulary, template, conversation(user))
    other = boundary(vocabulary, template, conversation("What is it?"))
    assert one.tokens[: one.n_prefix] == other.tokens[: other.n_prefix]


def test_the_prefix_holds_the_system_prompt(vocabulary, template):
    """A longer system prompt is a longer prefix, whatever the template does with it."""
    short = boundary(vocabulary, template, conversation("hi"))
    long = boundary(vocabulary, template, conversation("hi", SYSTEM * 20))
    n_added = len(vocabulary.tokenize(SYSTEM * 19, special=False, add_bos=False))
    assert abs(long.n_prefix - short.n_prefix - n_added) < 40
    assert len(long.tokens) - long.n_prefix < 40


def test_the_prefix_ends_after_a_control_token_where_there_is_one_near(vocabulary, chatml):
    """In ChatML that is the opening of the user's turn."""
    found = boundary(vocabulary, chatml, conversation("hi"))
    assert found.tokens[found.n_prefix - 1] in vocabulary.special_ids


def test_later_turns_keep_the_prefix(vocabulary, template):
    """A conversation that goes on still starts with the prefix of its first question."""
    first = boundary(vocabulary, template, conversation("hi"))
    turns = [*conversation("hi"), Message("assistant", "Hello."), Message("user", "And you?")]
    later = boundary(vocabulary, template, turns)
    assert first.tokens[: first.n_prefix] == later.tokens[: later.n_prefix]


def test_a_date_in_the_template_ends_the_prefix_before_it(vocabulary, dated):
    """The prefix is the same tomorrow, ends before the date, and says that it is cut short."""
    today = boundary(vocabulary, dated, conversation("hi"))
    assert today.volatile
    for days in range(1, 400, 13):
        found = boundary(vocabulary, dated, conversation("yo"), NOW + timedelta(days=days, hours=5))
        assert today.tokens[: today.n_prefix] == found.tokens[: found.n_prefix]
    assert today.n_prefix < 10


def test_a_date_behind_the_prefix_is_not_volatile(vocabulary, chatml):
    """A clock read after the user's text costs nothing."""
    source = chatml + "{{ strftime_now('%H:%M:%S') }}"
    assert not boundary(vocabulary, source, conversation("hi")).volatile


def test_the_prompt_is_rendered_for_now(vocabulary, dated):
    """The probes' clocks never reach the prompt itself."""
    found = boundary(vocabulary, dated, conversation("hi"))
    text = PromptText(make_prompter(dated).render(conversation("hi"), now=NOW))
    assert encoder(vocabulary)(text) == list(found.tokens)


def test_a_probe_the_template_refuses_is_left_out(vocabulary, chatml):
    """A template that insists on content still has a boundary."""
    source = (
        "{% if not messages[-1].content %}{{ raise_exception('say something') }}{% endif %}"
    ) + chatml
    plain = boundary(vocabulary, chatml, conversation("hi"))
    assert plain == boundary(vocabulary, source, conversation("hi"))


def test_a_conversation_the_template_refuses_raises(vocabulary):
    """The template's own words come through."""
    with pytest.raises(TemplateError, match="not today"):
        boundary(vocabulary, "{{ raise_exception('not today') }}", conversation("hi"))


def test_a_template_that_ignores_the_user_leaves_one_token_to_decode(vocabulary):
    """Where everything is stable the prefix still ends before the last token."""
    found = boundary(vocabulary, "Always the very same text. " * 9, conversation("hi"))
    assert len(found.tokens) - 1 == found.n_prefix


def test_equal_texts_are_tokenised_once(vocabulary, chatml):
    """Probes cost nothing the second time, and few tokenisations the first."""
    calls = []

    def tokenize(text: str, *, special: bool, add_bos: bool) -> list[int]:
        calls.append(text)
        return vocabulary.tokenize(text, special=special, add_bos=add_bos)

    encode = encoder(vocabulary, tokenize)
    boundary(vocabulary, chatml, conversation("hi"), encode=encode)
    assert len(calls) == len(set(calls)) <= 3
    boundary(vocabulary, chatml, conversation("what?"), encode=encode)
    assert len(calls) <= 4


def test_the_fallback_reads_no_control_tokens(vocabulary):
    """Raw text has none, so what looks like one is text."""
    assert RawTemplate.fallback
    found = boundary(vocabulary, "", conversation("<|im_end|>"))
    assert not set(found.tokens[1:]) & vocabulary.special_ids


@pytest.mark.model
@pytest.mark.parametrize("kind", ["own", "raw"])
def test_two_hundred_texts_on_a_real_vocabulary(smollm2_gguf, kind):
    """SmolLM2's own tokenizer and template: one prefix, in a few milliseconds."""
    with closing(LlamaCppEngine(smollm2_gguf, EngineSettings())) as engine:
        vocab = engine.vocab()
        source = engine.model.chat_template if kind == "own" else ""
        spellings = Spellings(vocab.spellings)
        write = PromptWriter(make_prompter(source, eos_text="<|im_end|>"), spellings).write
        encode = PromptEncoder(
            engine.tokenize,
            spellings=spellings,
            control_ids=vocab.special_ids,
            bos_id=None,
            bos_text="",
        )
        prefixes = set()
        started_s = time.perf_counter()
        for user in user_texts(200):
            found = stable_prefix(
                write, conversation(user, SYSTEM * 60), encode, vocab.special_ids, NOW
            )
            prefixes.add(found.tokens[: found.n_prefix])
        assert 1 == len(prefixes)
        assert len(next(iter(prefixes))) > 1000
        assert time.perf_counter() - started_s < 200 * 0.1


def test_equal_texts_with_other_control_tokens_agree_up_to_those() -> None:
    """One probe's control token may be another's text."""

    def render(messages: list[Message], now: datetime, tools: tuple[()]) -> PromptText:
        del now, tools
        text = "<s>you</s>. <s>" + messages[-1].content
        if messages[-1].content == "The":
            return PromptText(text, ((0, 3), (12, 15)), mixed=True)
        return PromptText(text, ((0, 3), (6, 10), (12, 15)), mixed=True)

    class Letters:
        def __call__(self, prompt: PromptText) -> list[int]:
            tokens, at = [], 0
            for start, end in prompt.controls:
                tokens += [*map(ord, prompt.text[at:start]), -1]
                at = end
            return [*tokens, *map(ord, prompt.text[at:])]

        more = __call__

    found = stable_prefix(render, [Message("user", "hi")], Letters(), {-1}, NOW)
    assert 1 == found.n_prefix  # behind the last control token that all have
