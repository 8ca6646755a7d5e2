"""The store beside other processes and in bad places, through the real command and a real engine.

Field cases F-PC-06, F-PC-07, F-ST-02, F-ST-03, F-ST-04 and F-ST-06.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Edgellm = Callable[..., tuple[str, str, list[str]]]

SYSTEM = "Always answer in rhyme, and mention the sea at least once. " * 12
TIME_LIMIT_S = 120
SESSION = """
import sys
from pathlib import Path
from edgellm.core import Message, Request, Sampling
from edgellm.runtime.local import open_session
from edgellm.runtime.session import SessionOptions
with open_session(Path(sys.argv[1]), SessionOptions(n_ctx=512)) as session:
    messages = (Message("system", sys.argv[2]), Message("user", "Hello"))
    print("ready", flush=True)
    sys.stdin.readline()
    done = session.generate(Request(messages, 4, sampling=Sampling(temperature=0)))
print(done.snapshot.code, done.text.encode().hex())
"""
"""Open a session, wait for a line, answer."""
BAD_LOCKS = """
import errno, fcntl, os, sys, time
def flock(fd, operation):
    if sys.argv[1] == "block":
        time.sleep(3600)
    number = getattr(errno, sys.argv[1])
    raise OSError(number, os.strerror(number))
fcntl.flock = flock
from edgellm.cli.app import main
code = main(sys.argv[2:])
sys.stdout.flush()
os._exit(code)
"""


@pytest.fixture(scope="module")
def model(tiny_models: Path) -> Path:
    """Give a model of less than a megabyte."""
    return tiny_models / "tiny-llama.gguf"


def arguments(model: Path, system: str = SYSTEM) -> list[str]:
    """Return a question to the model, whose answer is the same each time."""
    settings = ["--temperature", "0", "--max-tokens", "4", "--ctx", "512", "--json"]
    return ["run", str(model), "Hello", "--system", system, *settings]


def outcome(done: subprocess.CompletedProcess[str]) -> tuple[str, str, list[str]]:
    """Return the text, the code of the snapshot, and the warnings of a finished command."""
    assert done.returncode == 0, done.stderr
    lines: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    warned = [line["message"] for line in lines if line["type"] == "warning"]
    return lines[-1]["text"], lines[-1]["snapshot"]["code"], [w for w in warned if "snapshot" in w]


def run(command: Sequence[object], **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [str(part) for part in command],
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
        check=False,
    )


@pytest.fixture(scope="module")
def edgellm(warm_start: Any) -> Edgellm:
    """Give a function that runs `edgellm` in a process of its own, behind another if one is given."""

    def start(
        *words: str, before: Sequence[str] = (), **environ: str
    ) -> tuple[str, str, list[str]]:
        if before:
            return outcome(run([*before, sys.executable, "-m", "edgellm", *words], **environ))
        done = warm_start.run(words, cwd=Path.cwd(), timeout=TIME_LIMIT_S, env=os.environ | environ)
        streams = done.stdout.decode(), done.stderr.decode()
        return outcome(subprocess.CompletedProcess(words, done.returncode, *streams))

    return start


@pytest.fixture(scope="module")
def cold(model: Path, edgellm: Edgellm, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the answer without snapshots."""
    home = str(tmp_path_factory.mktemp("cold"))
    return edgellm(*arguments(model), "--snapshot", "off", EDGELLM_HOME=home)[0]


@pytest.mark.parametrize("n", [4, pytest.param(8, marks=pytest.mark.full)])
def test_one_process_reads_the_prompt_for_all(model: Path, cold: str, n: int, edgellm_home: Path):
    """Several sessions that are asked at once: one misses, the others wait and hit, all agree."""
    command = [sys.executable, "-c", SESSION, str(model), SYSTEM]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    sessions = [subprocess.Popen(command, text=True, **pipes) for _ in range(n)]
    for session in sessions:
        assert session.stdout is not None
        assert session.stdout.readline() == "ready\n"
    for session in sessions:
        assert session.stdin is not None
        session.stdin.write("\n")
        session.stdin.flush()
    answers = [session.communicate(timeout=TIME_LIMIT_S)[0].split() for session in sessions]
    assert sorted(code for code, _ in answers) == ["hit"] * (n - 1) + ["not_stored"]
    assert {bytes.fromhex(text).decode() for _, text in answers} == {cold}
    assert list(edgellm_home.rglob("*.lock")) == []


@pytest.mark.parametrize("n_rounds", [2, pytest.param(50, marks=pytest.mark.full)])
def test_a_file_that_is_being_written_is_not_read(
    model: Path, cold: str, tmp_path: Path, n_rounds: int
):
    """F-PC-06: two starts a moment apart give the cold answer, each time."""
    command = [sys.executable, "-m", "edgellm", *arguments(model)]
    for round_ in range(n_rounds):
        environ = os.environ | {"EDGELLM_HOME": str(tmp_path / str(round_))}
        pair = []
        for _ in range(2):
            pair.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ))
            time.sleep(0.05)
        for process in pair:
            last = json.loads(process.communicate(timeout=TIME_LIMIT_S)[0].splitlines()[-1])
            assert last["text"] == cold


def test_a_write_that_fails_leaves_nothing(
    model: Path, cold: str, edgellm_home: Path, edgellm: Edgellm
):
    """F-PC-07: under a limit on file sizes the answer is right twice, and one warning says why."""
    limited = ["bash", "-c", 'ulimit -f 100; exec "$0" "$@"']
    for _ in range(2):
        text, code, warned = edgellm(*arguments(model), before=limited)
        assert (text, code) == (cold, "not_stored")
        assert len(warned) == 1
        assert "no file of more than 102400 bytes" in warned[0]
        assert list(edgellm_home.rglob("*.ekv")) == list(edgellm_home.rglob("*.tmp")) == []
    assert edgellm(*arguments(model)) == (cold, "not_stored", [])


@pytest.mark.parametrize("problem", ["ENOLCK", "EBADF", "block"])
def test_locks_that_do_not_work_cost_no_answer(
    model: Path, cold: str, edgellm_home: Path, problem: str
):
    """F-ST-04: an error, or no answer at all, ends in the right text and nothing half written."""
    done = run([sys.executable, "-c", BAD_LOCKS, problem, *arguments(model)])
    assert outcome(done)[0] == cold
    assert list(edgellm_home.rglob("*.tmp")) == []


def test_a_killed_owner_does_not_block(
    model: Path, cold: str, edgellm_home: Path, edgellm: Edgellm
):
    """F-ST-04: the lock of a process that died in its prefill is free for the next one."""
    holder = (
        "import sys, time\nfrom pathlib import Path\nfrom edgellm.store.disk.flight import Locks\n"
        "locks = Locks(Path(sys.argv[1]))\nleases = [locks.take(name) for name in sys.argv[2:]]\n"
        "print('ready', flush=True)\ntime.sleep(600)\n"
    )
    edgellm(*arguments(model))
    (made,) = edgellm_home.rglob("*.ekv")
    shutil.rmtree(edgellm_home)
    names = [made.stem, "store", "ledger"]
    command = [sys.executable, "-c", holder, str(edgellm_home / "snapshots"), *names]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        owner.kill()
    started = time.monotonic()
    assert edgellm(*arguments(model)) == (cold, "not_stored", [])
    assert time.monotonic() - started < TIME_LIMIT_S / 2
    assert edgellm(*arguments(model)) == (cold, "hit", [])


@pytest.fixture
def open_folder(model: Path) -> Iterator[Path]:
    """Give a folder that every user can read, with the model in it."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="edgellm-open-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copy(model, folder / "model.gguf")
        (folder / "model.gguf").chmod(0o444)
        yield folder


def test_a_user_without_a_home_gets_answers(open_folder: Path, cold: str):
    """F-ST-02: nothing is kept, one warning says so of snapshots, and no folder called `~` appears.

    A folder that is named to them is used.
    """
    if os.geteuid():
        pytest.skip("becoming another user takes root")
    unset = ["env", "-C", str(open_folder), "-u", "HOME", "-u", "XDG_CACHE_HOME"]
    nobody = [
        "setpriv",
        "--reuid",
        "54321",
        "--clear-groups",
        "--",
        sys.executable,
        "-m",
        "edgellm",
    ]
    homeless = [*unset, "-u", "EDGELLM_HOME", *nobody]
    if run([*unset, *nobody[:-1], "edgellm.errors"]).returncode:
        pytest.skip("another user may not read the interpreter or the package")
    again = "import subprocess, sys; subprocess.run([sys.executable, '-c', ''], check=True)"
    if run([*unset, *nobody[:-2], "-c", again]).returncode:  # as a worker is started
        pytest.skip("another user may not start the interpreter")
    assert run([*homeless, "--version"]).returncode == 0
    assert run([*homeless, "info"]).returncode == 0
    question = arguments(open_folder / "model.gguf")
    text, code, warned = outcome(run([*homeless, *question]))
    assert (text, code, len(warned)) == (cold, "off", 1)
    assert "no home folder" in warned[0]
    assert [path.name for path in open_folder.iterdir()] == ["model.gguf"]
    home = open_folder / "home"
    home.mkdir()
    home.chmod(0o777)
    done = run([*unset, *nobody, *question], EDGELLM_HOME=str(home))
    assert outcome(done) == (cold, "not_stored", [])
    assert len(list(home.rglob("*.ekv"))) == 1


def test_a_folder_that_cannot_be_written_is_read(
    model: Path, cold: str, edgellm_home: Path, edgellm: Edgellm
):
    """F-ST-03: mode 500 and a read-only mount: hits, one warning, and nothing is written anywhere."""
    edgellm(*arguments(model))
    before = _state(edgellm_home)
    powerless = []
    if os.geteuid() == 0:
        powerless = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all", "--"]
    snapshots = edgellm_home / "snapshots"
    folders = [snapshots, *(path for path in snapshots.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o500)
    try:
        _reads_and_keeps_nothing(edgellm, model, cold, powerless)
    finally:
        for folder in folders:
            folder.chmod(0o700)
    assert _state(edgellm_home) == before


def test_a_read_only_mount_is_read(model: Path, cold: str, edgellm_home: Path, edgellm: Edgellm):
    """F-ST-03: the same where the file system itself is read-only."""
    edgellm(*arguments(model))
    before = _state(edgellm_home)
    bind = f"mount --bind {edgellm_home} {edgellm_home}"
    remount = f"mount -o remount,ro,bind {edgellm_home}"
    shell = ["unshare", "-m", "sh", "-c", f'{bind} && {remount} && exec "$0" "$@"']
    if run([*shell, "true"]).returncode:
        pytest.skip("a mount of one's own takes root and a right that containers lack")
    _reads_and_keeps_nothing(edgellm, model, cold, shell)
    assert _state(edgellm_home) == before


def _reads_and_keeps_nothing(
    edgellm: Edgellm, model: Path, cold: str, before: Sequence[str]
) -> None:
    text, code, warned = edgellm(*arguments(model), before=before)
    assert (text, code, len(warned)) == (cold, "hit", 1)
    assert "cannot be written" in warned[0]
    _, code, warned = edgellm(*arguments(model, SYSTEM + "And the moon."), before=before)
    assert (code, len(warned)) == ("not_stored", 1)
    assert "cannot be written" in warned[0]


def _state(folder: Path) -> list[tuple[str, int]]:
    """Return every name below the snapshots with its time."""
    paths = sorted((folder / "snapshots").rglob("*"))
    return [(str(path), path.stat().st_mtime_ns) for path in paths]


def test_snapshots_stay_below_their_limit(model: Path, edgellm_home: Path, edgellm: Edgellm):
    """F-ST-06: with room for three of them, the ones used least make room for the others."""
    first = edgellm(*arguments(model), EDGELLM_SNAPSHOTS_MAX="1200kB")
    assert first[1] == "not_stored"
    for i in range(3):
        words = arguments(model, f"{i}{SYSTEM}")
        assert edgellm(*words, EDGELLM_SNAPSHOTS_MAX="1200kB")[1:] == ("not_stored", [])
        assert edgellm(*arguments(model), EDGELLM_SNAPSHOTS_MAX="1200kB")[1] == "hit"
        files = [path for path in edgellm_home.joinpath("snapshots").rglob("*") if path.is_file()]
        assert sum(path.stat().st_size for path in files) <= 1_200_000
    _, code, warned = edgellm(*arguments(model, "x" + SYSTEM), EDGELLM_SNAPSHOTS_MAX="10kB")
    assert code == "not_stored"
    assert len(warned) == 1
    assert "EDGELLM_SNAPSHOTS_MAX" in warned[0]
