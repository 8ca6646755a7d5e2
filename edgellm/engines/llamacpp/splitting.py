"""Text splitters that llama.cpp leaves to `std::regex`, kept from overflowing the stack.

libstdc++ recurses once a character of a match: a word of 30,000 letters ends a process whose stack
has 8 MiB, and no caller can catch that. Invariant: before the library sees a text, the longest
match in it is known from above, and the stack under the call is large enough for it.
Source: `unicode_regex_split` in unicode.cpp and `llm_tokenizer_bpe` in llama-vocab.cpp, llama.cpp
0c1e57098; 321 bytes a character were measured on x86-64 with each splitter and 30 kinds of runs.
"""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Final, TypeVar

from edgellm.errors import DoesNotFit, PromptTooLong
from edgellm.threads import Started

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

MAX_RUN_CHARS: Final = 500_000
_STACK_BYTES_PER_CHAR: Final = 512
_STACK_BYTES: Final = 1 << 20  # for the interpreter and everything but the match
_RUN_CHARS_HERE: Final = 256  # fits the smallest stack a thread gets anywhere, 128 KiB
_GROWING_STACK: Final = threading.Lock()  # `threading.stack_size` is the whole process's

_HAND: Final = (
    "a.x-4.0 chatglm-bpe codeshell command-r dbrx deepseek-r1-qwen exaone exaone4 f2llmv2 falcon-h1 "
    "falcon3 gemma4 gigachat glm4 glm5 gpt-2 granite-docling granite-embed-multi-311m grok-2 hunyuan "
    "jais jina-de jina-es jina-v1-en jina-v2-code jina-v2-de jina-v2-es jina-v5-nano kimi-k2 kormo "
    "laguna lfm2 llama-bpe llama-v3 llama3 megrez mellum mellum2 midm-2.0 minerva-7b modern-bert mpt "
    "olmo phi-2 pixtral qwen2 qwen35 refact roberta-bpe sarvam-moe smaug-bpe smollm solar-open "
    "stablelm2 starcoder trillion"
)
_BY_HAND: Final = frozenset(_HAND.split())
"""Splitters with code of their own, or whose only regex matches one character."""

_WORDS: Final = (
    "afmoe bailingmoe bailingmoe2 bloom chameleon cohere2moe deepseek-coder deepseek-llm deepseek-v3 "
    "default falcon gpt-4o gpt3-finnish granite-embed-multi-97m hunyuan-dense hy_v4 jais-2 joyai-llm "
    "kanana2 llada-moe llama4 minicpm5 minimax-m2 poro-chat seed-coder spark2_5 superbpe talkie "
    "tekken tiny_aya ufakzeka viking youtu"
)
_BY_WORDS: Final = frozenset(_WORDS.split())
"""No match goes on from white space to what is none, but for one white character in front."""

# White to every reader of the text, then white to none: what Python calls a space is what any
# of the library's tables does, and more.
_WORD_CUT: Final = re.compile(r"[ \t\n\v\f\r](?=\S)")
_LINE_CUT: Final = re.compile(r"[\r\n](?=\S)")
_NEVER: Final = re.compile(r"(?!)")
_LINES: Final = ("exaone-moe",)  # its words are joined by single blanks into one match

# Where a failing match is tried again from each character, a run costs its square.
_SLOW: Final[dict[str, tuple[re.Pattern[str], int]]] = {
    "deepseek-llm": (re.compile(r"\s+"), 2_000),
    "jais-2": (re.compile(r"\s+"), 100_000),
    "superbpe": (re.compile("[0-9]+"), 250),
}


def tokenize_safely(splitter: str, text: str, call: Callable[[], T]) -> T:
    """Return `call()`, which splits `text` in the library, on a stack that is large enough.

    Args:
        splitter: `tokenizer.ggml.pre` of a BPE vocabulary, "" without one; a name that is not
            known is taken to match the whole text at once.
        text: what the library will see.
        call: the call into the library.

    Raises:
        PromptTooLong: the text has a longer run without a cut than any stack here is made for.
        DoesNotFit: there is no memory for such a stack.
    """
    n = longest_run(splitter, text)
    if n > MAX_RUN_CHARS:
        raise _too_long(splitter, n, MAX_RUN_CHARS)
    if splitter in _SLOW:
        pattern, limit = _SLOW[splitter]
        n_slow = max((m.end() - m.start() for m in pattern.finditer(text)), default=0)
        if n_slow > limit:
            raise _too_long(splitter, n_slow, limit)
    if n <= _RUN_CHARS_HERE:
        return call()
    return _on_stack(_STACK_BYTES + n * _STACK_BYTES_PER_CHAR, call)


def longest_run(splitter: str, text: str) -> int:
    """Return a number of characters that no match of the splitter's regexes in `text` exceeds."""
    if splitter in _BY_HAND or not text:
        return 0
    cut = _LINE_CUT if splitter in _LINES else _NEVER
    if splitter in _BY_WORDS or not splitter:  # none is `default`
        cut = _WORD_CUT
    longest = at = 0
    for match in cut.finditer(text):
        longest = max(longest, match.end() - at)
        at = match.start()  # the white character may belong to what follows
    return max(longest, len(text) - at)


def _too_long(splitter: str, n: int, limit: int) -> PromptTooLong:
    return PromptTooLong(
        f"the text has a run of {n} characters that splitter {splitter or 'default'!r} cannot cut; "
        f"at most {limit} can be split",
        hint="put spaces or line breaks into it, or leave the run out",
    )


def _on_stack(n_bytes: int, call: Callable[[], T]) -> T:
    """Return `call()` from a thread with a stack of `n_bytes`; only what is touched takes memory."""
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(call())
        except BaseException as err:  # noqa: BLE001  # raised again below, in the caller's thread
            errors.append(err)

    page = 1 << 16
    with _GROWING_STACK:
        before = threading.stack_size(-(-n_bytes // page) * page)
        try:
            thread = Started(work, "edgellm-tokenize")
        except (RuntimeError, MemoryError) as err:
            raise DoesNotFit(
                f"no memory for a stack of {n_bytes} bytes, which a long word needs: {err}",
                hint="put spaces or line breaks into the text, or raise the memory limit",
            ) from err
        finally:
            threading.stack_size(before)
    try:
        thread.join()
    finally:  # a signal handler may have raised: the C code must be out before it is unwound
        thread.join()
    if errors:
        raise errors[0]
    return results[0]
