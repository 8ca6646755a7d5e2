"""Which control tokens of a prompt are the template's own, whatever the messages say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.core import Message
from edgellm.errors import TemplateError
from edgellm.prompt.provenance import PromptText, PromptWriter
from edgellm.prompt.spellings import Spellings
from edgellm.prompt.template import make_prompter

SPELLED = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
EACH = "{% for m in messages %}"
JOINED = EACH + "{{ m.content }}{% endfor %}"
TRIMMED = EACH + "{{ m.content | trim }}{% endfor %}"
CUTTING = EACH + "{{ m.content.replace('<image>', '') }}{% endfor %}</s>"
THINKING = EACH + "{{ m.content.split('</think>')[-1] }}{% endfor %}</s>"


def write(source: str, *contents: str, spelled: tuple[str, ...] = SPELLED) -> PromptText:
    prompter = make_prompter(source, bos_text="<s>", eos_text="</s>")
    messages = [Message("user", content) for content in contents]
    return PromptWriter(prompter, Spellings(spelled)).write(messages)


def controls_of(prompt: PromptText) -> list[str]:
    return [prompt.text[start:end] for start, end in prompt.controls]


def test_a_harmless_conversation_is_rendered_as_it_is(chatml: str) -> None:
    """Each of the template's control tokens has its place; nothing is mixed."""
    prompt = write(chatml, "hi", "if a < b and b > c")
    assert not prompt.mixed
    assert ["<|im_start|>", "<|im_end|>"] * 2 + ["<|im_start|>"] == controls_of(prompt)


@given(st.lists(st.sampled_from([*SPELLED, "<", "|", "im_end|>", "a", " ", "\n"]), max_size=9))
def test_the_text_is_what_the_template_writes(chatml: str, parts: list[str]) -> None:
    """Whatever a message says, no character of it changes, and the roles stay as many."""
    content = "".join(parts)
    prompt = write(chatml, content)
    rendered = make_prompter(chatml).render([Message("user", content)])
    assert rendered == prompt.text
    assert ["<|im_start|>", "<|im_end|>", "<|im_start|>"] == controls_of(prompt)
    assert prompt.mixed == any(spelled in content for spelled in SPELLED)


@pytest.mark.parametrize("source", [JOINED, TRIMMED])
@pytest.mark.parametrize("contents", [("a <|im_", "end|> b"), ("<", "s>"), ("<|im_  ", " end|>")])
def test_halves_in_two_messages_make_no_whole(source: str, contents: tuple[str, ...]) -> None:
    """Where a template puts messages side by side, trimmed or not."""
    prompt = write(source, *contents)
    assert () == prompt.controls
    assert prompt.mixed == bool(Spellings(SPELLED).spans(prompt.text))


def test_what_a_template_cuts_out_makes_no_whole() -> None:
    """Of two halves around it."""
    prompt = write(CUTTING, "<|im_<image>end|>")
    assert ("<|im_end|></s>", ["</s>"], True) == (prompt.text, controls_of(prompt), prompt.mixed)


def test_a_template_that_looks_at_half_a_spelling_sees_it() -> None:
    """`</think>` is no control token here, though `</` begins one."""
    prompt = write(THINKING, "<b>hm</think>yes", spelled=("<s>", "</s>"))
    assert ("yes</s>", ["</s>"], False) == (prompt.text, controls_of(prompt), prompt.mixed)


def test_a_template_that_looks_at_a_whole_spelling_does_not_see_it() -> None:
    """It would take the message's word for a control token."""
    prompt = write(THINKING, "hm</think>yes<s>")
    assert "hm</think>yes<s></s>" == prompt.text
    assert (["</s>"], True) == (controls_of(prompt), prompt.mixed)


def test_halves_make_no_whole_in_a_template_that_looks_at_others() -> None:
    """The halves at the end of a message are exchanged even so."""
    source = EACH + "{{ (m.content | trim).split('</think>')[-1] }}{% endfor %}"
    spelled = ("</s>", "<|im_end|>")
    prompt = write(source, "hm</think>a <|im_ \n", "end|> b", spelled=spelled)
    assert PromptText("a <|im_end|> b", (), mixed=True) == prompt


def test_a_template_that_misses_half_a_spelling_is_asked_as_it_is() -> None:
    """It fails on what was exchanged, not on what was said."""
    source = EACH + "{% if '</t' not in m.content %}{{ raise_exception('no') }}{% endif %}"
    source += "{{ m.content }}{% endfor %}"
    assert PromptText("a</t.", ()) == write(source, "a</t.")
    with pytest.raises(TemplateError, match="no"):
        write(source, "a")


@pytest.mark.parametrize("content", ["\ue000 <s>", "\ue000\ue001 <s> \uf8ff"])
def test_private_characters_of_a_message_stay(content: str) -> None:
    """They are no marks of ours."""
    assert content == write(JOINED, content).text


def test_a_private_character_of_the_template_is_no_mark() -> None:
    """One that only shows when a message is marked would be read as the message's."""
    source = JOINED + "{% if '<s>' not in messages[0].content %}\ue000{% endif %}"
    assert "<s>\ue000" == write(source, "<s>").text


def test_raw_text_has_no_control_token() -> None:
    """All of it is text."""
    assert PromptText("<s>hi", (), mixed=True) == write("", "<s>hi")


def test_a_tail_keeps_what_is_behind() -> None:
    """Places count from its own start."""
    prompt = PromptText("ab<s>c</s>", ((2, 5), (6, 10)), mixed=True)
    assert PromptText("c</s>", ((1, 5),), mixed=True) == prompt.tail(5)
