"""What the store leaves on the disk, through the real command: no text, closed modes, and no trust.

The prompt is searched for in every file below EDGELLM_HOME, eight bytes at a time.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import resource
import stat
import subprocess
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edgellm.cli.app import main
from edgellm.store.file.read import read_snapshot
from edgellm.store.sealed.chunks import HEADER
from edgellm.store.sealed.envelope import is_encrypted

if TYPE_CHECKING:
    from collections.abc import Callable

WINDOW = 8
TIME_LIMIT_S = 60
LLAMA = "tiny-llama.gguf"
SYSTEM = (
    "Quince jelly recipe no. forty-two belongs to Oswald Fitzgibbon of Upper Wexcombe; nobody may "
    "copy it. Vexing zephyrs blow past his brick kiln, and six hazy juggernauts mop up the quarry. "
) * 3
QUESTION = "Whose jackdaw swallowed the Pemberton sapphire yesterday?"
TURNS = ("Mention Grizelda's lockbox 7731-KX twice.", "Then forget Hortensia Blythe-Warmsley.")
DOCUMENT = "Wexcombe parish register, folio nineteen: Ottoline Drax paid 3 guineas 14 pence for quicklime. "
TEXTS = (SYSTEM, QUESTION, *TURNS, DOCUMENT * 4)


class Machine:
    """A home of its own, and the command that works in it."""

    def __init__(self, home: Path, model: Path, key: Path | None, warm_start: Any = None) -> None:
        self.home, self.model, self.key, self._warm_start = home, model, key, warm_start
        self.umask = 0o022
        self.environ: dict[str, str] = {}

    def call(
        self, *arguments: str, stdin: bytes = b"", memory_bytes: int = resource.RLIM_INFINITY
    ) -> subprocess.CompletedProcess[bytes]:
        """Run `edgellm` to its end, from its start where this machine has no other way."""
        environ = {**os.environ, "EDGELLM_HOME": str(self.home), "EDGELLM_HISTORY": "off"}
        environ |= self.environ
        if self.key is not None:
            environ["EDGELLM_SNAPSHOT_KEY_FILE"] = str(self.key)
        if self._warm_start is None:
            return subprocess.run(
                [sys.executable, "-m", "edgellm", *arguments],
                env=environ,
                capture_output=True,
                timeout=TIME_LIMIT_S,
                check=False,
            )
        done: subprocess.CompletedProcess[bytes] = self._warm_start.run(
            arguments,
            cwd=Path.cwd(),
            timeout=TIME_LIMIT_S,
            stdin=stdin,
            env=environ,
            memory_bytes=memory_bytes,
            umask=self.umask,
        )
        return done

    def arguments(self) -> list[str]:
        """Return the arguments that answer the question."""
        return [
            *["run", str(self.model), QUESTION, "--system", SYSTEM, "--json", "-n", "8"],
            *["--snapshot", "exact", "--temperature", "0", "--threads", "1"],
        ]

    def answer(self, **limits: int) -> dict[str, Any]:
        """Answer the question in a process of its own and return the last event."""
        done = self.call(*self.arguments(), **limits)
        assert done.returncode == 0, done.stderr
        last: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return last

    def chat(self, *more: str) -> None:
        """Chat for two turns."""
        done = self.call(
            *["chat", str(self.model), "--system", SYSTEM, "--json", "--snapshot", "exact"],
            *["-n", "8", "--temperature", "0", "--threads", "1", *more],
            stdin="\n".join(TURNS).encode(),
        )
        assert done.returncode == 0, done.stderr

    def warm(self) -> None:
        """Make the snapshot of a document ahead of time, and ask why another one is not there."""
        document = self.home.with_name("document.txt")
        document.write_text(DOCUMENT * 4)
        given = [
            *[str(self.model), "--system", SYSTEM, "--prefix-file", str(document)],
            *["--snapshot", "exact"],
        ]
        for command in ("warm", "why"):
            done = self.call("snapshots", command, *given, "--threads", "1", "--json")
            assert done.returncode == 0, done.stderr

    def files(self) -> list[Path]:
        """Return every file below the home."""
        return [path for path in self.home.rglob("*") if path.is_file()]

    def snapshot(self) -> Path:
        """Return the one snapshot there is."""
        (found,) = self.home.rglob("*.ekv")
        return found


@pytest.fixture(params=["plain", "encrypted"])
def machine(request, tmp_path: Path, tiny_models: Path, warm_start: Any) -> Machine:
    """Make a machine, with a key in a file or without one."""
    key = None
    if request.param == "encrypted":
        key = tmp_path / "key"
        key.write_bytes(os.urandom(32))
        key.chmod(0o600)
    return Machine(tmp_path / "home", tiny_models / LLAMA, key, warm_start)


@pytest.fixture
def here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Machine], dict[str, Any]]:
    """Answer the question in this process, where no start is paid."""

    def answer(machine: Machine) -> dict[str, Any]:
        monkeypatch.setenv("EDGELLM_HOME", str(machine.home))
        if machine.key is not None:
            monkeypatch.setenv("EDGELLM_SNAPSHOT_KEY_FILE", str(machine.key))
        capsys.readouterr()
        code = main(machine.arguments())
        out, err = capsys.readouterr()
        assert code == 0, err
        last: dict[str, Any] = json.loads(out.splitlines()[-1])
        return last

    return answer


def windows(texts: tuple[str, ...]) -> np.ndarray:
    """Return every eight bytes that follow each other in the texts, sorted."""
    every = {
        text.encode()[at : at + WINDOW] for text in texts for at in range(len(text) - WINDOW + 1)
    }
    return np.sort(np.frombuffer(b"".join(every), "<u8"))


def leaks(content: bytes, wanted: np.ndarray) -> list[bytes]:
    """Return which of the wanted eight bytes stand anywhere in the content."""
    found: set[bytes] = set()
    for shift in range(WINDOW):
        usable = (len(content) - shift) // WINDOW * WINDOW
        if usable > 0:
            words = np.frombuffer(content[shift : shift + usable], "<u8")
            found |= {word.tobytes() for word in words[np.isin(words, wanted)]}
    return sorted(found)


def chi_square(content: bytes) -> float:
    """Return how far the counts of the 256 values are from equal; 255 is expected of noise."""
    counts = np.bincount(np.frombuffer(content, np.uint8), minlength=256)
    return float(((counts - len(content) / 256) ** 2 / (len(content) / 256)).sum())


def test_the_search_finds_what_is_there() -> None:
    """At any offset, and nothing else."""
    wanted = windows(TEXTS)
    for offset in range(WINDOW):
        assert leaks(bytes(offset) + QUESTION[5:20].encode() + b"\0", wanted)
    assert not leaks(os.urandom(1 << 16), wanted)


def test_no_text_reaches_the_disk_and_purge_leaves_nothing(machine: Machine) -> None:
    """No eight bytes of a prompt in a file or a name, all closed under any umask; then no file at all."""
    machine.umask = 0
    first = machine.answer()
    assert first["snapshot"]["reason"].startswith("miss")
    machine.chat("--snapshot-turns")
    machine.warm()
    assert len(list(machine.home.rglob("*.ekv"))) >= 3  # system, a turn, the document
    assert list(machine.home.rglob("*.ekt"))  # a turn's text
    files = machine.files()
    assert any(path.suffix == ".ekv" for path in files)
    wanted = windows(TEXTS)
    for path in files:
        assert leaks(path.read_bytes(), wanted) == [], path
        assert leaks(str(path.relative_to(machine.home)).encode(), wanted) == []
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    for folder in (machine.home, *(p for p in machine.home.rglob("*") if p.is_dir())):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder
    for path in machine.home.rglob("*.ekv"):
        content = path.read_bytes()
        assert is_encrypted(content) == (machine.key is not None)
        if machine.key is not None:
            assert 155 < chi_square(content[HEADER.size :]) < 380
    n_files = sum(1 for path in (machine.home / "snapshots").rglob("*") if path.is_file())
    done = machine.call("snapshots", "purge", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["n_files"], said["left"]) == (n_files, [])
    assert not (machine.home / "snapshots").exists()
    again = machine.answer()
    assert again["snapshot"]["reason"].startswith("miss: not stored")
    assert again["text"] == first["text"]


def test_encrypted_runs_answer_as_plain_ones(
    tmp_path: Path, tiny_models: Path, here: Callable[..., dict[str, Any]]
) -> None:
    """And a change of key is a cold start, not another answer; each finds its own again."""
    model = tiny_models / LLAMA
    texts = {here(Machine(tmp_path / "plain", model, None))["text"]}
    for name in ("a", "b"):
        (tmp_path / name).write_text(os.urandom(32).hex())
        (tmp_path / name).chmod(0o600)
        machine = Machine(tmp_path / "home", model, tmp_path / name)
        cold, warm = here(machine), here(machine)
        assert cold["snapshot"]["reason"].startswith("miss: not stored")
        assert warm["snapshot"]["reason"] == "hit"
        texts |= {cold["text"], warm["text"]}
    assert len(texts) == 1
    assert len(list((tmp_path / "home").rglob("*.ekv"))) == 2


@pytest.mark.parametrize(
    ("source", "exit_code", "said"),
    [
        ("keyring", 1, "keyring"),
        ("file:OPEN", 2, "chmod 600"),
    ],
)
def test_what_cannot_be_encrypted_is_not_kept_plain(
    tmp_path: Path, tiny_models: Path, source: str, exit_code: int, said: str
) -> None:
    """The command fails with the next step, and no file is written."""
    (tmp_path / "OPEN").write_bytes(bytes(range(32)))
    (tmp_path / "OPEN").chmod(0o644)
    source = source.replace("OPEN", str(tmp_path / "OPEN"))
    machine = Machine(tmp_path / "home", tiny_models / LLAMA, None)
    failing = {**os.environ, "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring"}
    done = subprocess.run(
        [sys.executable, "-m", "edgellm", "run", str(machine.model), QUESTION, "--system", SYSTEM,
         "--snapshot-encrypt", source],
        env={**failing, "EDGELLM_HOME": str(machine.home)},
        capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == exit_code, done.stderr
    assert said in done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(machine.home.rglob("*.ekv"))


FILE_RING = """
import json, pathlib
from keyring.backend import KeyringBackend
class Ring(KeyringBackend):
    priority = 1
    path = pathlib.Path(__file__).with_name("ring.json")
    def kept(self):
        return json.loads(self.path.read_text()) if self.path.exists() else {}
    def get_password(self, service, username):
        return self.kept().get(service + username)
    def set_password(self, service, username, password):
        self.path.write_text(json.dumps({**self.kept(), service + username: password}))
    def delete_password(self, service, username):
        self.path.unlink()
"""


def test_the_key_in_the_keyring_outlives_the_process(tmp_path: Path, tiny_models: Path) -> None:
    """Made at the first run, used by the second, missed when lost, forgotten when asked to."""
    (tmp_path / "filering.py").write_text(FILE_RING)
    ring, machine = tmp_path / "ring.json", Machine(tmp_path / "home", tiny_models / LLAMA, None)
    machine.environ = {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH")))),
        "PYTHON_KEYRING_BACKEND": "filering.Ring",
        "EDGELLM_SNAPSHOT_ENCRYPT": "keyring",
    }
    cold, warm = machine.answer(), machine.answer()
    assert cold["text"] == warm["text"]
    assert warm["snapshot"]["reason"] == "hit"
    assert is_encrypted(machine.snapshot().read_bytes())
    secret = next(iter(json.loads(ring.read_text()).values()))
    assert bytes.fromhex(secret) not in b"".join(path.read_bytes() for path in machine.files())
    lost = ring.rename(tmp_path / "lost.json")
    refused = machine.call(*machine.arguments())
    assert refused.returncode == 1
    assert b"which holds 1 encrypted snapshots" in refused.stderr
    assert not ring.exists()
    lost.rename(ring)
    done = machine.call("snapshots", "purge", "--yes", "--forget-key")
    assert done.returncode == 0, done.stderr
    assert not ring.exists()
    assert not list(machine.home.rglob("*.ekv"))


def _nothing(_: Path) -> None:
    """Leave the place empty."""


def _link(path: Path) -> None:
    path.symlink_to(path.with_name("other"))


def _second_name(path: Path) -> None:
    os.link(path.with_name("other"), path)


def _open_to_all(path: Path) -> None:
    path.write_bytes(path.with_name("other").read_bytes())
    path.chmod(0o666)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.write(path.with_name("other").read_bytes())
        file.truncate(1 << 40)


def _huge_header(path: Path) -> None:
    path.write_bytes(b"EDGEKV1\0" + b"\xff" * 4 + bytes(1 << 16))


def _huge_chunks(path: Path) -> None:
    path.write_bytes(b"EDGEKX1\0" + b"\1\0\0\0" + b"\xff" * 4 + bytes(1 << 16))


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")
    if os.geteuid() == 0:
        path.unlink()
        try:
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # what /dev/zero is
        except PermissionError:  # root of a container that makes none
            path.symlink_to("/dev/zero")


def _of_somebody_else(path: Path) -> None:
    path.write_bytes(path.with_name("other").read_bytes())
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)


PLANTED: dict[str, Callable[[Path], object]] = {
    "nothing": _nothing,
    "no bytes": Path.touch,
    "folder": Path.mkdir,
    "full folder": lambda path: (path / "x" / "y").mkdir(parents=True),
    "pipe": os.mkfifo,
    "link": _link,
    "link to itself": lambda path: path.symlink_to(path),
    "device": _device,
    "second name": _second_name,
    "open to all": _open_to_all,
    "terabyte of holes": _sparse,
    "header of gigabytes": _huge_header,
    "chunks of gigabytes": _huge_chunks,
    "somebody else's": _of_somebody_else,
}


@pytest.mark.parametrize(
    ("machine", "what"),
    [
        *(("plain", what) for what in PLANTED),
        *(("encrypted", what) for what in ("no bytes", "link", "chunks of gigabytes", "folder")),
    ],
    indirect=["machine"],
)
def test_what_is_planted_in_a_snapshots_place_is_never_used(
    machine: Machine, here: Callable[..., dict[str, Any]], what: str
) -> None:
    """Under the snapshot's own name: the right answer, and where it can be replaced, it is."""
    expected = here(machine)["text"]
    place = machine.snapshot()
    place.rename(place.with_name("other"))
    PLANTED[what](place)
    first, second = here(machine), here(machine)
    assert not first["snapshot"]["reason"].startswith("hit")
    assert [first["text"], second["text"]] == [expected, expected]
    assert (second["snapshot"]["reason"] == "hit") == ("folder" not in what)
    assert place.with_name("other").exists()


@pytest.mark.parametrize("what", ["pipe", "device", "terabyte of holes"])
def test_nothing_planted_makes_a_process_wait_or_grow(
    tmp_path: Path,
    tiny_models: Path,
    warm_start: Any,
    here: Callable[..., dict[str, Any]],
    what: str,
) -> None:
    """Within its time and an address space that no believed length fits into."""
    machine = Machine(tmp_path / "home", tiny_models / LLAMA, None, warm_start)
    expected = here(machine)["text"]
    place = machine.snapshot()
    place.rename(place.with_name("other"))
    PLANTED[what](place)
    # A process that believes a length fails at once.
    assert machine.answer(memory_bytes=6 << 30)["text"] == expected


def test_a_warm_session_survives_what_is_planted(tmp_path: Path, tiny_models: Path) -> None:
    """Another system prompt, then the first again, whose file became a pipe: the same answers."""
    from edgellm import Message, Sampling, load

    def ask(llm: Any, system: str) -> str:
        messages = [Message("system", system), Message("user", QUESTION)]
        return str(llm.generate(messages, max_tokens=8, sampling=Sampling(temperature=0)).text)

    with load(tiny_models / LLAMA, snapshot="exact", n_threads=1) as llm:
        expected = [ask(llm, SYSTEM), ask(llm, SYSTEM[::-1]), ask(llm, SYSTEM)]
        assert expected[0] == expected[2]
        for what in ("pipe", "no bytes", "link to itself", "terabyte of holes", "full folder"):
            for place in Path(os.environ["EDGELLM_HOME"]).rglob("*.ekv"):
                if place.is_file():
                    place.replace(place.with_name("other"))
                    PLANTED[what](place)
            assert [ask(llm, SYSTEM), ask(llm, SYSTEM[::-1]), ask(llm, SYSTEM)] == expected, what


def test_nothing_said_beside_an_answer_holds_the_prompt(
    tmp_path: Path, tiny_models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Errors with their causes, a hit's repr, log lines at every level, a dump of all stacks."""
    from edgellm import EdgeLLMError, Message, Request, load

    caplog.set_level(logging.DEBUG)
    model, said = tiny_models / LLAMA, []
    messages = [Message("system", SYSTEM), Message("user", QUESTION)]
    with load(model, snapshot="exact", n_threads=1, n_ctx=64) as llm:
        with pytest.raises(EdgeLLMError) as caught:
            llm.generate(messages)
        said += ["".join(traceback.format_exception(caught.value)), repr(caught.value)]
    for wrong in (
        lambda: Message("user", SYSTEM + "\ud800"),
        lambda: Request(tuple(messages), max_tokens=-1),
        lambda: Request((*messages, SYSTEM)),
        lambda: Request(tuple(messages), stop=(SYSTEM, 5)),
    ):
        with pytest.raises(EdgeLLMError) as caught:
            wrong()
        said += ["".join(traceback.format_exception(caught.value)), repr(caught.value)]
    with load(model, snapshot="exact", n_threads=1) as llm:
        for event in llm.stream(messages, max_tokens=2):
            said.append(repr(event.snapshot) if hasattr(event, "snapshot") else "")
            with (tmp_path / "stacks").open("w+") as file:
                faulthandler.dump_traceback(file)
                file.seek(0)
                said.append(file.read())
    for path in Path(os.environ["EDGELLM_HOME"]).rglob("*.ekv"):
        said.append(repr(read_snapshot(path)))
    assert "Snapshot(header=" in said[-1]
    text = "\n".join([*said, caplog.text])
    assert leaks(text.encode("utf-8", "replace"), windows(TEXTS)) == []
