"""Tab: what can stand at the cursor, asked as the shells ask it and through real shells."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edgellm.cli.candidates import Completion, complete
from edgellm.cli.commands import app
from edgellm.cli.completion import split_line
from edgellm.cli.tree import tree_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

DEADLINE_S = 30.0
KEYS = ("aa11", "ab22", "c333")
HEAVY = "numpy psutil jinja2 httpx rich gguf tokenizers llama_cpp edgellm.engines edgellm.store"


def at(*words: str) -> Completion:
    """Ask with a store of three snapshots."""
    return complete(tree_of(app, "edgellm"), words, lambda: KEYS)


def values(*words: str) -> list[str]:
    """Give the words that may stand at the cursor."""
    return [candidate.value for candidate in at(*words).words]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["c"], ["chat", "convert", "completion", "config", "consent"]),
        (
            ["config", "get", "endpoint.u"],
            [
                "endpoint.url",
                "endpoint.usd_per_mtok_in",
                "endpoint.usd_per_mtok_out",
                "endpoint.uses_proxy",
            ],
        ),
        (["config", "set", "mode", ""], []),
        (["snapshots", "w"], ["why", "warm"]),
        (["snapshots", "p"], ["prune", "purge"]),
        (["snapshots", "ls", "-"], ["--snapshot-encrypt", "--json", "--help"]),
        (["snapshots", "export", "aa11", "a"], ["aa11", "ab22"]),
        (["snapshots", "rm", ""], list(KEYS)),
        (["snapshots", "rm", "aa11", "a"], ["aa11", "ab22"]),
        (["--v"], ["--version"]),
        (["run", "m.gguf", "--prompt-f"], ["--prompt-file"]),
        (["run", "m", "--kv-type", "q"], ["q8_0", "q4_0"]),
        (["run", "--kv-type=f"], ["f16", "f32"]),
        (["run", "--flash-attn", ""], ["auto", "on", "off"]),
        (["run", "--gpu-layers", ""], ["auto"]),
        (["run", "--mode", "pr"], ["private", "prefer-local", "prefer-cloud"]),
        (["run", "--on-failure", "re"], ["resume-local", "restart"]),
        (["completion", ""], ["bash", "zsh", "fish", "powershell"]),
        (["run", "m", "-p", "--se"], []),
        (["run", "--", "--se"], []),
        (["walk", ""], []),
        (["run", "--no-such=x"], []),
        (["run", "m", "a prompt", ""], []),
        (["run", "m", "a prompt", "one too many", ""], []),
        (["chat", "m", "more", "--seed", "1", "--see"], []),
    ],
)
def test_words_at_the_cursor(words: Sequence[str], expected: list[str]) -> None:
    """Commands, options not yet given, and the values of the option before the cursor."""
    assert expected == values(*words)


def test_tiers_and_types_are_those_that_are_parsed() -> None:
    """No list is written twice."""
    from edgellm.cli.convert import WeightType
    from edgellm.core import Tier

    assert [tier.value for tier in Tier] == values("run", "--snapshot", "")
    assert [kind.value for kind in WeightType] == values("convert", "--type", "")


def test_repeatable_options_stay() -> None:
    """--stop may come again, --seed may not, by either of its names."""
    assert ["--stop"] == values("run", "--stop", "x", "--sto")
    assert "--seed" not in values("run", "--seed", "1", "--")
    assert "--max-tokens" not in values("run", "-n", "1", "--")


@pytest.mark.parametrize(
    ("words", "files"),
    [
        (["run", ""], "model"),
        (["chat", "mod"], "model"),
        (["info", ""], "model"),
        (["convert", ""], "model"),
        (["convert", "-o", ""], "file"),
        (["run", "--system-file", ""], "file"),
        (["run", "m", ""], ""),
        (["run", "m", "--system", ""], ""),
        (["run", "--", "-"], "model"),
    ],
)
def test_kinds_of_files(words: Sequence[str], files: str) -> None:
    """Folders and models where either is read, all files where any is, nothing for free text."""
    assert files == at(*words).files


def test_every_command_and_option_is_offered(cli: Any) -> None:
    """What --help lists and what Tab lists are the same."""
    import re

    for command in tree_of(app).commands:
        if command.commands:
            continue
        shown = cli(command.name, "--help").out.partition("Examples:")[0]
        listed = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+(?= )", shown.partition("Options:")[2]))
        assert listed & set(values(command.name, "--")) == set(values(command.name, "--"))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("edgellm ru", ["edgellm", "ru"]),
        ("edgellm run ", ["edgellm", "run", ""]),
        ("edgellm run 'a b' c", ["edgellm", "run", "a b", "c"]),
        ("edgellm run 'my mo", ["edgellm", "run", "my mo"]),
        ("edgellm run my\\ mo", ["edgellm", "run", "my mo"]),
        ("edgellm run my\\ ", ["edgellm", "run", "my "]),
        ("edgellm run --x=y#z", ["edgellm", "run", "--x=y#z"]),
        ("", [""]),
    ],
)
def test_lines_are_split_as_a_shell_does(line: str, words: list[str]) -> None:
    """Quotes may be open, and a blank at the end starts a new word."""
    assert words == split_line(line)


def test_asking_loads_nothing_heavy() -> None:
    """Tab must not wait for numpy, the store or an engine; asked in a process of its own."""
    code = (
        "import sys; from edgellm.cli.app import main\n"
        "for words in (['run'], ['snapshots', 'rm'], ['run', '--snapshot']):\n"
        "    assert main(['__complete', 'fresh', *words]) == 0\n"
        f"print(sorted(set({HEAVY!r}.split()) & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert b"[]\n" == done.stderr


def test_any_question_is_answered(cli: Any) -> None:
    """A script of another version, or none, gets an answer and no error."""
    for question in ([], ["words"], ["fresh"], ["line"], ["line", "edgellm run --x='"], ["other"]):
        result = cli("__complete", *question)
        assert (0, "") == (result.code, result.err), question
        assert result.out.count("\n") >= 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_scripts_are_printed(cli: Any, shell: str) -> None:
    """Plain ASCII on stdout, nothing else, and nobody's files are edited."""
    result = cli("completion", shell)
    assert (0, "") == (result.code, result.err)
    assert result.out.isascii()
    assert "__complete" in result.out


def test_unknown_shell_is_refused(cli: Any) -> None:
    """With the names of those that are known."""
    result = cli("completion", "csh")
    assert 2 == result.code
    assert "fish" in result.err


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edgellm_home: Path) -> Path:
    """Give a folder with models, and `edgellm` on PATH with one snapshot."""
    program = tmp_path / "bin" / "edgellm"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m edgellm "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    snapshot = edgellm_home / "snapshots" / "v1" / ("0" * 16) / f"{'ab' * 16}.ekv"
    snapshot.parent.mkdir(parents=True)
    snapshot.touch()
    folder = tmp_path / "place"
    (folder / "my models").mkdir(parents=True)
    for name in ("a.gguf", "B.GGUF", "note.txt", "my models/c.gguf"):
        (folder / name).touch()
    return folder


BASH = r"""
source <(edgellm completion bash)
for line in "$@"; do
    read -ra COMP_WORDS <<<"$line"
    [[ $line == *' ' ]] && COMP_WORDS+=("")
    COMP_LINE=$line COMP_POINT=${#line} COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _edgellm 2>&1
    (IFS='|'; echo "${COMPREPLY[*]}")
done
complete -p edgellm
"""
ASKED = {
    "edgellm sn": {"snapshots"},
    "edgellm run --snapshot-l": {"--snapshot-loss"},
    "edgellm run --kv-type=q8": {"q8_0"},
    "edgellm run ": {"a.gguf", "B.GGUF", "my models"},
    "edgellm run no": {"note.txt"},
    "edgellm convert ": {"a.gguf", "B.GGUF", "my models"},
    "edgellm run --system-file n": {"note.txt"},
    "edgellm snapshots rm ab": {"ab" * 16},
    "edgellm run a.gguf ": {""},
}


def test_bash_completes(place: Path) -> None:
    """A real bash with the script sourced: words, models and folders first, files, keys."""
    done = subprocess.run(
        ["bash", "--norc", "-c", BASH, "bash", *ASKED],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    *replies, registered = done.stdout.splitlines()
    assert dict(zip(ASKED, replies, strict=True)) == {
        line: reply
        for (line, expected), reply in zip(ASKED.items(), replies, strict=True)
        if set(reply.split("|")) == expected
    }
    assert "-F _edgellm edgellm" in registered
    assert "" == done.stderr


def test_bash_offers_no_name_that_becomes_something_else(place: Path) -> None:
    """A name like an option comes as a path, one of two lines not at all: readline has no way."""
    for name in ("-rf.gguf", "two\nlines.gguf", "lines.txt", "q'uote.gguf"):
        (place / name).touch()
    (place / "-folder").mkdir()
    (place / "two\nlines").mkdir()
    asked = {
        "edgellm run ": {
            *("./-rf.gguf", "./-folder", "a.gguf", "B.GGUF", "my models", "q'uote.gguf")
        },
        "edgellm run ./-r": {"./-rf.gguf"},
        "edgellm run -- -r": {"./-rf.gguf"},
        "edgellm run two": {""},
        "edgellm run line": {"lines.txt"},
    }
    done = subprocess.run(
        ["bash", "--norc", "-c", BASH, "bash", *asked],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    replies = [set(reply.split("|")) for reply in done.stdout.splitlines()[:-1]]
    assert replies == list(asked.values())
    assert "" == done.stderr


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed here")
def test_fish_completes(place: Path) -> None:
    """A real fish: words with their help, the option kept before its value, models first."""
    program = (
        "source (edgellm completion fish | psub); for l in $argv; complete -C $l; echo ==; end"
    )
    asked = ("edgellm sn", "edgellm run --kv-type=q8", "edgellm run ", "edgellm snapshots rm a")
    done = subprocess.run(
        ["fish", "-c", program, *asked],
        cwd=place,
        env={
            **os.environ,
            "XDG_CONFIG_HOME": str(place.parent),
            "XDG_DATA_HOME": str(place.parent),
        },
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    command, value, models, key, _ = done.stdout.split("==\n")
    assert command.startswith("snapshots\tSee, explain")
    assert "--kv-type=q8_0\n" == value
    assert {"a.gguf", "my models/"} <= set(models.splitlines()[:3])
    assert "note.txt" == models.splitlines()[-1]
    assert "ab" * 16 == key.strip()


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed here")
@pytest.mark.parametrize(
    ("typed", "shown"),
    [("edgellm run --kv-type=q8\t", "--kv-type=q8_0"), ("edgellm run a\t", "run a.gguf")],
)
def test_zsh_completes(place: Path, typed: str, shown: str) -> None:
    """A real zsh on a pseudo-terminal completes what is typed before Tab."""
    near, far = pty.openpty()
    environ = {**os.environ, "TERM": "dumb", "PS1": "ready> "}
    process = subprocess.Popen(
        ["zsh", "-f", "-i"],
        **dict.fromkeys(("stdin", "stdout", "stderr"), far),
        cwd=place,
        env=environ,
        start_new_session=True,
    )
    os.close(far)
    try:
        setup = (
            'autoload -U compinit; compinit -u -D; eval "$(edgellm completion zsh)"; echo do""ne\n'
        )
        os.write(near, setup.encode())
        until(near, "done\r\n")
        os.write(near, typed.encode())
        until(near, shown)
    finally:
        process.kill()
        process.wait()
        os.close(near)


def until(fd: int, text: str) -> None:
    """Read from a terminal until it shows a text."""
    seen, end_s = "", time.monotonic() + DEADLINE_S
    while text not in seen:
        ready, _, _ = select.select([fd], [], [], max(0, end_s - time.monotonic()))
        assert ready, f"no {text!r} in {seen!r}"
        seen += os.read(fd, 4096).decode("utf-8", "replace")
