"""`edgellm run`: sources of the prompt, what reaches the session, what is printed, exit codes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from edgellm.core import Message, Mode, Tier, event_from_wire, event_to_wire

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any


def test_answer_streams_to_stdout_and_ends_with_a_newline(
    cli: Any, fake_model: Callable[..., Path]
):
    """Only the answer is on stdout, and nothing at all on stderr."""
    result = cli("run", fake_model(), "hi")
    assert (result.code, result.out, result.err) == (0, "Hello there\n", "")
    assert cli.sessions[0].closed


def test_answer_that_ends_its_own_line_gets_no_second_newline(
    cli: Any, fake_model: Callable[..., Path]
):
    """A newline is added only where one is missing."""
    assert cli("run", fake_model(pieces=["a\n"]), "hi").out == "a\n"


@pytest.mark.parametrize("flag", ["-p", "--prompt"])
def test_prompt_by_flag(cli: Any, fake_model: Callable[..., Path], flag: str):
    """-p and --prompt give the prompt."""
    cli("run", fake_model(), flag, "hi")
    assert cli.sessions[0].requests[0].messages == (Message("user", "hi"),)


def test_prompt_from_stdin_loses_its_final_line_end_only(cli: Any, fake_model: Callable[..., Path]):
    """Piped text is the prompt when nothing else is."""
    cli("run", fake_model(), stdin=b"two\nlines\n\n")
    assert cli.sessions[0].requests[0].messages == (Message("user", "two\nlines\n"),)


def test_prompt_file_with_a_byte_order_mark(
    cli: Any, fake_model: Callable[..., Path], tmp_path: Path
):
    """A UTF-8 byte order mark is no part of the prompt."""
    file = tmp_path / "prompt.txt"
    file.write_bytes(b"\xef\xbb\xbfh\xc3\xa9\r\n")
    cli("run", fake_model(), "--prompt-file", file)
    assert cli.sessions[0].requests[0].messages == (Message("user", "hé"),)


def test_prompt_file_dash_is_stdin(cli: Any, fake_model: Callable[..., Path]):
    """`--prompt-file -` reads stdin."""
    cli("run", fake_model(), "--prompt-file", "-", stdin=b"hi")
    assert cli.sessions[0].requests[0].messages == (Message("user", "hi"),)


def test_stdin_is_left_alone_when_there_is_a_prompt(cli: Any, fake_model: Callable[..., Path]):
    """A command in a `while read` loop does not eat the loop's input."""
    import sys

    cli("run", fake_model(), "hi", stdin=b"next\n")
    assert sys.stdin.read() == "next\n"


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["hi", "-p", "ho"], "PROMPT and --prompt"),
        (["hi", "--prompt-file", "x"], "PROMPT and --prompt-file"),
        (["-p", "hi", "--prompt-file", "x"], "--prompt and --prompt-file"),
    ],
)
def test_two_prompts_are_refused(
    cli: Any, fake_model: Callable[..., Path], arguments: list[str], names: str
):
    """Of the sources only one may be given, and the error names both."""
    result = cli("run", fake_model(), *arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"error: two prompts: {names}\n\nhint: ")
    assert cli.sessions == []


@pytest.mark.parametrize("stdin", [b"", b" \n"])
def test_empty_prompt_is_refused(cli: Any, fake_model: Callable[..., Path], stdin: bytes):
    """Nothing on stdin is a usage error, not an endless wait or an empty request."""
    result = cli("run", fake_model(), stdin=stdin)
    assert result.code == 2
    assert "the prompt from stdin is empty" in result.err


def test_text_that_is_not_utf8_names_the_byte_offset(
    cli: Any, fake_model: Callable[..., Path], tmp_path: Path
):
    """The offset counts from the start of the file, byte order mark included."""
    file = tmp_path / "prompt.txt"
    file.write_bytes(b"\xef\xbb\xbfabc\xffd")
    result = cli("run", fake_model(), "--prompt-file", file)
    assert result.code == 2
    assert "not UTF-8 at byte offset 6 (byte 0xff)" in result.err


def test_utf16_is_recognised(cli: Any, fake_model: Callable[..., Path], tmp_path: Path):
    """A UTF-16 file is called by its name."""
    file = tmp_path / "prompt.txt"
    file.write_bytes("hi".encode("utf-16"))
    assert "this looks like UTF-16" in cli("run", fake_model(), "--prompt-file", file).err


def test_text_over_the_cap_is_refused(cli: Any, fake_model: Callable[..., Path], tmp_path: Path):
    """More than 16 MiB of text is refused and the cap is said."""
    file = tmp_path / "prompt.txt"
    file.write_bytes(b"a" * ((16 << 20) + 1))
    result = cli("run", fake_model(), "--system-file", file, "hi")
    assert result.code == 2
    assert "more than 16777216 bytes" in result.err


def test_argument_with_bytes_that_are_not_utf8(cli: Any, fake_model: Callable[..., Path]):
    """A lone surrogate, which is how Python shows a bad byte of an argument, is an error."""
    result = cli("run", fake_model(), "a\udcffb")
    assert result.code == 2
    assert "PROMPT: not UTF-8 at character 1" in result.err


def test_flags_reach_the_session(cli: Any, fake_model: Callable[..., Path], tmp_path: Path):
    """Every flag arrives where it belongs."""
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages }}\n", encoding="utf-8")
    arguments = [
        "--system",
        "S",
        "-n",
        "5",
        "--temperature",
        "0",
        "--top-k",
        "1",
        "--top-p",
        "0.5",
        "--min-p",
        "0.1",
        "--seed",
        "7",
        "--repeat-penalty",
        "1.5",
        "--stop",
        "A",
        "--stop",
        "B",
        "--ctx",
        "2048",
        "--kv-type",
        "q8_0",
        "--threads",
        "3",
        "--gpu-layers",
        "4",
        "--flash-attn",
        "on",
        "--batch",
        "64",
        "--snapshot",
        "off",
        "--mode",
        "offline",
    ]
    assert cli("run", fake_model(), "hi", *arguments, "--chat-template", template).code == 0
    session = cli.sessions[0]
    request, options = session.requests[0], session.options
    assert request.messages == (Message("system", "S"), Message("user", "hi"))
    assert (request.max_tokens, request.stop) == (5, ("A", "B"))
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0, 1, 0.5)
    assert (sampling.min_p, sampling.repeat_penalty, sampling.seed) == (0.1, 1.5, 7)
    engine = options.engine
    assert (engine.n_batch, engine.n_threads, engine.n_gpu_layers) == (64, 3, 4)
    assert (engine.kv_type, engine.flash_attention) == ("q8_0", "on")
    assert (options.n_ctx, options.snapshot, options.mode) == (2048, Tier.OFF, Mode.OFFLINE)
    assert options.chat_template == "{{ messages }}"


def test_defaults_reach_the_session(cli: Any, fake_model: Callable[..., Path]):
    """Without flags: exact snapshots, f16, everything else to be chosen, mode private."""
    cli("run", fake_model(), "hi")
    options = cli.sessions[0].options
    assert (options.snapshot, options.mode, options.n_ctx) == (Tier.AUTO, Mode.PRIVATE, None)
    assert (options.engine.kv_type, options.engine.n_gpu_layers) == ("f16", None)
    assert cli.sessions[0].requests[0].max_tokens is None


@pytest.mark.parametrize(
    "arguments",
    [
        ["--gpu-layers", "many"],
        ["--gpu-layers", "-1"],
        ["--gpu-layers", "99999999999999"],
        ["--temperature", "nan"],
        ["--top-p", "2"],
        ["--seed", "-1"],
        ["-n", "0"],
        ["--ctx", "0"],
        ["--ctx", "99999999999"],
        ["--kv-type", "f17"],
        ["--flash-attn", "maybe"],
        ["--snapshot", "some"],
        ["--mode", "public"],
        ["--stop", ""],
        ["--no-such-flag"],
        ["--system", "a", "--system-file", "b"],
    ],
)
def test_bad_flags_are_usage_errors(
    cli: Any, fake_model: Callable[..., Path], arguments: list[str]
):
    """A wrong value is told before a model is opened: exit 2, one line, no traceback."""
    result = cli("run", fake_model(), "hi", *arguments)
    assert (result.code, result.out, cli.sessions) == (2, "", [])
    assert re.match(r"error: [^\n]+\n", result.err)
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("value", "mode"),
    [
        ("1", "offline"),
        ("true", "offline"),
        ("0", "private"),
        ("False", "private"),
        ("", "private"),
    ],
)
def test_offline_variable(
    cli: Any,
    fake_model: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    value: str,
    mode: str,
):
    """EDGELLM_OFFLINE=1 makes the mode offline."""
    monkeypatch.setenv("EDGELLM_OFFLINE", value)
    cli("run", fake_model(), "hi")
    assert cli.sessions[0].options.mode.value == mode


def test_offline_variable_beats_the_flag(
    cli: Any, fake_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    """A machine that was set offline stays so, whatever a command line says."""
    monkeypatch.setenv("EDGELLM_OFFLINE", "1")
    cli("run", fake_model(), "hi", "--mode", "prefer-cloud")
    assert cli.sessions[0].options.mode is Mode.OFFLINE


def test_offline_variable_with_another_value_is_refused(
    cli: Any, fake_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    """A value that could mean either is an error that names the variable."""
    monkeypatch.setenv("EDGELLM_OFFLINE", "yes")
    result = cli("run", fake_model(), "hi")
    assert (result.code, cli.sessions) == (2, [])
    assert "EDGELLM_OFFLINE='yes'" in result.err


def test_json_lines_are_events(cli: Any, fake_model: Callable[..., Path]):
    """Each line parses back to the event it shows; the last one is `done`."""
    result = cli("run", fake_model(pieces=["é", "\u2028!"], warn="careful"), "hi", "--json")
    events = [event_from_wire(line) for line in result.lines]
    assert [event.type for event in events] == ["warning", "token", "token", "done"]
    assert [event_to_wire(event) for event in events] == result.lines
    assert (events[-1].text, result.err) == ("é\u2028!", "")


def test_warnings_go_to_stderr(cli: Any, fake_model: Callable[..., Path]):
    """A warning is one line on stderr, whatever it holds."""
    result = cli("run", fake_model(warn="two\nlines"), "hi")
    assert (result.out, result.err) == ("Hello there\n", "warning: two lines\n")


def test_stats_go_to_stderr(cli: Any, fake_model: Callable[..., Path]):
    """The figures stand on stderr, so that stdout is the answer alone."""
    result = cli("run", fake_model(), "hi", "--stats")
    assert result.out == "Hello there\n"
    for part in ("10 tokens, 7 reused", "34 ms", "from start", "56.0 tokens/s", "exact, hit, 3fa9"):
        assert part in result.err
    for part in ("fake 1.0", "ctx 4096", "flash attention off", "numpy", "99"):
        assert part in result.err


def test_full_context_is_said(cli: Any, fake_model: Callable[..., Path]):
    """An answer cut by the context warns; one cut by -n was asked for and does not."""
    assert "the context is full" in cli("run", fake_model(finish="length"), "hi").err
    assert cli("run", fake_model(finish="length"), "hi", "-n", "2").err == ""


def test_failure_in_the_stream_keeps_the_text_and_gives_its_exit_code(
    cli: Any, fake_model: Callable[..., Path]
):
    """What was answered stays, the error goes to stderr, the exit code is the failure's."""
    result = cli("run", fake_model(failure=4), "hi")
    assert (result.code, result.out, result.err) == (4, "Hello there\n", "error: it broke\n")


def test_failure_as_json_is_the_last_line(cli: Any, fake_model: Callable[..., Path]) -> None:
    """With --json the failure is the last line of stdout, and stderr says it too."""
    result = cli("run", fake_model(failure=4), "hi", "--json")
    assert (result.code, result.err) == (4, "error: it broke\n")
    assert [line["type"] for line in result.lines] == ["token", "token", "error"]


def test_error_of_the_engine_has_a_hint_and_an_exit_code(cli: Any, fake_model: Callable[..., Path]):
    """An error is one line, a blank one, and what to do."""
    result = cli("run", fake_model(**{"raise": "line one\nline two"}), "hi")
    assert result.code == 1
    assert result.err == "error: line one line two\n\nhint: try again\n"
    assert cli.sessions[0].closed


def test_without_an_engine_the_install_command_is_named(cli: Any, fake_model: Callable[..., Path]):
    """No engine: exit 1 and the command that installs one."""
    result = cli("run", fake_model(open="unavailable"), "hi")
    assert result.code == 1
    assert "pip install 'edgellm[llama]'" in result.err
