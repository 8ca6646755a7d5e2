"""How answers are made and end: the control model, whose tokens are bytes, made to say a script.

Cases F-GN-05, 06, 08 and 09 stand in test_templates.py and test_prompts.py. F-GN-07 has no test:
nothing makes JSON yet, so there is no grammar that could pad it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edgellm.core import Done, Message, Request, Tier, Token
from edgellm.engines.base import EngineSettings
from edgellm.runtime import answering
from edgellm.runtime.local import LocalSession, open_session
from edgellm.runtime.session import SessionOptions

FIRST_BYTE = 5  # ids of the control model: five control tokens, then the bytes
EOS, IM_START, IM_END = 2, 3, 4
N_CTX = 256
# With these the control model says no end token before its 64 are full.
NEVER_ENDS = (
    "--temperature",
    50,
    "--top-k",
    0,
    "--top-p",
    1,
    "--min-p",
    0,
    "--seed",
    3,
    "--threads",
    1,
)

Open = Callable[[Path], LocalSession]
Say = Callable[..., None]


@pytest.fixture
def open_model() -> Iterator[Open]:
    """Open models with a fixed context and no snapshots."""
    opened: list[LocalSession] = []

    def open_one(path: Path) -> LocalSession:
        options = SessionOptions(EngineSettings(n_threads=1), N_CTX, Tier.OFF)
        opened.append(open_session(path, options))
        return opened[-1]

    yield open_one
    for session in opened:
        session.close()


@pytest.fixture
def control(open_model: Open, field_samples: Path) -> LocalSession:
    """Open the control model, which has no chat template."""
    return open_model(field_samples / "gguf" / "00_ok_control.gguf")


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Say:
    """Return a function that makes every answer from then on a script, then the end token."""

    def script(text: str | bytes, *ends: int, cycle: bool = False) -> None:
        data = text.encode() if isinstance(text, str) else text
        tokens = [FIRST_BYTE + byte for byte in data] + list(ends or (() if cycle else (EOS,)))

        class Scripted(answering.Sampler):
            """Goes through the script instead of the logits."""

            def __init__(self, *args: object) -> None:
                super().__init__(*args)  # type: ignore[arg-type]  # as they came
                self._script = iter(tokens * 1000 if cycle else tokens)

            def prime(self, tokens: Iterable[int]) -> None:
                """See nothing of the prompt."""

            def pick(self, logits: NDArray[np.float32]) -> int:
                """Return the next token of the script."""
                assert np.isfinite(logits).all()
                return next(self._script)

        monkeypatch.setattr(answering, "Sampler", Scripted)

    return script


def answer(session: LocalSession, **options: object) -> tuple[list[str], Done]:
    """Stream an answer and check that it is the one that is made whole."""
    request = Request((Message("user", "hi"),), **options)  # type: ignore[arg-type]  # by the test
    *events, done = session.stream(request)
    assert isinstance(done, Done)
    chunks = [event.text for event in events if isinstance(event, Token)]
    whole = session.generate(request)
    assert (whole.text, whole.finish_reason, whole.usage.completion_tokens) == (
        "".join(chunks),
        done.finish_reason,
        done.usage.completion_tokens,
    )
    assert done.text == whole.text
    return chunks, done


@pytest.mark.parametrize("text", ["값 👋 한국어", "👩‍👩‍👧‍👦🇰🇷", "é", "Z" + "\u0301" * 9])
def test_a_character_of_several_tokens_comes_whole(control, say, text: str) -> None:
    """F-GN-01: each chunk is one character; nothing is replaced."""
    say(text)
    chunks, done = answer(control)
    assert (list(text), text, "stop") == (chunks, done.text, done.finish_reason)


@pytest.mark.parametrize(
    ("data", "text"),
    [(b"a\xffb", "a\ufffdb"), (b"\xea\xb0", "\ufffd"), (b"\xf0\x9f\x91x", "\ufffdx")],
)
def test_a_wrong_byte_is_one_replacement(control, say, data: bytes, text: str) -> None:
    """F-GN-01: what is left of a character at the end as well."""
    say(data)
    assert text == answer(control)[1].text


def test_a_character_cut_by_the_limit_is_flushed(control, say) -> None:
    """F-GN-01: as one mark, and said to be cut."""
    say("a값")
    chunks, done = answer(control, max_tokens=3)
    assert (["a", "\ufffd"], "length") == (chunks, done.finish_reason)


@pytest.mark.parametrize(
    ("text", "stop", "shown"),
    [
        ("alpha beta gamma", ("a g",), "alpha bet"),
        ("alpha beta gamma", ("gamma", "a gam"), "alpha bet"),
        ("서울은 한국의 수도. 끝", ("수도",), "서울은 한국의 "),
        ("값값###", ("##",), "값값"),
        ("stop", ("stop",), ""),
    ],
)
def test_a_stop_text_over_several_tokens_is_found(control, say, text, stop, shown) -> None:
    """F-GN-02: the answer is cut exactly before it, whether streamed or not."""
    say(text)
    chunks, done = answer(control, stop=stop)
    assert (shown, "stop") == ("".join(chunks), done.finish_reason)


def test_only_what_may_become_a_stop_text_waits(control, say) -> None:
    """F-GN-02: everything else is shown at its token."""
    say("a a b")
    assert ["a ", "a b"] == answer(control, stop=("a g",))[0]


@pytest.mark.parametrize("ends", ["limit", "end token"])
def test_what_waited_for_a_stop_text_is_shown_at_the_end(control, say, ends: str) -> None:
    """F-GN-03: whatever else ended the answer."""
    say("no more #")
    limit = {"max_tokens": len("no more #")} if ends == "limit" else {}
    chunks, done = answer(control, stop=("##",), **limit)
    assert "no more #" == "".join(chunks)
    assert ("length" if ends == "limit" else "stop") == done.finish_reason


@pytest.mark.parametrize("end", [EOS, IM_END])
def test_every_end_token_ends_the_turn(control, say, end: int) -> None:
    """F-GN-04: the base model's and the chat's; none is shown or counted."""
    say("yes", end)
    chunks, done = answer(control)
    assert ("yes", "stop", 3) == ("".join(chunks), done.finish_reason, done.usage.completion_tokens)


def test_other_control_tokens_are_no_text(control, say) -> None:
    """F-GN-04: a model that opens a turn of its own shows nothing of it."""
    say("yes", IM_START, FIRST_BYTE + ord("!"), EOS)
    assert "yes!" == answer(control)[1].text


def test_a_model_without_an_end_token_runs_to_the_limit(
    open_model: Open, field_samples: Path, say
) -> None:
    """F-GN-04: and says so."""
    session = open_model(field_samples / "gguf" / "49_eos_missing.gguf")
    say("no end ", cycle=True)
    chunks, done = answer(session, max_tokens=5)
    assert ("no en", "length") == ("".join(chunks), done.finish_reason)


@pytest.mark.parametrize("sample", ["hf/25_eos_only_in_generation_config", "tokenizer/15"])
def test_a_converted_model_ends_at_its_end_of_turn(
    run_edgellm, open_model: Open, field_samples: Path, tmp_path: Path, say, sample: str
) -> None:
    """F-GN-04: known from generation_config.json alone, or marked as no special token."""
    folder, out = tmp_path / "checkpoint", tmp_path / "model.gguf"
    is_tokenizer = sample.startswith("tokenizer")
    shutil.copytree(field_samples / ("hf/00_ok_control" if is_tokenizer else sample), folder)
    if is_tokenizer:
        tokenizer = field_samples / "tokenizer" / "15_special_flag_false.json"
        shutil.copy(tokenizer, folder / "tokenizer.json")
    done = run_edgellm("convert", folder, "-o", out, "--type", "f16")
    assert 0 == done.returncode, done.stderr
    session = open_model(out)
    say("yes", IM_END)
    _, ended = answer(session)
    assert ("yes", "stop") == (ended.text, ended.finish_reason)


def test_a_full_context_ends_the_answer(control, say) -> None:
    """F-GN-10: nothing is shifted out; without a limit of its own the context is the limit."""
    say("on and on ", cycle=True)
    chunks, done = answer(control)
    assert ("length", N_CTX) == (done.finish_reason, control.engine.position)
    assert done.usage.prompt_tokens + len("".join(chunks)) == N_CTX + 1


def test_a_run_without_a_limit_ends_with_the_context(run_edgellm, field_samples: Path) -> None:
    """F-GN-10: the command line says why."""
    model = field_samples / "gguf" / "00_ok_control.gguf"
    done = run_edgellm("run", model, "-p", "hi", "--json", "--snapshot", "off", *NEVER_ENDS)
    last = json.loads(done.stdout.splitlines()[-1])
    assert (0, "length") == (done.returncode, last["finish_reason"])
    # The last token was shown and needed no room any more.
    assert 64 + 1 == last["usage"]["prompt_tokens"] + last["usage"]["completion_tokens"]
    assert "context is full" in done.stderr
