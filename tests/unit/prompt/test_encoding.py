"""Token ids of prompts: today's where no message spells a control token, and else no control ids."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgellm.core import Message
from edgellm.engines.base import EngineSettings
from edgellm.engines.llamacpp import LlamaCppEngine
from edgellm.prompt.encoding import PromptEncoder
from edgellm.prompt.provenance import PromptText, PromptWriter
from edgellm.prompt.spellings import Spellings
from edgellm.prompt.template import make_prompter

BOS, END, MARK = 1, 2, 3
TEXTS = {BOS: "<s>", END: "<end>", MARK: "<mark>"}
PARTS = ["<", "|", ">", "/", " ", "  ", "\n", "a", "7", "Hello there", "값", "\U0001f44b", "\t"]
PARTS += ["a < b && c > d", "&lt;", "vector<int> x[3];"]
PARTS += ["<0x0A>", "[INST]", "im_", "end", "\u2581", "\u200b", ".", "é", "\u0301"]


def tokenize(text: str, *, special: bool, add_bos: bool) -> list[int]:
    """Split text into characters; `<mark>` takes the space around it; " " before any plain text."""
    tokens = [BOS] if add_bos else []
    while text:
        found = [i for i in TEXTS if special and text.startswith(TEXTS[i])]
        if found:
            tokens.append(found[0])
            text = text[len(TEXTS[found[0]]) :]
            text = text.lstrip() if found == [MARK] else text
            continue
        places = [at for t in TEXTS.values() if special and (at := text.find(t)) > 0]
        plain, text = text[: min(places, default=len(text))], text[min(places, default=len(text)) :]
        if text.startswith(TEXTS[MARK]):
            plain = plain.rstrip()
        tokens += [ord(char) for char in " " + plain] if plain else []
    return tokens


def encoder(tokenize=tokenize, spellings=None) -> PromptEncoder:
    known = Spellings(TEXTS.values()) if spellings is None else spellings
    return PromptEncoder(tokenize, spellings=known, control_ids=TEXTS, bos_id=BOS, bos_text="<s>")


def prompt_of(text: str, *, mixed: bool) -> PromptText:
    return PromptText(text, Spellings(TEXTS.values()).spans(text), mixed)


@given(
    st.lists(st.sampled_from([*TEXTS.values(), " ", "\n", "a", "b c", "<e"]), max_size=9),
    st.booleans(),
)
def test_pieces_give_the_tokens_of_the_whole(parts: list[str], begins: bool) -> None:
    """Where all spellings are the template's: spaces that control tokens take included."""
    text = ("<s>" if begins else "") + "".join(parts)
    whole, pieces = (encoder()(prompt_of(text, mixed=mixed)) for mixed in (False, True))
    assert whole == pieces


@pytest.mark.parametrize(
    ("text", "n_bos"), [("<s>hi", 1), (" \n<s>hi", 1), ("hi", 1), ("hi<s>", 2), ("", 1)]
)
@pytest.mark.parametrize("mixed", [False, True])
def test_there_is_one_beginning_of_sequence(text: str, n_bos: int, mixed: bool) -> None:
    """The template's own counts, also behind space; one that it writes later is its affair."""
    assert n_bos == encoder()(prompt_of(text, mixed=mixed)).count(BOS)


def test_a_beginning_that_a_message_writes_is_text() -> None:
    """It neither is one nor stands for one."""
    assert [BOS, *map(ord, " <s>hi")] == encoder()(PromptText("<s>hi", (), mixed=True))


def test_more_text_gets_no_beginning() -> None:
    """It stands behind other text."""
    assert [END, *map(ord, " a")] == encoder().more(PromptText("<end>a", ((0, 5),)))


def test_merges_that_lead_to_a_control_token_are_cut() -> None:
    """No vocabulary can make one of what a message says, and no space is put in the middle."""

    def merging(text: str, *, special: bool, add_bos: bool) -> list[int]:
        del special
        return tokenize(text, special=True, add_bos=add_bos)

    prompt = PromptText("say <end><s> or <end>", (), mixed=True)
    tokens = encoder(merging)(prompt)
    assert [BOS, *map(ord, " say <end><s> or <end>")] == tokens
    dropped = encoder(merging, Spellings(()))(prompt)
    assert [BOS] == [token for token in dropped if token in TEXTS]


def test_prompts_are_remembered_with_where_their_control_tokens_are() -> None:
    """Equal texts may be different prompts; what was given out cannot change them."""
    encode = encoder()
    control, text = PromptText("a<end>", ((1, 6),), mixed=True), PromptText("a<end>", mixed=True)
    for _ in range(2):
        assert [BOS, *map(ord, " a"), END] == encode(control)
        assert [BOS, *map(ord, " a<end>")] == encode(text)
        encode(control).clear()


@pytest.fixture(
    scope="module",
    params=["smollm2_gguf", "gemma3_gguf"],
)
def engine(request: pytest.FixtureRequest) -> Iterator[LlamaCppEngine]:
    """Open a real model: byte-level merges, and SentencePiece with 6,242 unused control tokens."""
    path: Path = request.getfixturevalue(request.param)
    with closing(LlamaCppEngine(path, EngineSettings(n_threads=1))) as opened:
        yield opened


contents = st.lists(
    st.one_of(st.sampled_from([*PARTS, "/no_think", "<think>", "</think>"]), st.text(max_size=3)),
    max_size=8,
).map("".join)


def real(engine: LlamaCppEngine, source: str) -> tuple[PromptWriter, PromptEncoder]:
    vocab = engine.vocab()
    spellings = Spellings(vocab.spellings)
    encode = PromptEncoder(
        engine.tokenize,
        spellings=spellings,
        control_ids=vocab.special_ids,
        bos_id=vocab.bos_id if vocab.add_bos else None,
        bos_text=vocab.bos_text,
    )
    prompter = make_prompter(source, bos_text=vocab.bos_text, eos_text=vocab.eos_text)
    return PromptWriter(prompter, spellings), encode


@pytest.mark.model
@settings(max_examples=60)
@given(system=contents, turns=st.lists(contents, min_size=1, max_size=4))
def test_real_vocabularies_give_the_same_tokens_in_pieces(
    engine: LlamaCppEngine, template: str, system: str, turns: list[str]
) -> None:
    """As the engine gives for the whole text, where no message spells a control token."""
    writer, encode = real(engine, template)
    vocab = engine.vocab()
    roles = ("user", "assistant")
    messages = [Message("system", system)]
    messages += [Message(roles[n % 2], text) for n, text in enumerate(turns)]
    prompt = writer.write(messages)
    special = bool(template)
    assert prompt.mixed is not special
    begun = special and prompt.text.startswith(vocab.bos_text)
    expected = engine.tokenize(prompt.text, special=special, add_bos=not begun)
    assert expected == encode(prompt)
    assert expected == encode(PromptText(prompt.text, prompt.controls, mixed=True))


@pytest.mark.model
@settings(max_examples=60)
@given(data=st.data())
def test_real_vocabularies_give_no_control_token_to_a_message(
    engine: LlamaCppEngine, template: str, data: st.DataObject
) -> None:
    """The template's own stay as they are, and the message can be read in the text."""
    writer, encode = real(engine, template)
    vocab = engine.vocab()
    spelled = st.sampled_from(sorted(vocab.spellings))
    parts = data.draw(st.lists(st.one_of(spelled, st.sampled_from(PARTS)), max_size=8))
    content = "x" + "".join(parts) + "x"

    def controls(text: str) -> list[int]:
        tokens = encode(writer.write([Message("user", text)]))
        return [token for token in tokens if token in vocab.special_ids]

    assert controls("x") == controls(content)
    tokens = encode(writer.write([Message("user", content)]))
    assert content.replace("\u2581", " ") in b"".join(map(vocab.piece, tokens)).decode().replace(
        "\u2581", " "
    )


# What a template does to a content, and how one spells a token of which that makes a control token.
CHANGES = {
    ".replace('~', '')": lambda spelled: spelled[0] + "~" + spelled[1:],
    ".split() | join": " ".join,
    "[::2]": "_".join,
    " | lower": str.upper,
    ".replace('&lt;', '<')": lambda spelled: spelled.replace("<", "&lt;"),
}


@pytest.mark.model
@pytest.mark.parametrize("role", ["user", "system", "assistant"])
@pytest.mark.parametrize("change", CHANGES)
def test_real_vocabularies_give_none_to_what_a_template_makes_of_a_message(
    engine: LlamaCppEngine, chatml: str, change: str, role: str
) -> None:
    """The ids of control tokens are those around a message without any letters and signs."""
    vocab = engine.vocab()
    end = "<|im_end|>" if "<|im_end|>" in vocab.spellings else "<end_of_turn>"
    source = chatml.replace("m.content", "m.content" + change).replace("<|im_end|>", end)
    writer, encode = real(engine, source)

    def controls(text: str) -> list[int]:
        tokens = encode(writer.write([Message(role, text), Message("user", "\u00e9")]))
        return [token for token in tokens if token in vocab.special_ids]

    assert controls("\u00e9") == controls(CHANGES[change](end))
    assert len(controls("\u00e9")) > 1
