"""The field log's cases of reuse, over a tiny model of each kind of memory: how far, and never too far."""

from __future__ import annotations

import itertools
import random
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgellm.core import Tier
from edgellm.runtime import answering
from edgellm.runtime.live import common_prefix
from edgellm.runtime.local import LocalSession

Answer = Callable[..., Any]
Open = Callable[..., LocalSession]

SYSTEM = "Always answer in rhyme, and mention the sea at least once. " * 12
OTHER = "Never answer in rhyme, and leave the mountains out of it. " * 12
KINDS = ("tiny-llama", "tiny-gemma3", "tiny-mamba", "tiny-lfm2", "tiny-deepseek2")
LONG = [
    ("tiny-gemma3", 1500),
    ("tiny-lfm2-swa", 1500),
    pytest.param("gemma3", 800, marks=[pytest.mark.model, pytest.mark.full]),
    pytest.param("gemma3", 3000, marks=[pytest.mark.model, pytest.mark.full]),
]
N_SEAMS = 12
N_ROUNDS = 10
ONE_TEXT = "{{ messages[0]['content'] }}{{ messages[1]['content'] }}"
THOUGHT = "<think>hm</think>So it is."
THINKING = (
    "{% for m in messages %}{% set said = m.content.split('</think>')[-1] if m.role == 'assistant' "
    "else m.content %}{{ '<|im_start|>' + m.role + '\\n' + said + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_called_reused_was_not_decoded(
    answer: Answer, tiny_models: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-PC-01: what the library decoded is what the figures leave; with other settings they say so."""
    from llama_cpp import llama_cpp

    decoded: list[int] = []
    decode = llama_cpp.llama_decode

    def counting(context: Any, batch: Any) -> int:
        decoded.append(batch.n_tokens)
        return int(decode(context, batch))

    monkeypatch.setattr(llama_cpp, "llama_decode", counting)
    model = tiny_models / f"{kind}.gguf"
    found = []
    for flags in ((), (), ("--kv-type", "f32", "--flash-attn", "off")):
        decoded.clear()
        found.append(answer(model, "-n", 1, "--isolation", "none", *flags))  # to count here
        assert sum(decoded) == found[-1].n_prompt - found[-1].n_reused
    cold, warm, other = found
    assert (cold.code, cold.n_reused) == ("not_stored", 0)
    assert (warm.code, warm.text, warm.n_reused > 128) == ("hit", cold.text, True)
    assert (other.code, other.n_reused) == ("not_stored", 0) or kind == "tiny-mamba"


def test_half_a_line_then_the_whole_line(
    open_keeping: Open, ask_in: Answer, tiny_models: Path, field_samples: Path
) -> None:
    """F-PC-05: what is reused ends at an equal token, and the answer is a cold one's."""
    model = tiny_models / "tiny-llama.gguf"
    lines = (field_samples / "prompts" / "20_boundary_pairs.txt").read_text("utf-8").splitlines()
    halves = [(line[:k], line[k:]) for line in lines for k in range(1, len(line))]
    off, first, second = (
        open_keeping(model, chat_template=ONE_TEXT, snapshot=tier)
        for tier in (Tier.OFF, Tier.EXACT, Tier.EXACT)
    )
    n_hits = n_glued = 0
    for before, behind in random.Random(5).sample(halves, N_SEAMS):
        ask_in(first, SYSTEM + before, " and so on")
        cold, warm = ask_in(off, SYSTEM + before, behind), ask_in(second, SYSTEM + before, behind)
        assert warm.text == cold.text
        assert first.live is not None
        assert second.live is not None
        assert warm.n_reused <= common_prefix(first.live.tokens, second.live.tokens)
        assert warm.n_reused < warm.n_prompt
        # Where the whole line has other tokens before the seam than any question was tried with.
        assert (warm.n_reused > 128) == (warm.code != "no_prefix")
        n_hits += warm.code == "hit"
        whole = tuple(second.engine.tokenize(SYSTEM + before, special=False, add_bos=False))
        n_glued += common_prefix(whole, second.live.tokens) < len(whole)
    assert n_hits > N_SEAMS // 2
    assert n_glued > 0


def test_other_spellings_are_other_prompts(
    answer: Answer, tiny_models: Path, field_samples: Path, tmp_path: Path
) -> None:
    """F-PC-05: composed letters are not decomposed ones; marks and line ends come out one way."""
    model, system = tiny_models / "tiny-llama.gguf", tmp_path / "system.txt"

    def code_of(content: bytes) -> str:
        system.write_bytes(content)
        return answer(model, "--system-file", system, system=None).code

    prompts = field_samples / "prompts"
    composed = (prompts / "02_korean_nfc.txt").read_bytes() * 3
    decomposed = unicodedata.normalize("NFD", composed.decode()).encode()
    marked = (prompts / "14_bom_crlf.txt").read_bytes()
    bom, plain = marked[:3], marked[3:] * 20
    contents = (composed, decomposed, composed, bom + plain, plain, bom + plain)
    codes = ["not_stored", "not_stored", "hit", "not_stored", "hit", "hit"]
    assert [code_of(content) for content in contents] == codes


@pytest.mark.parametrize(("kind", "n_words"), LONG)
def test_prefixes_longer_than_the_window(
    open_keeping: Open, ask_in: Answer, request: pytest.FixtureRequest, kind: str, n_words: int
) -> None:
    """F-PC-09: another start takes it up; what branches off in its middle is read, and says so."""
    real = kind == "gemma3"
    path = request.getfixturevalue("gemma3_gguf" if real else "tiny_models")
    model = path if real else path / f"{kind}.gguf"
    words = ("Rule by rule the tide goes out and the moon comes up again . " * 300).split(" ")
    system = " ".join(words[:n_words])
    branch = " ".join([*words[: n_words // 2], "but", *words[n_words // 2 : n_words]])
    n_ctx = {"n_ctx": 2 * n_words + 4096}
    off = open_keeping(model, snapshot=Tier.OFF, **n_ctx)
    cold = {text: ask_in(off, text, "Why?").text for text in (system, branch)}
    off.close()
    first = open_keeping(model, **n_ctx)
    assert ask_in(first, system, "Who?").code == "not_stored"
    second = open_keeping(model, **n_ctx)
    taken_up = ask_in(second, system, "Why?")
    assert (taken_up.text, taken_up.code) == (cold[system], "hit")
    assert taken_up.n_reused > n_words
    for session in (first, second):
        found = ask_in(session, branch, "Why?")
        code = "not_stored" if session is first else "hit"
        assert (found.text, found.code) == (cold[branch], code)
        back = ask_in(session, system, "Why?")
        assert (back.text, back.code) == (cold[system], "hit")


@pytest.mark.parametrize("kind", KINDS)
def test_rounds_of_two_prompts(
    open_keeping: Open, ask_in: Answer, tiny_models: Path, kind: str
) -> None:
    """F-PC-10: B, then A and its second turn, ten times in one memory: each as in a session alone."""
    model = tiny_models / f"{kind}.gguf"
    alone = open_keeping(model)
    first = ask_in(alone, SYSTEM, "Hello").text
    turns = ("Hello", first, "And then?")
    second = ask_in(alone, SYSTEM, *turns).text
    assert second != first
    other = ask_in(open_keeping(model), OTHER, "Who?").text
    one = open_keeping(model)
    for _ in range(N_ROUNDS):
        answers = [
            ask_in(one, OTHER, "Who?"),
            ask_in(one, SYSTEM, "Hello"),
            ask_in(one, SYSTEM, *turns),
        ]
        assert [found.text for found in answers] == [other, first, second]
        assert [found.n_reused > 128 for found in answers] == [True] * 3
        assert [found.code for found in answers[:2]] == ["hit", "hit"]


@pytest.mark.parametrize("kind", ["tiny-llama", "tiny-gemma3", "tiny-lfm2"])
@pytest.mark.parametrize("how", ["one session", "a session each"])
def test_thoughts_that_the_template_cuts_out(
    open_keeping: Open,
    ask_in: Answer,
    tiny_models: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    how: str,
) -> None:
    """F-PC-11: the last answer is read again without them; of all before it nothing is."""
    model = tiny_models / f"{kind}.gguf"
    keeps_turns = how == "a session each" or kind != "tiny-llama"
    options = {"chat_template": THINKING, "snapshot_turns": keeps_turns}
    session = open_keeping(model, **options)
    _say(monkeypatch, session)
    turns: list[str] = []
    found: list[Any] = []
    for n in range(4):
        if how == "a session each" and n:
            session.close()
            session = open_keeping(model, **options)
        turns.append(f"Question {n}?")
        found.append(ask_in(session, SYSTEM, *turns, n=60))
        assert found[-1].text == THOUGHT
        turns.append(found[-1].text)
    opening = session.engine.tokenize("\n<|im_start|>assistant\n", special=True, add_bos=False)
    for before, after in itertools.pairwise(found):
        assert after.n_reused >= before.n_prompt - len(opening)
        assert after.n_reused < after.n_prompt


def _say(monkeypatch: pytest.MonkeyPatch, session: LocalSession) -> None:
    """Make every answer the thought and what comes of it."""
    script = session.engine.tokenize(THOUGHT, special=False, add_bos=False)
    end = min(session.engine.vocab().end_ids)

    class Scripted(answering.Sampler):
        """Goes through the script instead of the logits."""

        def __init__(self, *args: object) -> None:
            super().__init__(*args)  # type: ignore[arg-type]  # as they came
            self._script = iter((*script, end))

        def pick(self, logits: NDArray[np.float32]) -> int:
            """Return the next token of the script."""
            assert np.isfinite(logits).all()
            return next(self._script)

    monkeypatch.setattr(answering, "Sampler", Scripted)
