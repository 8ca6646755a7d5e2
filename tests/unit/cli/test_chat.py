"""`edgellm chat`: turns, commands, what the conversation keeps."""

from __future__ import annotations

import signal
import stat
from typing import TYPE_CHECKING, Any

import pytest

from edgellm.cli import render
from edgellm.cli.chat import Conversation
from edgellm.cli.lines import TerminalLines, read_history, read_turn
from edgellm.core import Message
from edgellm.errors import DoesNotFit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ASKED, SAID = "user", "assistant"


def roles(session: Any) -> list[list[tuple[str, str]]]:
    """Return the messages of every request as pairs."""
    return [[(m.role, m.content) for m in request.messages] for request in session.requests]


def test_each_line_of_stdin_is_a_turn(cli: Any, fake_model: Callable[..., Path]):
    """The second request carries the first turn and its answer."""
    result = cli("chat", fake_model(), "--system", "S", stdin=b"one\n\ntwo\n")
    assert (result.code, result.out, result.err) == (0, "Hello there\nHello there\n", "")
    first = [("system", "S"), (ASKED, "one")]
    assert roles(cli.sessions[0]) == [first, [*first, (SAID, "Hello there"), (ASKED, "two")]]


def test_blocks_and_backslashes_make_one_turn(cli: Any, fake_model: Callable[..., Path]):
    """Three double quotes hold lines together, a backslash joins the next one."""
    typed = b'"""first\nsecond\n"""\nthird\\\nfourth\n"""one line"""\n"""open\nend'
    cli("chat", fake_model(pieces=["."]), stdin=typed)
    asked = [request.messages[-1].content for request in cli.sessions[0].requests]
    assert asked == ["first\nsecond", "third\nfourth", "one line", "open\nend"]


def test_clear_forgets_the_turns_and_keeps_the_system_prompt(
    cli: Any, fake_model: Callable[..., Path]
):
    """/clear starts anew under the same system prompt."""
    cli("chat", fake_model(), "--system", "S", stdin=b"one\n/clear\ntwo\n")
    assert roles(cli.sessions[0])[1] == [("system", "S"), (ASKED, "two")]


def test_system_sets_and_shows_the_system_prompt(cli: Any, fake_model: Callable[..., Path]):
    """/system TEXT starts anew under it; /system shows it."""
    result = cli("chat", fake_model(), stdin=b"/system\none\n/system Be brief\n/system\ntwo\n")
    assert roles(cli.sessions[0]) == [
        [(ASKED, "one")],
        [("system", "Be brief"), (ASKED, "two")],
    ]
    assert result.err == "(no system prompt)\nBe brief\n"


@pytest.mark.parametrize("word", ["/bye", "/exit"])
def test_bye_leaves(cli: Any, fake_model: Callable[..., Path], word: str):
    """What follows /bye is not read."""
    assert cli("chat", fake_model(), stdin=f"{word}\none\n".encode()).code == 0
    assert cli.sessions[0].requests == []
    assert cli.sessions[0].closed


def test_stats_and_help_go_to_stderr(cli: Any, fake_model: Callable[..., Path]):
    """Commands never write to stdout."""
    result = cli("chat", fake_model(), stdin=b"/stats\none\n/stats\n/help\n/nonsense\n")
    assert result.out == "Hello there\n"
    for part in ("(no answer yet)", "56.0 tokens/s", "/clear", "/nonsense is no command"):
        assert part in result.err


def test_a_path_is_no_command(cli: Any, fake_model: Callable[..., Path]):
    """Text that starts with a slash and is none of the commands is sent."""
    texts = [
        "/etc/hosts holds what?",
        "/etc is a folder",
        "/bin/ls",
        "/exit code 3 means what?",
        "/bin x\n/usr y",
    ]
    typed = "\n".join(f'"""{text}"""' for text in texts)
    result = cli("chat", fake_model(), stdin=typed.encode())
    assert [request.messages[-1].content for request in cli.sessions[0].requests] == texts
    assert result.err == ""


@pytest.mark.parametrize("word", ["/etc", "/Clear", "/set-up", "/stat "])
def test_word_that_is_no_command_warns(cli: Any, fake_model: Callable[..., Path], word: str):
    """A lone word behind a slash is a mistyped command and is not sent."""
    result = cli("chat", fake_model(), stdin=f"{word}\n".encode())
    assert cli.sessions[0].requests == []
    assert result.err == f"warning: {word.strip()} is no command; /help lists them\n"


def test_failed_turn_ends_a_piped_chat(cli: Any, fake_model: Callable[..., Path]):
    """Nobody is there to try again: the exit code is the failure's."""
    assert cli("chat", fake_model(failure=4), stdin=b"one\ntwo\n").code == 4
    assert len(cli.sessions[0].requests) == 1
    assert cli("chat", fake_model(**{"raise": "broken"}), stdin=b"one\ntwo\n").code == 1


def test_bad_bytes_name_the_line(cli: Any, fake_model: Callable[..., Path]):
    """The error says which line of stdin is not UTF-8."""
    result = cli("chat", fake_model(), stdin=b"one\nt\xffo\n")
    assert result.code == 2
    assert "stdin line 2: not UTF-8 at byte offset 1" in result.err


def test_chat_as_json_lines(cli: Any, fake_model: Callable[..., Path]):
    """--json gives the events of every turn."""
    result = cli("chat", fake_model(pieces=["a"]), "--json", stdin=b"one\ntwo\n")
    assert [line["type"] for line in result.lines] == ["token", "done"] * 2


class Typing:
    """A terminal where lines are typed; an exception among them is raised."""

    def __init__(self, *typed: str | type[BaseException] | BaseException) -> None:
        self.typed = iter(typed)

    def __call__(self, prompt: str = "") -> str:
        """Type the next line."""
        line = next(self.typed, EOFError)
        if isinstance(line, str):
            return line
        raise line


def test_run_without_a_prompt_on_a_terminal_chats(
    cli: Any, fake_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    """`edgellm run MODEL` on a terminal is a chat; Ctrl-D ends it."""
    monkeypatch.setattr("builtins.input", Typing("one"))
    result = cli("run", fake_model(), terminal=True)
    assert (result.code, result.out) == (0, "Hello there\n")


def test_failed_turn_leaves_no_trace_on_a_terminal(
    cli: Any, fake_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    """A person may try again: the failed question is not in the next request."""
    monkeypatch.setattr("builtins.input", Typing("one", "two"))
    result = cli("chat", fake_model(failure=4), terminal=True)
    assert result.code == 0
    assert roles(cli.sessions[0]) == [[(ASKED, "one")], [(ASKED, "two")]]


@pytest.mark.parametrize(
    ("typed", "code", "n_answers"),
    [
        ((UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "one"), 0, 1),
        ((KeyboardInterrupt, "one"), 0, 1),
        ((KeyboardInterrupt, "one", KeyboardInterrupt, "two"), 0, 2),
        ((KeyboardInterrupt, KeyboardInterrupt, "one"), 130, 0),
    ],
)
def test_interrupt_and_bad_bytes_at_the_prompt(
    cli: Any,
    fake_model: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    typed: tuple[Any, ...],
    code: int,
    n_answers: int,
):
    """One Ctrl-C clears the line, a second in a row leaves; a bad line is asked for again."""
    monkeypatch.setattr("builtins.input", Typing(*typed))
    assert cli("chat", fake_model(), terminal=True).code == code
    assert len(cli.sessions[0].requests) == n_answers


def test_cancelled_answer_stays_in_the_conversation(
    cli: Any, fake_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    """Ctrl-C during an answer keeps what was said, and the chat goes on."""
    monkeypatch.setattr("builtins.input", Typing("one", "two"))
    shown = render.TextPrinter.event

    def press(self: render.TextPrinter, event: Any) -> None:
        shown(self, event)
        if event.type == "token" and event.seq == 1 and len(cli.sessions[0].requests) == 1:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(render.TextPrinter, "event", press)
    result = cli("chat", fake_model(pieces=["a", "b", "c"]), terminal=True)
    assert (result.code, result.out) == (0, "ab\nabc\n")
    assert roles(cli.sessions[0])[1] == [(ASKED, "one"), (SAID, "ab"), (ASKED, "two")]


def test_history_is_kept_for_its_owner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Typed lines are appended, mode 0600, the newest thousand of them."""
    file = tmp_path / "home" / "history"
    file.parent.mkdir()
    file.write_text("".join(f"old {n}\n" for n in range(999)), encoding="utf-8")
    lines = TerminalLines(file)
    monkeypatch.setattr("builtins.input", Typing("one", "", "two\nthree"))
    while lines.next_line("") is not None:
        pass
    lines.close()
    assert read_history(file)[-3:] == ["old 998", "one", "two three"]
    assert len(read_history(file)) == 1000
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_history_that_cannot_be_kept_is_a_warning(
    cli: Any, fake_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    """A full disk at /bye does not turn a good chat into a failure."""

    def full(path: Path, data: bytes) -> None:
        raise DoesNotFit("the disk is full", path=path)

    monkeypatch.setattr("edgellm.cli.lines.write_atomic", full)
    monkeypatch.setattr("builtins.input", Typing("one", "/bye"))
    result = cli("chat", fake_model(), terminal=True)
    assert (result.code, result.out) == (0, "Hello there\n")
    assert result.err.startswith(">>> >>> warning: the history was not kept: ")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("value", "kept"), [("off", False), ("0", False), ("on", True), ("", True)]
)
def test_history_variable(
    cli: Any,
    fake_model: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    edgellm_home: Path,
    value: str,
    kept: bool,
):
    """EDGELLM_HISTORY=off leaves nothing typed behind."""
    monkeypatch.setenv("EDGELLM_HISTORY", value)
    monkeypatch.setattr("builtins.input", Typing("one", "/bye"))
    assert cli("chat", fake_model(), terminal=True).code == 0
    assert (edgellm_home / "history").exists() == kept


def test_history_variable_with_another_value_is_refused(
    cli: Any, fake_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    """A value that could mean either is an error before the model is read."""
    monkeypatch.setenv("EDGELLM_HISTORY", "never")
    result = cli("chat", fake_model(), terminal=True)
    assert (result.code, cli.sessions) == (2, [])
    assert "EDGELLM_HISTORY='never'" in result.err
    assert result.err.endswith("hint: export EDGELLM_HISTORY=off or unset it\n")


def test_interrupted_block_is_dropped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Ctrl-C inside a block gives the interrupt to the caller, and the block is gone."""
    lines = TerminalLines(tmp_path / "history")
    monkeypatch.setattr("builtins.input", Typing('"""one', KeyboardInterrupt, "two"))
    with pytest.raises(KeyboardInterrupt):
        read_turn(lines)
    assert read_turn(lines) == "two"


def test_message_of_the_user_needs_an_answer_to_stay():
    """A cancelled answer without a word leaves the conversation as it was."""
    talk = Conversation(system="S")
    talk.answered(Message("user", "one"), "")
    question = Message("user", "two")
    assert talk.asking(question) == (Message("system", "S"), question)


def test_typed_bytes_are_utf8_in_any_locale() -> None:
    """Where the locale is ASCII, Python gives bytes as surrogates; what is no UTF-8 is refused."""
    from edgellm.cli.lines import typed_text
    from edgellm.errors import UsageError

    raw = "안녕 é".encode()
    assert typed_text(raw.decode("ascii", "surrogateescape")) == "안녕 é"
    assert typed_text("안녕 é") == "안녕 é"
    with pytest.raises(UsageError, match="byte offset 1"):
        typed_text(b"a\xffb".decode("ascii", "surrogateescape"))
