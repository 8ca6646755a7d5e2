"""Tokenizers and templates of the kinds that differ at a prompt's boundary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from edgellm.prompt.spellings import Spellings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tokenizers import Tokenizer

TRAINING_TEXT = (
    """You are a helpful assistant. Answer in short sentences, name your sources, and
never guess numbers. The user may write in any language, with emoji, code or digits: 1234, 3.14.

System and user and assistant take turns. (Brackets), [lists], "quotes" and 'more' come up too!
What is the capital of France? Paris. How many legs has a spider? Eight; an ant has six.
"""
    * 20
)
SPECIALS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>"]
SPECIALS += ["<|eot_id|>", "<start_of_turn>", "<end_of_turn>"]

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
DATED = (
    "<|im_start|>system\nToday is {{ strftime_now('%d %B %Y') }}.<|im_end|>\n"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + "
    "'<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
    "{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}"
    "{% set first = messages[0].content + '\n\n' %}{% set rest = messages[1:] %}"
    "{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) "
    "+ '\n' + (first if loop.first else '') }}{{ m.content | trim }}{{ '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}"
    "{% set first = messages[0].content + '\n\n' %}{% set rest = messages[1:] %}"
    "{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}{% if m.role == 'user' %}"
    "{{ '[INST] ' + (first if loop.first else '') + m.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}"
)
SMOLLM3 = CHATML.replace(
    "m.content", "m.content.replace('/no_think', '').replace('/think', '').rstrip()"
)
QWEN3 = CHATML.replace(
    "m.content",
    "(m.content.split('</think>')[-1].lstrip('\n') if m.role == 'assistant' else m.content)",
)
TEMPLATES = {
    "chatml": CHATML,
    "llama3": LLAMA3,
    "gemma": GEMMA,
    "mistral": MISTRAL,
    "smollm3": SMOLLM3,
    "qwen3": QWEN3,
    "raw": "",
}


@dataclass(frozen=True, slots=True)
class TestVocabulary:
    """A tokenizer with an engine's `tokenize`, and its control tokens."""

    __test__ = False

    tokenize: Callable[..., list[int]]
    special_ids: frozenset[int]
    spellings: Spellings
    text: Callable[[Sequence[int]], str]


# How models cut text before merging; the third cuts nothing, as SentencePiece does.
SPLITS = {
    "gpt2": None,
    "llama3": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "none": "",
}


@pytest.fixture(scope="session", params=SPLITS)
def vocabulary(request: pytest.FixtureRequest) -> TestVocabulary:
    """A small byte-level BPE, trained here, for each way to cut text before merging."""
    from tokenizers import decoders

    tokenizer = _train(SPLITS[request.param])

    def tokenize(text: str, *, special: bool, add_bos: bool) -> list[int]:
        tokenizer.encode_special_tokens = not special
        bos = [tokenizer.token_to_id("<s>")] if add_bos else []
        return bos + tokenizer.encode(text, add_special_tokens=False).ids

    special_ids = frozenset(map(tokenizer.token_to_id, SPECIALS))
    decoder = decoders.ByteLevel()

    def text(tokens: Sequence[int]) -> str:
        return decoder.decode([tokenizer.id_to_token(token) for token in tokens])

    return TestVocabulary(tokenize, special_ids, Spellings(SPECIALS), text)


@pytest.fixture(scope="session", params=TEMPLATES)
def template(request: pytest.FixtureRequest) -> str:
    """The source of a template of each kind; "" is the raw-text fallback."""
    return TEMPLATES[request.param]


@pytest.fixture(scope="session")
def chatml() -> str:
    """A plain ChatML template."""
    return CHATML


@pytest.fixture
def dated() -> str:
    """ChatML that begins with today's date."""
    return DATED


def _train(split: str | None) -> Tokenizer:
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    cut = [pre_tokenizers.Split(Regex(split), "isolated")] if split else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cut, byte_level])
    trainer = trainers.BpeTrainer(
        vocab_size=1200,
        show_progress=False,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    lines = TRAINING_TEXT.splitlines(keepends=True)
    tokenizer.train_from_iterator(lines + [line.rstrip("\n") + "\n\n" for line in lines], trainer)
    return tokenizer
