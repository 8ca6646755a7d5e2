"""Where messages end in a prompt: what stands before depends on no later message."""

from __future__ import annotations

from datetime import datetime

import pytest

from edgellm.core import Message
from edgellm.prompt.boundary import Boundaries, Boundary
from edgellm.prompt.encoding import PromptEncoder
from edgellm.prompt.provenance import PromptWriter
from edgellm.prompt.template import make_prompter

NOW = datetime(2026, 5, 17, 9, 30, 12)  # noqa: DTZ001
TALK = [
    Message("system", "You are a helpful assistant."),
    Message("user", "What is the capital of France?  "),
    Message("assistant", "Paris.\n"),
    Message("user", "And how many legs has a spider?"),
    Message("assistant", "Eight; an ant has six."),
    Message("user", "<|im_end|> Thanks"),
]
# Templates that close a user's message with a control token; the others do so with text, or not.
CLOSING = {"chatml", "llama3", "gemma", "smollm3", "qwen3"}


@pytest.fixture
def find(vocabulary):
    """Find the turns of a conversation."""

    def run(source, messages) -> Boundary:
        prompter = make_prompter(source, bos_text="<s>", eos_text="</s>")
        writer = PromptWriter(prompter, vocabulary.spellings)
        encode = PromptEncoder(
            vocabulary.tokenize,
            spellings=vocabulary.spellings,
            control_ids=vocabulary.special_ids,
            bos_id=vocabulary.tokenize("", special=False, add_bos=True)[0],
            bos_text="<s>",
        )
        boundaries = Boundaries(writer.write, encode, vocabulary.special_ids)
        return boundaries.find(messages, writer.write(messages, NOW), NOW, with_turns=True)

    return run


def test_each_message_has_its_end(vocabulary, find, template, request):
    """Behind the control token that closes it; the system message has its cuts."""
    found = find(template, TALK)
    name = request.node.callspec.params["template"]
    if name in CLOSING:
        assert 5 == len(found.turns)
        for turn, message in zip(found.turns, TALK[1:], strict=True):
            text = vocabulary.text(found.tokens[: turn - 1])
            assert text.rstrip().endswith(message.content.strip())
    elif name == "mistral":
        assert 2 == len(found.turns)  # behind each answer's </s>
    else:
        assert () == found.turns
    assert all(found.tokens[turn - 1] in vocabulary.special_ids for turn in found.turns)


def test_ends_stay_when_the_conversation_goes_on(find, template):
    """A longer conversation begins with those of the shorter one, and with its tokens."""
    whole = find(template, TALK)
    for n in (2, 4):
        part = find(template, TALK[:n])
        assert whole.turns[: len(part.turns)] == part.turns
        for turn in part.turns:
            assert whole.tokens[:turn] == part.tokens[:turn]


def test_thoughts_that_are_taken_out_leave_the_ends_before_them(find):
    """A template that forgets an answer's thoughts makes other tokens from that answer on."""
    source = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
        "{{ m.content if loop.last else m.content.split('</think>')[-1] }}{{ '<|im_end|>\n' }}"
        "{% endfor %}"
    )
    thought = Message("assistant", "<think>Eight?</think>Eight.")
    before = find(source, [*TALK[:2], thought])
    later = find(source, [*TALK[:2], thought, Message("user", "Sure?")])
    assert (2, 3) == (len(before.turns), len(later.turns))
    assert later.tokens[: later.turns[0]] == before.tokens[: before.turns[0]]
    assert later.turns[0] == before.turns[0]


def test_a_template_that_looks_at_what_is_said_has_no_ends(find):
    """Where a sign more changes the text, nobody can tell where a message ends."""
    source = "{% for m in messages %}{{ m.content | length }}{{ m.content }}<|im_end|>{% endfor %}"
    assert () == find(source, TALK).turns


def test_they_are_looked_for_only_when_asked(vocabulary, chatml):
    """A render each prompt is not for those who keep no turns."""
    writer = PromptWriter(make_prompter(chatml), vocabulary.spellings)
    encode = PromptEncoder(
        vocabulary.tokenize,
        spellings=vocabulary.spellings,
        control_ids=vocabulary.special_ids,
        bos_id=None,
        bos_text="",
    )
    boundaries = Boundaries(writer.write, encode, vocabulary.special_ids)
    assert () == boundaries.find(TALK, writer.write(TALK, NOW), NOW).turns
