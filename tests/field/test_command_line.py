"""The command line's cases of the field log over a real engine: pipes, code pages, ends, threads."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import edgellm
from edgellm.core import Sampling, Token

Run = Callable[..., subprocess.CompletedProcess[str]]

EDGELLM = (sys.executable, "-m", "edgellm")
DEADLINE_S = 60.0
GREEDY = ("--temperature", "0", "--snapshot", "off", "--threads", "1")
LONG = ("-n", "3000", "--ctx", "4096", *GREEDY, "--repeat-penalty", "0.01")  # says one thing
CODE_PAGES = {
    "cp949": {"PYTHONIOENCODING": "cp949:strict"},
    "C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}


@pytest.fixture
def control(field_samples: Path) -> Path:
    """The model of random weights, one token a byte."""
    return field_samples / "gguf" / "00_ok_control.gguf"


def run(*words: object, **settings: Any) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end, both streams caught."""
    return subprocess.run(
        [*EDGELLM, *map(str, words)],
        check=False,
        timeout=DEADLINE_S,
        **{"capture_output": True, **settings},
    )


def on_a_screen(*words: object, **environ: str) -> bytes:
    """Run a command on a terminal and give what it shows."""
    screen, far = pty.openpty()
    process = subprocess.Popen(
        [*EDGELLM, *map(str, words)],
        stdin=subprocess.DEVNULL,
        stdout=far,
        stderr=far,
        env={**os.environ, **environ},
    )
    os.close(far)
    shown = b"".join(iter(lambda: _read(screen), b""))
    os.close(screen)
    assert process.wait(DEADLINE_S) == 0, shown
    return shown


def _read(screen: int) -> bytes:
    try:
        return os.read(screen, 4096)
    except OSError:  # how Linux says that the other side is gone
        return b""


@pytest.mark.parametrize("flags", [(), ("--json",), ("--stats",)], ids=["text", "json", "stats"])
def test_a_reader_that_has_enough_ends_it(control: Path, flags: tuple[str, ...]) -> None:
    """F-CL-01, F-CL-05: text comes as it is made, and `head -c 20` ends a long answer at once.

    Twenty bytes arrive while the answer is being made: each token is flushed. Exit 141, no word.
    """
    process = subprocess.Popen(
        [*EDGELLM, "run", str(control), "-p", "x", *LONG, *flags],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert 20 == len(process.stdout.read(20))
    assert process.poll() is None
    process.stdout.close()
    err = process.stderr.read().decode()
    process.stderr.close()
    assert 141 == process.wait(DEADLINE_S)
    assert all(line.startswith("warning: ") for line in err.splitlines()), err


@pytest.mark.parametrize(
    "words",
    ["info", "info {} --json", "snapshots check", "snapshots ls --help", "completion zsh"],
)
def test_nobody_reads(control: Path, words: str) -> None:
    """F-CL-01: what prints at once into a closed pipe ends the same way, each time."""
    for _ in range(1 + words.endswith("--json")):
        reader, writer = os.pipe()
        os.close(reader)
        done = run(
            *words.format(control).split(),
            capture_output=False,
            stdout=writer,
            stderr=subprocess.PIPE,
        )
        os.close(writer)
        assert (141, b"") == (done.returncode, done.stderr)


def test_redirected_output_is_the_text_alone(
    control: Path, field_samples: Path, run_edgellm: Run
) -> None:
    """F-CL-02: into files, with colour asked for: the answer in one, plain lines in the other."""
    prompts = field_samples / "prompts"
    environ = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    for name in ("06_bidi_override.txt", "09_nul_and_controls.txt"):
        asked = ("run", control, "--prompt-file", prompts / name, "-n", "30", *GREEDY)
        done = run(*asked, "--stats", env=environ)
        last = json.loads(run_edgellm(*asked, "--json").stdout.splitlines()[-1])
        assert (0, f"{last['text']}\n") == (done.returncode, done.stdout.decode())
        assert b"\x1b" not in done.stderr
        assert b"\r" not in done.stderr


def test_redirected_progress_is_a_few_plain_lines(field_samples: Path, tmp_path: Path) -> None:
    """F-CL-02: `convert 2>e.txt`: no return, no escape, and not a line for each step."""
    source = field_samples / "hf" / "00_ok_control"
    done = run("convert", source, "-o", tmp_path / "m.gguf", "--type", "f32")
    assert 0 == done.returncode, done.stderr
    assert 1 == done.stdout.count(b"\n")
    assert not set(b"\r\x1b") & set(done.stdout + done.stderr)
    assert done.stderr.count(b"converting") <= 10


def test_a_terminal_gets_no_control_characters(control: Path) -> None:
    """F-CL-02: what is in the file of an answer but would steer a terminal, is marked there."""
    asked = ("run", control, "d", "-n", "200", "--ctx", "512", *GREEDY)
    piped = run(*asked).stdout
    steering = {*range(0x20), 0x7F} - set(b"\n\t\r")
    assert steering & set(piped), "the control model writes control characters"
    shown = on_a_screen(*asked, NO_COLOR="1", TERM="xterm")
    assert not steering & set(shown)


@pytest.mark.parametrize("page", CODE_PAGES)
def test_code_pages(control: Path, field_samples: Path, tmp_path: Path, page: str) -> None:
    """F-CL-03: the same bytes of UTF-8 as ever; a key and a name that are not UTF-8 are told."""
    environ = {**os.environ, **CODE_PAGES[page]}
    asked = ("run", control, "안녕 👋", "-n", "20", *GREEDY)
    plain, paged = run(*asked), run(*asked, env=environ)
    assert (0, plain.stdout, plain.stderr) == (paged.returncode, paged.stdout, paged.stderr)
    odd = field_samples / "gguf" / "38_key_bad_utf8.gguf"
    for words in (("info", odd), ("run", odd, "x")):
        done = run(*words, env=environ)
        assert done.returncode in (0, 2)
        assert b"Traceback" not in done.stderr
        assert done.stderr.isascii()
    bad_name = os.path.join(os.fsencode(tmp_path), b"no\xff.gguf")  # noqa: PTH118  # bytes
    done = subprocess.run(
        [*EDGELLM, "run", bad_name, "hi"], env=environ, capture_output=True, check=False
    )
    assert 3 == done.returncode
    assert rb"no\xff.gguf: there is no such file" in done.stderr


@pytest.fixture(scope="module")
def model(field_samples: Path) -> Iterator[Any]:
    """The control model in this process."""
    path = field_samples / "gguf" / "00_ok_control.gguf"
    with edgellm.load(path, n_ctx=1024, n_threads=1, snapshot="off", chat_template=TEMPLATE) as llm:
        yield llm


TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
GREEDILY = Sampling(temperature=0)
PAIRS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "cut": {"max_tokens": 3},
    "stop": {},
    "stops": {},
    "seeded": {"sampling": Sampling(temperature=1.3, seed=11)},
    "top-k": {"sampling": Sampling(seed=5, top_k=3)},
    "top-p": {"sampling": Sampling(seed=5, top_p=0.3)},
    "min-p": {"sampling": Sampling(seed=5, min_p=0.4)},
    "penalty": {"sampling": Sampling(temperature=0, repeat_penalty=1.5)},
}


@pytest.mark.parametrize("name", PAIRS)
def test_streamed_or_not_is_one_text(model: Any, name: str) -> None:
    """F-CL-04: there is one way to make an answer; streamed pieces joined are the whole text.

    The command line only streams, so it needs no `--no-stream`; the library has both.
    """
    middle = model.generate("x", max_tokens=40, sampling=GREEDILY).text[10:13]
    options = {"max_tokens": 40, "sampling": GREEDILY, **PAIRS[name]}
    if name == "stop":
        options["stop"] = middle  # a text that does come
    elif name == "stops":
        options["stop"] = ("never written here", middle)
    whole = model.generate("x", **options)
    events = list(model.stream("x", **options))
    pieces = "".join(event.text for event in events if isinstance(event, Token))
    assert whole.text == pieces == events[-1].text != ""
    assert whole.finish_reason == events[-1].finish_reason
    assert middle not in whole.text or not name.startswith("stop")


def test_dashes_are_text(control: Path, field_samples: Path, run_edgellm: Run) -> None:
    """F-CL-04: a prompt that looks like a flag is a prompt, behind `--`, by `=` and from a file."""
    asked = ("-n", "4", *GREEDY)
    file = field_samples / "prompts" / "21_looks_like_flag.txt"
    text = file.read_text(encoding="utf-8").removesuffix("\n")
    answers = {
        run_edgellm("run", control, *asked, *words).stdout
        for words in (["--", text], [f"--prompt={text}"], ["--prompt-file", file])
    }
    assert 1 == len(answers)
    assert "Usage" not in answers.pop()


def test_a_users_own_number_of_threads_wins(control: Path) -> None:
    """F-MM-09: pinned to one CPU it starts one thread and says so; `--threads 3` starts three."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        own, named, told = (
            run("run", control, "x", "-n", "1", *GREEDY, "--stats"),
            run("run", control, "x", "-n", "1", *GREEDY, "--stats", "--threads", "3"),
            json.loads(run("info", "--json").stdout),
        )
    finally:
        os.sched_setaffinity(0, before)
    assert b"threads 1," in own.stderr
    assert b"threads 3," in named.stderr
    assert {"n_threads": 1, "n_cpus": 1} == {k: told["threads"][k] for k in ("n_threads", "n_cpus")}


@pytest.mark.parametrize(
    "folder", ["Željko 한글", "a  b & c", "line\nend", "long/" * 60], ids=ascii
)
def test_any_path_opens(control: Path, tmp_path: Path, run_edgellm: Run, folder: str) -> None:
    """F-LD-07: letters, blanks, a line end, over 260 characters: it opens, and is named whole."""
    path = tmp_path / folder / "m.gguf"
    path.parent.mkdir(parents=True)
    path.symlink_to(control)
    assert 0 == run_edgellm("run", path, "x", "-n", "2", *GREEDY).returncode
    gone = path.with_name("gone.gguf")
    missing = run_edgellm("info", gone)
    assert 3 == missing.returncode
    assert f"error: {gone}: ".replace("line\n", "line\\n") in missing.stderr


ENDINGS = {
    "left open": (0, ""),
    "closed twice": (0, "m.close(); m.close()"),
    "with": (0, "with m: pass"),
    "a stream left": (0, "next(m.stream('y', max_tokens=50))"),
    "sys.exit": (7, "sys.exit(7)"),
    "sys.exit in a thread": (
        0,
        "t = threading.Thread(target=sys.exit, args=(3,)); t.start(); t.join()",
    ),
    "an answer in a thread": (
        0,
        "t = threading.Thread(target=m.generate, args=('y',), kwargs={'max_tokens': 3})\nt.start()",
    ),
    "an answer in a daemon": (
        0,
        "t = threading.Thread(target=m.generate, args=('y',), kwargs={'max_tokens': 90}, daemon=True)\nt.start()",
    ),
    "fork": (0, "p = os.fork()\nif p == 0: sys.exit(0)\nassert os.waitpid(p, 0)[1] == 0"),
    "fork and close": (
        0,
        "p = os.fork()\nif p == 0:\n    m.close(); sys.exit(0)\nassert os.waitpid(p, 0)[1] == 0",
    ),
}
PROGRAM = """
import os, sys, threading
import edgellm
m = edgellm.load(sys.argv[1], n_threads=1, snapshot="off", chat_template="{{ messages[0].content }}")
m.generate("x", max_tokens=2)
"""


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_end_of_a_program_is_silent(control: Path, ending: str) -> None:
    """F-PK-04: whatever way it ends, stderr is empty and the exit code is the program's own."""
    code, last = ENDINGS[ending]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + last, control],
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (code, b"", b"") == (done.returncode, done.stdout, done.stderr)


def test_an_exception_shows_itself_alone(control: Path) -> None:
    """F-PK-04: the program's own traceback, and nothing of ours behind it."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + "raise ZeroDivisionError", control],
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert 1 == done.returncode
    assert done.stderr.endswith(b"ZeroDivisionError\n")
    assert 1 == done.stderr.count(b"Traceback")


def test_pieces_come_one_by_one(control: Path) -> None:
    """F-CL-05: a pipe sees the answer grow: many reads, not one at its end."""
    process = subprocess.Popen(
        [*EDGELLM, "run", str(control), "x", *LONG, "-n", "1000"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
    )
    reads = list(iter(lambda: process.stdout.read(4096), b""))
    process.stdout.close()
    assert 0 == process.wait(DEADLINE_S)
    assert len(reads) > 30
