"""Cuts inside the stable prefix: behind documents and tools, whatever stands behind them."""

from __future__ import annotations

import random
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgellm.core import Message
from edgellm.prompt.boundary import Boundaries, stable_prefix
from edgellm.prompt.encoding import PromptEncoder
from edgellm.prompt.provenance import PromptText, PromptWriter
from edgellm.prompt.stable import MIN_GAP_TOKENS
from edgellm.prompt.template import make_prompter

NOW = datetime(2026, 5, 17, 9, 30, 12)  # noqa: DTZ001
RULES = "You are a helpful assistant. Answer in short sentences, name your sources. " * 3 + "Ok."
GUIDE = "# Guide\n\n" + "The user may write in any language, with emoji or digits: 1234.\n" * 5
NOTES = "# Notes\n" + "What is the capital of France? Paris. How many legs has a spider?\n" * 5
HERMES = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{% if m.role == 'system' and tools %}{{ '\n\n# Tools\n<tools>' }}{% for t in tools %}"
    "{{ '\n' }}{{ t | tojson }}{% endfor %}{{ '\n</tools>\n\nFor each function call, return a json '"
    "+ 'object with function name and arguments within XML tags, please.' }}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)
FIRST = (
    "{% if tools %}{{ '<|im_start|>tools\n' }}{{ tools | tojson(indent=2) }}{{ '\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content | trim + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def documents(*texts: str, joint: str = "\n\n") -> Message:
    """Return one system message of several documents, each of them marked."""
    marks, content = [], ""
    for text in texts:
        content += (joint if content else "") + text
        marks.append(len(content))
    return Message("system", content, tuple(marks))


def tool(name, n_words=30):
    words = " ".join(["What it does, in words."] * (n_words // 5))
    function = {"name": name, "description": words, "parameters": {"type": "object"}}
    return {"type": "function", "function": function}


def encoder(vocabulary):
    return PromptEncoder(
        vocabulary.tokenize,
        spellings=vocabulary.spellings,
        control_ids=vocabulary.special_ids,
        bos_id=vocabulary.tokenize("", special=False, add_bos=True)[0],
        bos_text="<s>",
    )


def find(vocabulary, source, system, user="hi", tools=(), now=NOW):
    write = PromptWriter(
        make_prompter(source, bos_text="<s>", eos_text="</s>"), vocabulary.spellings
    ).write
    messages = [system, Message("user", user)]
    encode = encoder(vocabulary)
    return stable_prefix(write, messages, encode, vocabulary.special_ids, now, tools)


def text_before(vocabulary, found, cut):
    return vocabulary.text(found.tokens[:cut])


def test_each_document_has_its_cut(vocabulary, template):
    """It ends with the document, or a word before: what follows might go on with that word."""
    found = find(vocabulary, template, documents(RULES, GUIDE, NOTES))
    assert 3 == len(found.cuts)
    for cut, words in zip(found.cuts, ("Ok.", "digits: 1234.\n", "has a spider?\n"), strict=True):
        before = text_before(vocabulary, found, cut)
        assert any(before.endswith(words[:n]) for n in range(len(words) - 6, len(words) + 1))


def test_a_document_keeps_its_cut_when_the_next_changes(vocabulary, template):
    """In place and in tokens, with any or no document behind it."""
    whole = find(vocabulary, template, documents(RULES, GUIDE, NOTES))
    rng = random.Random(4)
    others = ["", "x", "1", "\n\n\n", " ", "...", "</s>", "\u0301", "# Notes", "값", "```py"]
    others += ["".join(rng.choices("ab \n.\u00e9\U0001f642(1", k=5)) + NOTES for _ in range(8)]
    for other in others:
        found = find(vocabulary, template, documents(RULES, GUIDE, *([other] if other else [])))
        assert found.cuts[:2] == whole.cuts[:2]
        assert found.tokens[: found.cuts[1]] == whole.tokens[: whole.cuts[1]]


@settings(max_examples=15)
@given(other=st.text(min_size=1, max_size=8))
def test_a_document_keeps_its_cut_whatever_follows_at_once(vocabulary, template, other):
    """Also where nothing parts the two, and a word or a sign could go on."""
    whole = find(vocabulary, template, documents(RULES, GUIDE.strip(), joint=" "))
    found = find(vocabulary, template, documents(RULES, other + GUIDE, joint=""))
    assert found.tokens[: found.cuts[0]] == whole.tokens[: whole.cuts[0]]
    assert found.cuts[0] == whole.cuts[0]


@settings(max_examples=10)
@given(user=st.text(min_size=1, max_size=20))
def test_cuts_do_not_depend_on_the_question(vocabulary, template, user):
    """All of them are where they are with any other user text."""
    system = documents(RULES, GUIDE, NOTES)
    one, other = find(vocabulary, template, system), find(vocabulary, template, system, user)
    assert one.cuts == other.cuts
    assert one.tokens[: one.n_prefix] == other.tokens[: other.n_prefix]


def test_without_marks_there_is_one_cut_as_ever(vocabulary, template):
    """A system prompt alone is cut at the end of what every question leaves as it is."""
    found = find(vocabulary, template, Message("system", RULES + GUIDE))
    assert 1 == len(found.cuts)


def test_cuts_close_to_the_one_before_are_left_out(vocabulary, chatml):
    """A snapshot for a few tokens is not worth it; the next document counts from the cut kept."""
    found = find(vocabulary, chatml, documents(RULES, "Yes.", "No.", GUIDE))
    assert 2 == len(found.cuts)
    assert all(b - a >= MIN_GAP_TOKENS for a, b in zip(found.cuts, found.cuts[1:], strict=False))
    alone = find(vocabulary, chatml, documents(RULES))
    assert alone.cuts[0] == found.cuts[0]


def test_a_mark_behind_spaces_is_found_where_the_template_trims_them(vocabulary, template):
    """The cut stands before the spaces, whatever document follows them, or none."""
    one = find(vocabulary, template, documents(RULES + " \n\n ", GUIDE, joint=""))
    other = find(vocabulary, template, documents(RULES + " \n\n ", "7" + NOTES, joint=""))
    assert one.cuts[0] == other.cuts[0]
    assert text_before(vocabulary, one, one.cuts[0])[-4:].strip() in (". Ok", "Ok.", "s. O")


def test_a_mark_that_is_nowhere_in_the_text_is_dropped_alone(vocabulary, chatml):
    """A template may cut a long text short; what it leaves keeps its cut."""
    system = documents(RULES, GUIDE, NOTES)
    source = chatml.replace("m.content", f"m.content[:{len(RULES + GUIDE) - 9}]")
    found = find(vocabulary, source, system)
    whole = find(vocabulary, chatml, system)
    assert found.cuts[0] == whole.cuts[0]
    assert 2 == len(found.cuts)
    assert found.n_prefix < whole.cuts[1] + 8


def test_text_that_a_template_turns_around_is_no_end(vocabulary, chatml):
    """What is written behind the end of a document is none of its own text."""
    source = chatml.replace("m.content", "(m.content.split('|') | reverse | join)")
    system = documents(RULES, "|" + GUIDE + "|", NOTES, joint="")
    found = find(vocabulary, source, system)
    assert 2 == len(found.cuts)  # the first behind NOTES, which the template writes first
    assert "Notes" in text_before(vocabulary, found, found.cuts[0])


def test_a_template_that_drops_the_system_prompt_has_no_marks(vocabulary):
    """Nothing of the documents is in the text, so nothing is cut there."""
    source = "{% for m in messages if m.role == 'user' %}<|im_start|>{{ m.content }}{% endfor %}"
    assert find(vocabulary, source, documents(RULES, GUIDE)).cuts == (2,)


def test_marks_behind_the_time_are_no_cuts(vocabulary, dated):
    """What is written anew every second stands before them."""
    found = find(vocabulary, dated, documents(RULES, GUIDE))
    assert found.volatile
    assert 1 == len(found.cuts)
    assert "17" not in text_before(vocabulary, found, found.n_prefix)


def test_a_second_system_message_leaves_the_first_its_cut(vocabulary, chatml):
    """The end of a message is a mark where another system message follows."""
    messages = [Message("system", RULES), Message("system", GUIDE), Message("user", "hi")]
    write = PromptWriter(make_prompter(chatml), vocabulary.spellings).write
    encode = encoder(vocabulary)
    found = stable_prefix(write, messages, encode, vocabulary.special_ids, NOW)
    assert 2 == len(found.cuts)
    marked = find(vocabulary, chatml, documents(RULES))
    assert found.cuts[0] == marked.cuts[0]


@pytest.mark.parametrize("source", [HERMES, FIRST], ids=["behind", "before"])
def test_system_text_and_tools_are_cut_apart(vocabulary, source):
    """What comes first keeps its cut when the other changes."""
    system = Message("system", GUIDE + NOTES + RULES)
    one = find(vocabulary, source, system, tools=(tool("read"), tool("write")))
    assert 2 == len(one.cuts)
    if source is HERMES:
        other = find(vocabulary, source, system, tools=(tool("weather", 60),))
        assert text_before(vocabulary, one, one.cuts[0]).rstrip(".").endswith("Ok")
    else:
        changed = Message("system", NOTES + GUIDE)
        other = find(vocabulary, source, changed, tools=(tool("read"), tool("write")))
        assert '"object"' in text_before(vocabulary, one, one.cuts[0])[-40:]
    assert one.cuts[0] == other.cuts[0]
    assert one.tokens[: one.cuts[0]] == other.tokens[: other.cuts[0]]
    assert one.tokens != other.tokens
    assert not one.ignores_tools


def test_documents_and_tools_are_cut_together(vocabulary):
    """Documents first, then the tools behind them."""
    found = find(vocabulary, HERMES, documents(RULES, GUIDE), tools=(tool("read"),))
    assert 3 == len(found.cuts)
    plain = find(vocabulary, HERMES, documents(RULES, GUIDE))
    assert plain.cuts == found.cuts[:2]


def test_a_template_that_writes_no_tools_is_told(vocabulary, template):
    """Its prompt is that without tools, and says so."""
    found = find(vocabulary, template, Message("system", RULES), tools=(tool("read"),))
    plain = find(vocabulary, template, Message("system", RULES))
    assert found.ignores_tools
    assert not plain.ignores_tools
    assert (plain.tokens, plain.cuts) == (found.tokens, found.cuts)


def test_what_depends_on_the_system_prompt_is_found_once(vocabulary, template):
    """Later questions cost one render, and their own tokens."""
    prompter = make_prompter(template, bos_text="<s>", eos_text="</s>")
    writer = PromptWriter(prompter, vocabulary.spellings)
    n_renders = 0

    def write(messages, now, tools) -> PromptText:
        nonlocal n_renders
        n_renders += 1
        return writer.write(messages, now, tools)

    boundaries = Boundaries(write, encoder(vocabulary), vocabulary.special_ids)
    system = documents(RULES, GUIDE)
    cuts = set()
    for user in ("hi", "what?", "\n1"):
        messages = [system, Message("user", user)]
        cuts.add(boundaries.find(messages, writer.write(messages, NOW), NOW).cuts)
        assert n_renders < 16
    assert 1 == len(cuts)
