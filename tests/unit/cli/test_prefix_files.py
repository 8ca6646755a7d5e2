"""`--prefix-file` and `--tools`: what of them reaches the session, and which are refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from edgellm.core import Message

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

TOOLS = [{"type": "function", "function": {"name": "b", "a": [1, None]}}]


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def first_message(cli: Any) -> Message:
    message: Message = cli.sessions[0].requests[0].messages[0]
    return message


def test_documents_follow_the_system_prompt(
    cli: Any, fake_model: Callable[..., Path], tmp_path: Path
):
    """One message, a blank line between any two, and a mark behind each."""
    one, two = write(tmp_path / "one", "A\n"), write(tmp_path / "two", "\ufeffB\r\nb")
    cli("run", fake_model(), "hi", "--system", "S", "--prefix-file", one, "--prefix-file", two)
    assert first_message(cli) == Message("system", "S\n\nA\n\nB\r\nb", (1, 4, 10))


def test_documents_need_no_system_prompt(cli: Any, fake_model: Callable[..., Path], tmp_path: Path):
    """The first one then begins the message; a blank one is nothing."""
    one, blank = write(tmp_path / "one", "A"), write(tmp_path / "blank", "\n \n")
    cli("run", fake_model(), "hi", "--prefix-file", blank, "--prefix-file", one)
    assert first_message(cli) == Message("system", "A", (1,))


def test_without_documents_there_are_no_marks(cli: Any, fake_model: Callable[..., Path]):
    """A system prompt alone is sent as it always was."""
    cli("run", fake_model(), "hi", "--system", "S")
    assert first_message(cli) == Message("system", "S")


def test_chat_keeps_documents_and_tools_in_every_turn(
    cli: Any, fake_model: Callable[..., Path], tmp_path: Path
):
    """They stay when the conversation starts anew or has another system prompt."""
    one, tools = write(tmp_path / "one", "A"), write(tmp_path / "tools", json.dumps(TOOLS))
    lines = b"hi\n/clear\nhi\n/system T\nhi\n"
    flags = ("--system", "S", "--prefix-file", one, "--tools", tools)
    assert cli("chat", fake_model(), *flags, stdin=lines).code == 0
    sent = cli.sessions[0].requests
    assert [request.messages[0].content for request in sent] == ["S\n\nA", "S\n\nA", "T\n\nA"]
    assert [request.messages[0].marks for request in sent] == [(1, 4)] * 3
    assert all(list(request.tools) == TOOLS for request in sent)


def test_tools_keep_the_order_of_their_keys(
    cli: Any, fake_model: Callable[..., Path], tmp_path: Path
):
    """What the file says comes first stands first in the prompt."""
    tools = write(tmp_path / "tools", json.dumps(TOOLS))
    cli("run", fake_model(), "hi", "--tools", tools)
    assert json.dumps(cli.sessions[0].requests[0].tools) == json.dumps(TOOLS)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[{]", "not JSON at line 1, column 3"),
        ("{}", "no list of objects"),
        ('["a"]', "no list of objects"),
        ('[{"a": 1, "b": {"c": 1, "c": 2}}]', "the key 'c' stands twice"),
        ('[{"a": NaN}]', "tools[0].a must be a JSON value, not nan"),
        ("[" * 100_000, "recursion"),
        ("[" + '{"a":' * 40 + "1" + "}" * 40 + "]", "more than 24 deep"),
        ('[{"a": "\\ud800"}]', "half a surrogate"),
        (b"[{\xff}]", "not UTF-8 at byte offset 2"),
    ],
)
def test_tools_that_are_none_are_told(
    cli: Any, fake_model: Callable[..., Path], tmp_path: Path, content: str | bytes, words: str
):
    """Exit 2 before any model is opened, with the place."""
    result = cli("run", fake_model(), "hi", "--tools", write(tmp_path / "tools", content))
    assert result.code == 2
    assert words in result.err
    assert not cli.sessions


def test_a_document_that_is_not_utf8_is_told(
    cli: Any, fake_model: Callable[..., Path], tmp_path: Path
):
    """By the rules of --system-file: the file, the offset, exit 2."""
    bad = write(tmp_path / "bad", b"ab\xff")
    result = cli("run", fake_model(), "hi", "--prefix-file", bad)
    assert result.code == 2
    assert f"{bad}: not UTF-8 at byte offset 2" in result.err


def test_a_missing_document_is_told(cli: Any, fake_model: Callable[..., Path], tmp_path: Path):
    """As any file that is not there: exit 3."""
    assert cli("run", fake_model(), "hi", "--prefix-file", tmp_path / "none").code == 3


def test_stdin_is_read_once(cli: Any, fake_model: Callable[..., Path]):
    """Two documents cannot both be what is piped."""
    flags = ("--system-file", "-", "--prefix-file", "-")
    result = cli("run", fake_model(), "hi", *flags, stdin=b"S")
    assert result.code == 2
    assert "stdin is named twice" in result.err
