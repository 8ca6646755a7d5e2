"""Plain output: no escape sequence where nobody looks, any code page, ASCII in what is ours."""

from __future__ import annotations

import ast
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import edgellm

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Process = Callable[..., subprocess.Popen[bytes]]
    Model = Callable[..., Path]

DEADLINE_S = 20.0
PACKAGE = Path(edgellm.__file__).parent
HARMFUL = "값 👋 \x1b[31mred\x1b[0m \u202egpj.exe\u202c \x07\x9b2J"
LOCALES = {
    "cp949": {"PYTHONIOENCODING": "cp949:strict"},
    "cp1252": {"PYTHONIOENCODING": "cp1252:strict"},
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}
# What a converted tokenizer is tried on, and the patterns of splitters.
TEXTS_AS_DATA = ("proof_texts.py", "proof_child.py", "proof_templates.py", "splitters.py")
COLOURS = {
    "asked for none": {"NO_COLOR": "1"},
    "dumb": {"TERM": "dumb"},
    "asked for some": {"FORCE_COLOR": "1", "CLICOLOR_FORCE": "1", "TERM": "xterm-256color"},
}


def on_a_screen(fake_process: Process, *arguments: object, **environ: str) -> tuple[int, bytes]:
    """Run a command whose stdout and stderr are a terminal."""
    screen, far = pty.openpty()
    process = fake_process(
        *arguments,
        stdin=subprocess.DEVNULL,
        stdout=far,
        stderr=far,
        env={**os.environ, **environ},
    )
    os.close(far)
    shown = b""
    while True:
        try:
            data = os.read(screen, 4096)
        except OSError:  # how Linux says that the other side is gone
            break
        if not data:
            break
        shown += data
    os.close(screen)
    return process.wait(DEADLINE_S), shown


@pytest.mark.parametrize("environ", LOCALES.values(), ids=LOCALES)
def test_a_pipe_gets_utf8_under_every_code_page(
    fake_process: Process, fake_model: Model, environ: dict[str, str]
) -> None:
    """The bytes of the answer are what the model wrote, stderr is UTF-8, nothing is raised."""
    model = fake_model(pieces=["값 ", "👋"], warn="경고")
    process = fake_process("run", model, "안녕", "--stats", env={**os.environ, **environ})
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (0, "값 👋\n".encode()) == (process.returncode, out)
    assert "경고" in err.decode("utf-8")
    assert b"Traceback" not in err


@pytest.mark.parametrize("environ", [LOCALES["cp949"], LOCALES["C"]], ids=["cp949", "C"])
def test_errors_name_any_file_under_every_code_page(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """A name in UTF-8 is shown whole, other bytes as escapes, a line end as what it is."""
    names = {
        "없다 and & 한글.gguf": "없다 and & 한글.gguf",
        b"no\xff.gguf": r"no\xff.gguf",
        "two  blanks\nand a line.gguf": r"two  blanks\nand a line.gguf",
    }
    for name, shown in names.items():
        path = os.fsencode(tmp_path) + b"/" + os.fsencode(name)
        done = subprocess.run(
            [sys.executable, "-m", "edgellm", "info", path, "--json"],
            capture_output=True,
            env={**os.environ, **environ},
            check=False,
        )
        assert 3 == done.returncode
        assert f"error: {tmp_path}/{shown}: there is" in done.stderr.decode("utf-8")
        assert f"{tmp_path}/" in json.loads(done.stdout)["message"]


@pytest.mark.parametrize("encoding", ["cp949", "ascii", "utf-8"])
def test_a_terminal_shows_marks_for_what_would_do_harm(
    fake_process: Process, fake_model: Model, encoding: str
) -> None:
    """No escape, bell, C1 control or bidi override reaches it; what it lacks is a mark too."""
    model = fake_model(pieces=list(HARMFUL), warn=HARMFUL)
    code, shown = on_a_screen(fake_process, "run", model, "hi", PYTHONIOENCODING=encoding)
    text = shown.decode(encoding)
    assert 0 == code
    assert not set("\x1b\x07\x9b\u202e\u202c") & set(text)
    assert "[31mred" in text
    assert "값" in text or encoding == "ascii"


@pytest.mark.parametrize("command", ["run", "chat"])
def test_a_file_gets_the_bytes_of_the_model(
    fake_process: Process, fake_model: Model, command: str
) -> None:
    """What a program reads is what the model wrote, escapes included; stderr has none of them."""
    model = fake_model(pieces=list(HARMFUL), warn=HARMFUL)
    process = fake_process(command, model, *(["hi"] if command == "run" else []))
    out, err = process.communicate(b"hi\n" if command == "chat" else None, timeout=DEADLINE_S)
    assert HARMFUL.encode() + b"\n" == out
    assert b"\x1b" not in err
    assert rb"\x1b[31mred" in err


@pytest.mark.parametrize("environ", COLOURS.values(), ids=COLOURS)
def test_nothing_is_coloured(
    fake_process: Process, fake_model: Model, environ: dict[str, str]
) -> None:
    """On a terminal and elsewhere, whatever the variables say, help and errors included."""
    model = fake_model()
    for words in (["run", model, "hi", "--stats"], ["--help"]):
        _, shown = on_a_screen(fake_process, *words, **environ)
        assert shown
        assert b"\x1b" not in shown
    command = [sys.executable, "-m", "edgellm", "run", "--help"]
    done = subprocess.run(command, capture_output=True, env={**os.environ, **environ}, check=True)
    assert b"\x1b" not in done.stdout
    assert done.stdout.isascii()


def test_a_dumb_terminal_gets_no_rewritten_line(fake_process: Process, fake_model: Model) -> None:
    """No carriage return but those of line ends; another one shows what is being waited for."""
    model = fake_model()
    _, shown = on_a_screen(fake_process, "run", model, "hi", TERM="dumb")
    assert b"Hello there\r\n" == shown
    _, shown = on_a_screen(fake_process, "run", model, "hi", TERM="xterm")
    assert b"loading fake.gguf" in shown
    assert b"Hello there\r\n" == shown[-13:]


def test_progress_in_a_log_is_a_few_plain_lines(tmp_path: Path) -> None:
    """Redirected, a conversion of many steps says so in at most ten lines, without a return."""
    code = (
        "from edgellm.cli.progress import ByteProgress\n"
        "progress = ByteProgress('converting')\n"
        "for done in range(0, 5001): progress(done, 5000)\n"
        "progress.close()"
    )
    err = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stderr
    assert 10 == len(err.splitlines())
    assert not set(b"\r\x1b") & set(err)


@pytest.mark.parametrize(
    "words",
    [("--no-color", "info"), ("info", "--no-color"), ("snapshots", "ls", "--no-color")],
    ids=" ".join,
)
def test_no_color_is_taken_by_every_command(cli: Any, words: tuple[str, ...]) -> None:
    """Scripts give it to any program; behind `--` it is a prompt."""
    assert 0 == cli(*words).code


def test_no_color_behind_the_dashes_is_text(cli: Any, fake_model: Model) -> None:
    """As is every other flag: `--` ends the options, and so does `=`."""
    for words in (["--", "--no-color"], ["--prompt=--no-color"], ["-p", "--no-color"]):
        assert 0 == cli("run", fake_model(), *words).code
        assert "--no-color" == cli.sessions[-1].requests[0].messages[0].content


def texts(path: Path) -> list[tuple[int, str]]:
    """List the string literals of a module that are no docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
    ]


def test_our_own_messages_are_ascii() -> None:
    """A legacy console shows all of them; what is not ASCII is data about text, without words."""
    spoken = [
        f"{path.relative_to(PACKAGE)}:{line}: {text!a}"
        for path in PACKAGE.rglob("*.py")
        for line, text in texts(path)
        if not text.isascii() and " " in text and path.name not in TEXTS_AS_DATA
    ]
    assert [] == spoken
