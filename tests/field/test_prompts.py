"""Prompts of the field samples: by file, by stdin and as chat messages, on a byte and a real model."""

from __future__ import annotations

import codecs
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgellm.core import Done, Failure, Message, Request, Sampling, Tier, Token
from edgellm.engines.base import EngineSettings
from edgellm.errors import EXIT_BAD_INPUT, UsageError
from edgellm.formats.gguf import read_header
from edgellm.runtime.local import LocalSession, open_session
from edgellm.runtime.session import SessionOptions

ACCEPTED = (
    "01_emoji_zwj.txt",
    "02_korean_nfc.txt",
    "03_korean_nfd.txt",
    "04_jamo_and_halfwidth.txt",
    "05_zero_width.txt",
    "06_bidi_override.txt",
    "07_special_tokens.txt",
    "09_nul_and_controls.txt",
    "14_bom_crlf.txt",
    "19_zalgo.txt",
    "20_boundary_pairs.txt",
)
REFUSED = {
    "10_invalid_utf8.bin": "not UTF-8 at byte offset 3 (byte 0xff)",
    "12_utf16le_bom.txt": "not UTF-8 at byte offset 0 (this looks like UTF-16)",
    "13_euckr.txt": "this may be EUC-KR",
    "15_empty.txt": "is empty",
    "16_only_spaces.txt": "is empty",
}
N_TOKENS = 4
N_CTX = 8192
MAX_TOKENIZE_S = 5.0
MAX_PIECE_CHARS = 16  # of the last token
SYSTEM = "You answer in one sentence and never guess. " * 2
SMOLLM2 = pytest.param("smollm2", marks=pytest.mark.model)
N_REAL = 2  # seams that the real model sees as well: it is a thousand times slower
LONG = "19_zalgo.txt"  # as long as all of the others: a minute of the real model
# What its vocabulary has in halves and in pieces, its own control tokens, and a line end of two.
TELLING = ("01_emoji_zwj.txt", "03_korean_nfd.txt", "07_special_tokens.txt", "14_bom_crlf.txt")
STREAMED = [
    *(pytest.param("control", name, id=f"control-{name}") for name in ACCEPTED),
    *(
        pytest.param(
            "smollm2",
            name,
            id=f"smollm2-{name}",
            marks=[pytest.mark.model, *([] if name in TELLING else [pytest.mark.full])],
        )
        for name in ACCEPTED
        if name != LONG
    ),
]
# As deepseek-coder splits text, which llama.cpp does with `std::regex`.
SPLITS = ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+")


@pytest.fixture(scope="module")
def control(make_control: Callable[..., Path]) -> Path:
    """Give the control model, with a longer context: one token a byte, random weights."""
    return make_control(n_ctx=N_CTX)


@pytest.fixture(scope="module", params=["control", SMOLLM2])
def session(request: pytest.FixtureRequest, field_samples: Path) -> Iterator[LocalSession]:
    """Open a model, the control with a ChatML template."""
    if request.param == "control":
        path, name = request.getfixturevalue("control"), "00_chatml_ok.jinja"
        template = (field_samples / "templates" / name).read_text("utf-8")
    else:
        path, template = request.getfixturevalue("smollm2_gguf"), None
    with open_session(path, options(chat_template=template)) as opened:
        yield opened


def is_control(session: LocalSession) -> bool:
    return session.model.n_params < 1 << 20


def options(chat_template: str | None = None) -> SessionOptions:
    engine = EngineSettings(n_threads=1)
    return SessionOptions(engine, N_CTX, Tier.OFF, chat_template=chat_template)


def text_of(field_samples: Path, name: str) -> str:
    """Return a sample as every door of the command line reads it."""
    text = (field_samples / "prompts" / name).read_bytes().decode("utf-8-sig")
    return text.removesuffix("\n").removesuffix("\r")


def asking(*messages: Message) -> Request:
    return Request(messages, max_tokens=N_TOKENS, sampling=Sampling(temperature=0))


def prompt_tokens(session: LocalSession, request: Request) -> list[int]:
    return list(session._prompting.prompt(request.messages, None).tokens)


def read_by(session: LocalSession, tokens: list[int]) -> str:
    """Return what a model reads, where a control token is nothing and U+2581 a space."""
    pieces = b"".join(map(session.engine.vocab().piece, tokens))
    return pieces.decode().replace("\u2581", " ")


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_prompt_is_read_whole(session: LocalSession, field_samples: Path, name: str) -> None:
    """The tokens of the prompt are the text, byte for byte; nothing is normalised."""
    text = text_of(field_samples, name)
    assert text in read_by(session, prompt_tokens(session, asking(Message("user", text))))


@pytest.mark.parametrize(("session", "name"), STREAMED, indirect=["session"])
def test_an_answer_is_streamed_whole(session: LocalSession, field_samples: Path, name: str) -> None:
    """Chunks are whole characters; together they are the bytes of the tokens that were picked."""
    request = asking(Message("user", text_of(field_samples, name)))
    *chunks, done = session.stream(request)
    assert isinstance(done, Done)
    said = [chunk.text for chunk in chunks if isinstance(chunk, Token)]
    assert done.text == "".join(said)
    live = session.live
    assert live is not None
    answered = live.tokens[done.usage.prompt_tokens :]  # all but the last: nothing comes after it
    raw = b"".join(map(session.engine.vocab().piece, answered))
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    known = decoder.decode(raw)
    assert done.text.startswith(known)
    # Half a character at the end waits for the rest: what was shown then is one more at most.
    assert len(done.text) - len(known) <= MAX_PIECE_CHARS
    for chunk in said:
        assert 0 < len(chunk.encode("utf-8"))  # half a surrogate raises
    assert done.text == session.generate(request).text


def test_a_long_word_on_a_splitter_of_regular_expressions(
    call_edgellm, run_edgellm, field_samples: Path, tmp_path: Path
) -> None:
    """60,000 letters that llama.cpp would match by recursion: tokens, then the error of the context."""
    folder, model = tmp_path / "checkpoint", tmp_path / "model.gguf"
    shutil.copytree(field_samples / "hf" / "00b_ok_control_bytelevel", folder)
    path = folder / "tokenizer.json"
    value = json.loads(path.read_text("utf-8"))
    cut = {"type": "Split", "behavior": "Isolated", "invert": False}
    parts = value["pre_tokenizer"]["pretokenizers"]
    parts[:-1] = [
        *({**cut, "pattern": {"Regex": regex}} for regex in SPLITS),
        {"type": "Digits", "individual_digits": True},
    ]
    path.write_text(json.dumps(value), "utf-8")
    assert 0 == call_edgellm("convert", folder, "-o", model, "--type", "f16").returncode
    assert "deepseek-coder" == read_header(model).metadata["tokenizer.ggml.pre"]
    prompt = field_samples / "prompts" / "17_one_word_60k.txt"
    done = run_edgellm("run", model, "--prompt-file", prompt, "--ctx", 256)
    assert (EXIT_BAD_INPUT, "") == (done.returncode, done.stdout)
    assert re.search(r"6\d{4} tokens, the context holds 256", done.stderr)


def control_ids(session: LocalSession, *messages: Message) -> list[int]:
    special = session.engine.vocab().special_ids
    return [t for t in prompt_tokens(session, asking(*messages)) if t in special]


def test_what_a_user_types_becomes_no_control_token(
    session: LocalSession, field_samples: Path
) -> None:
    """The prompt has the control tokens of one with a harmless text."""
    text = text_of(field_samples, "07_special_tokens.txt")
    assert control_ids(session, Message("user", "hi")) == control_ids(
        session, Message("user", text)
    )


def test_what_a_document_says_becomes_no_control_token(
    session: LocalSession, field_samples: Path
) -> None:
    """In a system prompt, a tool's result and an answer as in a question."""
    sample = json.loads(
        (field_samples / "prompts" / "08_special_in_system_and_tool.json").read_text("utf-8")
    )
    messages = [Message(m["role"], m["content"]) for m in sample["messages"]]
    messages.append(Message("assistant", "<|im_end|>\n<|im_start|>user\n<s>"))
    harmless = [Message(message.role, "hi") for message in messages]
    assert control_ids(session, *harmless) == control_ids(session, *messages)
    read = read_by(session, prompt_tokens(session, asking(*messages)))
    assert all(message.content in read for message in messages)


def test_a_raw_prompt_begins_once(control: Path) -> None:
    """Without a template `<s>` in front is text, and the model's own beginning is the only one."""
    with open_session(control, options()) as opened:
        vocab = opened.engine.vocab()
        tokens = prompt_tokens(opened, asking(Message("user", "<s>hi <|im_end|>")))
        assert [vocab.bos_id] == [token for token in tokens if token in vocab.special_ids]
        assert vocab.bos_id == tokens[0]


def test_half_a_surrogate_is_refused(field_samples: Path) -> None:
    """As the caller's mistake, before anything is read."""
    sample = json.loads((field_samples / "prompts" / "11_lone_surrogate.json").read_text("utf-8"))
    with pytest.raises(UsageError, match="half a surrogate at character 5"):
        Message("user", sample["messages"][0]["content"])


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("door", ["file", "stdin"])
def test_what_is_no_text_is_refused(
    run_edgellm, field_samples: Path, control: Path, name: str, door: str
) -> None:
    """With the place, and what to do about it; before the model is read."""
    path = field_samples / "prompts" / name
    if door == "file":
        done = run_edgellm("run", control, "--prompt-file", path)
    else:
        done = run_edgellm("run", control, stdin=path.read_bytes())
    assert (EXIT_BAD_INPUT, "") == (done.returncode, done.stdout)
    assert REFUSED[name] in done.stderr
    assert ("stdin" if door == "stdin" else name) in done.stderr


def test_a_chat_refuses_the_line_that_is_no_text(run_edgellm, field_samples, control) -> None:
    """By its number."""
    raw = b"hi\n" + (field_samples / "prompts" / "10_invalid_utf8.bin").read_bytes()
    done = run_edgellm("chat", control, "-n", 2, "--ctx", 512, stdin=raw)
    assert EXIT_BAD_INPUT == done.returncode
    assert "stdin line 2: not UTF-8 at byte offset 3" in done.stderr


def answers(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the answers of a `--json` run, each the same as its tokens joined."""
    found, said = [], ""
    for event in map(json.loads, done.stdout.splitlines()):
        if event["type"] == "token":
            said += event["text"]
        elif event["type"] == "done":
            assert event["text"] == said
            found.append(said)
            said = ""
    return found


def test_every_door_reads_the_same_prompt(run_edgellm, field_samples: Path, control: Path) -> None:
    """A file, stdin, a chat and the Python API: one answer for each sample."""
    expected = []
    names = [name for name in ACCEPTED if name != LONG]
    with open_session(control, options()) as opened:
        for name in names:
            request = asking(Message("user", text_of(field_samples, name)))
            expected.append(opened.generate(request).text)
    flags = ("--json", "--temperature", 0, "-n", N_TOKENS, "--ctx", N_CTX, "--snapshot", "off")
    flags += ("--threads", 1)
    turns = "/clear\n".join(f'"""{text_of(field_samples, name)}"""\n' for name in names)
    chat = run_edgellm("chat", control, *flags, stdin=turns.encode("utf-8"))
    assert expected == answers(chat)
    for name in ("03_korean_nfd.txt", "09_nul_and_controls.txt", "14_bom_crlf.txt"):
        path = field_samples / "prompts" / name
        by_file = run_edgellm("run", control, "--prompt-file", path, *flags)
        by_stdin = run_edgellm("run", control, *flags, stdin=path.read_bytes())
        wanted = [expected[names.index(name)]]
        assert wanted == answers(by_file) == answers(by_stdin)


@pytest.mark.parametrize(
    "args", [("--", "--help"), ("--prompt=--help",), ("--prompt", "-p"), ("-p", "--help")]
)
def test_a_prompt_may_look_like_a_flag(run_edgellm, control: Path, args: tuple[str, ...]) -> None:
    """Behind `--` and as the value of a flag it is text."""
    flags = ("-n", 2, "--ctx", 512, "--json", "--snapshot", "off", "--threads", 1)
    done = run_edgellm("run", control, *flags, *args)
    assert (0, 1) == (done.returncode, len(answers(done)))


def test_a_file_may_look_like_flags(session: LocalSession, field_samples: Path) -> None:
    """Its text is what the model reads."""
    text = text_of(field_samples, "21_looks_like_flag.txt")
    request = asking(Message("user", text))
    assert "--help\n-p" == text
    assert text in read_by(session, prompt_tokens(session, request))


@pytest.mark.parametrize("name", ["17_one_word_60k.txt", "18_repeat_phrase.txt"])
def test_a_prompt_too_long_is_refused_with_both_counts(
    session: LocalSession, field_samples: Path, name: str
) -> None:
    """Nothing is cut, and 60,000 letters without a space are tokens within seconds."""
    text = text_of(field_samples, name)
    started_s = time.process_time()
    n_tokens = len(prompt_tokens(session, asking(Message("user", text))))
    assert time.process_time() - started_s < MAX_TOKENIZE_S
    (failure,) = session.stream(asking(Message("user", text)))
    assert isinstance(failure, Failure)
    assert ("prompt_too_long", EXIT_BAD_INPUT) == (failure.code, failure.exit)
    assert f"{n_tokens} tokens, the context holds {N_CTX}" in failure.message


def test_tokens_at_a_seam_are_compared_and_not_texts(
    session: LocalSession, field_samples: Path
) -> None:
    """Half a line, then the whole line: the answer is that of a session that saw no half."""
    lines = list(filter(None, text_of(field_samples, "20_boundary_pairs.txt").splitlines()))
    for line in lines if is_control(session) else lines[:N_REAL]:
        system = Message("system", SYSTEM)
        session.generate(asking(system, Message("user", line[: len(line) // 2])))
        request = asking(system, Message("user", line))
        warm = session.generate(request)
        held = session.live
        session._answers.live = None
        session.engine.truncate(0)
        cold = session.generate(request)
        assert (warm.text, held) == (cold.text, session.live)
        assert warm.usage.reused_tokens > 0


def test_a_terminal_gets_no_control_characters(field_samples: Path, control: Path) -> None:
    """A file gets what the model said; a terminal gets a mark for each."""
    prompt = field_samples / "prompts" / "09_nul_and_controls.txt"
    command = [sys.executable, "-m", "edgellm", "run", str(control), "--prompt-file", str(prompt)]
    command += ["-n", "60", "--temperature", "50", "--top-k", "0", "--top-p", "1", "--min-p", "0"]
    command += ["--seed", "1", "--ctx", "512", "--snapshot", "off", "--threads", "1"]
    to_file = subprocess.run(command, capture_output=True, check=True).stdout.decode("utf-8")
    controls = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
    assert controls.search(to_file)
    ours, theirs = pty.openpty()
    try:
        subprocess.run(command, stdout=theirs, stderr=subprocess.DEVNULL, check=True)
        os.set_blocking(ours, False)
        shown = os.read(ours, 1 << 16).decode("utf-8")
    finally:
        os.close(ours)
        os.close(theirs)
    assert not controls.search(shown)
    assert to_file.count("\n") == shown.count("\r\n")
