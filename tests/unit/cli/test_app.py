"""The command line as a whole: help, version, errors and their exit codes."""

from __future__ import annotations

import errno
import json
from typing import TYPE_CHECKING

import pytest

from edgellm import errors
from edgellm.cli import commands, render

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any

COMMANDS = {
    (): [
        *["run", "chat", "convert", "info", "plan", "devices", "doctor", "prove"],
        *["lint-prompt", "stats", "why", "snapshots", "completion", "--version"],
        *["config", "consent", "audit", "breaker"],
    ],
    ("run",): [
        *[
            "--prompt",
            "--prompt-file",
            "--system",
            "--system-file",
            "--max-tokens",
            "--temperature",
        ],
        *["--top-k", "--top-p", "--min-p", "--repeat-penalty", "--seed", "--stop", "--ctx"],
        *["--kv-type", "--threads", "--gpu-layers", "--flash-attn", "--batch", "--chat-template"],
        *["--snapshot", "--json", "--stats", "--mode", "--prefix-file", "--tools"],
        *["--endpoint", "--endpoint-model", "--budget-usd", "--budget-tokens", "--isolation"],
        *["--on-failure", "--deadline", "--force", "--private"],
    ],
    ("chat",): ["--system", "--stats", "--mode", "--json", "--snapshot"],
    ("convert",): ["--output", "--type", "--bits", "--threads", "--force", "--dry-run", "--json"],
    ("info",): ["--json"],
    ("plan",): ["--device", "--ctx", "--kv-type", "--batch", "--gpu-layers", "--json"],
    ("devices",): ["--json"],
    ("doctor",): ["--json", "--endpoint"],
    ("prove",): ["MODEL", "--json"],
    ("lint-prompt",): ["--system", "--system-file", "--prefix-file", "--chat-template", "--json"],
    ("stats",): ["--cost", "--json"],
    ("why",): ["ID", "--json"],
    ("config",): ["get", "set", "unset", "path", "list"],
    ("config", "get"): ["SETTING", "--json"],
    ("config", "set"): ["SETTING", "VALUE", "--json"],
    ("config", "unset"): ["SETTING", "--json"],
    ("config", "path"): ["--json"],
    ("config", "list"): ["--json"],
    ("consent",): ["grant", "show", "revoke"],
    ("consent", "grant"): [
        *["--endpoint", "--endpoint-model", "--usd-day", "--days", "--app", "--yes", "--json"],
    ],
    ("consent", "show"): ["--json"],
    ("consent", "revoke"): ["URL", "--app", "--all", "--json"],
    ("audit",): ["show", "verify", "restart"],
    ("audit", "show"): ["--last", "--json"],
    ("audit", "verify"): ["--json"],
    ("audit", "restart"): ["--yes", "--json"],
    ("breaker",): ["show", "reset"],
    ("breaker", "show"): ["--json"],
    ("breaker", "reset"): ["NAME", "--json"],
    ("snapshots",): [
        *["ls", "why", "warm", "keygen", "export", "import", "check", "rm", "prune", "purge"],
    ],
    ("snapshots", "why"): [
        "--system-file",
        "--kv-type",
        "--flash-attn",
        "--chat-template",
        "--json",
    ],
    ("snapshots", "warm"): ["--system-file", "--kv-type", "--normal-priority", "--json"],
    ("snapshots", "keygen"): ["--output", "--json"],
    ("snapshots", "export"): ["--model", "--output", "--sign-key", "--lora", "--json"],
    ("snapshots", "import"): ["--trust", "--allow-unsigned", "--json"],
    ("snapshots", "prune"): ["--max", "--json"],
    ("snapshots", "ls"): ["--json"],
    ("snapshots", "check"): ["--fix", "--json"],
    ("snapshots", "rm"): ["--all", "--yes", "--json"],
    ("snapshots", "purge"): ["--yes", "--forget-key", "--json"],
}


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_names_the_flags_and_shows_an_example(cli: Any, command: Sequence[str]):
    """Every --help ends with examples of its own command."""
    result = cli(*command, "--help")
    assert (result.code, result.err) == (0, "")
    text, _, examples = result.out.partition("Examples:")
    assert " ".join(["edgellm", *command]) in examples
    missing = [name for name in COMMANDS[command] if name not in text]
    assert missing == []


@pytest.mark.parametrize(
    "command", [[], ["snapshots"], ["config"], ["consent"], ["audit"], ["breaker"]]
)
def test_bare_command_shows_its_help_on_stderr(cli: Any, command: Sequence[str]):
    """No command is a usage error that helps."""
    result = cli(*command)
    assert (result.code, result.out) == (2, "")
    assert "Examples:" in result.err


def test_version(cli: Any):
    """--version prints one line."""
    result = cli("--version")
    assert result.code == 0
    assert result.out.startswith("edgellm ")
    assert result.out.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message", "command"),
    [
        (["walk"], "No such command 'walk'", "edgellm"),
        (["run"], "Missing argument 'MODEL'", "edgellm run"),
        (["run", "m", "--no"], "No such option: --no", "edgellm run"),
        (["snapshots", "rm", "--no"], "No such option: --no", "edgellm snapshots rm"),
    ],
)
def test_usage_errors_look_like_all_others(
    cli: Any, arguments: list[str], message: str, command: Sequence[str]
):
    """One line, a blank one, and a hint that names the help of the command."""
    result = cli(*arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"error: {message}")
    assert result.err.endswith(f"\n\nhint: run `{command} --help`\n")


def all_errors(
    kind: type[errors.EdgeLLMError] = errors.EdgeLLMError,
) -> list[type[errors.EdgeLLMError]]:
    """Return a class and all below it."""
    return [kind, *(c for sub in kind.__subclasses__() for c in all_errors(sub))]


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Make `edgellm snapshots ls` fail in a chosen way."""
    from edgellm.cli import snapshots

    def fail(_: str | None) -> None:
        raise error

    monkeypatch.setattr(snapshots, "open_store", fail)


@pytest.mark.parametrize(
    "kind", [kind for kind in all_errors() if kind.__module__ == "edgellm.errors"]
)
def test_every_error_gives_its_exit_code(
    cli: Any, monkeypatch: pytest.MonkeyPatch, kind: type[errors.EdgeLLMError]
):
    """The class decides the exit code; the message is one line on stderr."""
    raising(monkeypatch, kind("it went wrong", path="x.gguf", hint="do this"))
    result = cli("snapshots", "ls")
    assert (result.code, result.out) == (kind.exit_code, "")
    assert result.err == "error: x.gguf: it went wrong\n\nhint: do this\n"


@pytest.mark.parametrize(
    ("number", "exit_code"),
    [
        (errno.ENOENT, 3),
        (errno.EISDIR, 2),
        (errno.ENOSPC, 4),
        (errno.EACCES, 2),
        (errno.EPERM, 2),
        (errno.EIO, 1),
    ],
)
def test_errors_of_the_system(
    cli: Any, monkeypatch: pytest.MonkeyPatch, number: int, exit_code: int
):
    """An OSError names its file and has an exit code by its kind."""
    raising(monkeypatch, OSError(number, "System says no", "x.gguf"))
    result = cli("snapshots", "ls")
    assert (result.code, result.err) == (exit_code, "error: x.gguf: System says no\n")


def test_error_as_a_json_line(cli: Any, monkeypatch: pytest.MonkeyPatch):
    """With --json the error is also the last line of stdout."""
    raising(monkeypatch, errors.DoesNotFit("too big", hint="buy memory"))
    result = cli("snapshots", "ls", "--json")
    assert json.loads(result.out) == {
        "type": "error",
        "code": "does_not_fit",
        "message": "too big; buy memory",
        "exit": 4,
    }


def test_usage_error_as_a_json_line(cli: Any):
    """Even what the parser refuses is a JSON line when --json stands there."""
    result = cli("run", "m", "--json", "--no")
    assert [(line["type"], line["exit"]) for line in result.lines] == [("error", 2)]


@pytest.mark.parametrize(
    ("error", "code"),
    [(KeyboardInterrupt(), 130), (MemoryError(), 4), (render.StdoutClosed(), 141)],
)
def test_ends_without_a_traceback(
    cli: Any, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
):
    """Ctrl-C, no memory and a closed pipe have exit codes of their own."""
    monkeypatch.setattr(render, "silence_stdout", lambda: None)
    raising(monkeypatch, error)
    result = cli("snapshots", "ls")
    assert result.code == code
    assert "Traceback" not in result.err


def test_missing_model_is_not_found(cli: Any, tmp_path: Path):
    """A model that is not there: exit 3."""
    assert cli("run", tmp_path / "no.gguf", "hi").code == 3
    assert cli("info", tmp_path / "no.gguf").code == 3


def test_bug_is_not_hidden(cli: Any, monkeypatch: pytest.MonkeyPatch):
    """An error that nobody planned keeps its traceback."""
    raising(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        cli("snapshots", "ls")


def test_parse_error_base_is_the_one_of_typer():
    """Every error of the parser derives from the class that is caught."""
    assert commands._PARSE_ERROR.__name__ == "ClickException"
