"""Files that are whole or not there, and files that are files."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgellm.errors import DoesNotFit
from edgellm.fileio import (
    AtomicWriter,
    open_regular,
    private_dir,
    process_alive,
    read_exactly,
    temp_name,
    temp_owner,
    write_atomic,
)

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
OLD, NEW = b"old content", b"new content"


def names(folder: Path) -> set[str]:
    """List a folder."""
    return {path.name for path in folder.iterdir()}


class FailAt:
    """A fault hook that fails at the N-th step, counted from 0, and notes the steps."""

    def __init__(self, n: int = -1, code: int = errno.EIO) -> None:
        self.steps: list[str] = []
        self._n, self._code = n, code

    def __call__(self, step: str, path: str) -> None:
        self.steps.append(step)
        if len(self.steps) - 1 == self._n:
            raise OSError(self._code, os.strerror(self._code), path)


def save(final: Path, fault: FailAt) -> None:
    """Write the new content in two calls."""
    with AtomicWriter(final, fault=fault) as out:
        out.write(NEW[:4])
        out.write(memoryview(NEW)[4:])


def n_steps(folder: Path) -> int:
    """Count the steps of a write that nothing stops."""
    fault = FailAt()
    save(folder / "counted", fault)
    (folder / "counted").unlink()
    return len(fault.steps)


def test_content_appears_whole_under_its_name(tmp_path: Path) -> None:
    """Nothing else is left in the folder, and only the owner may read it."""
    final, fault = tmp_path / "a.bin", FailAt()
    with AtomicWriter(final, fault=fault) as out:
        out.write(bytearray(b"ab"))
        out.write(b"")
        out.write(memoryview(b"cd"))
        assert not final.exists()
        assert 4 == out.n_bytes
    assert {"a.bin"} == names(tmp_path)
    assert b"abcd" == final.read_bytes()
    assert 0o600 == stat.S_IMODE(final.stat().st_mode)
    assert ["create", "write", "write", "fsync", "rename", "fsync_dir"] == fault.steps


def test_the_mode_is_the_callers(tmp_path: Path) -> None:
    """Less the umask, as for any new file."""
    write_atomic(tmp_path / "a", b"x", mode=0o640)
    umask = os.umask(0)
    os.umask(umask)
    assert 0o640 & ~umask == stat.S_IMODE((tmp_path / "a").stat().st_mode)


@pytest.mark.parametrize("code", [errno.EIO, *NO_ROOM, errno.EACCES])
@pytest.mark.parametrize("old", [None, OLD])
def test_a_fault_at_any_step_leaves_old_or_new(
    tmp_path: Path, code: int, old: bytes | None
) -> None:
    """Before the rename the old content, or none; after it the new; never a temporary.

    A full disk, or a file of the largest size, is `DoesNotFit` wherever it shows, everything else the system's own error.
    """
    final = tmp_path / "a.bin"
    for n in range(n_steps(tmp_path)):
        final.unlink(missing_ok=True)
        if old is not None:
            final.write_bytes(old)
        fault = FailAt(n, code)
        with pytest.raises((OSError, DoesNotFit)) as caught:
            save(final, fault)
        assert (code in NO_ROOM) == isinstance(caught.value, DoesNotFit), fault.steps
        expected = NEW if fault.steps[-1] == "fsync_dir" else old
        assert expected == (final.read_bytes() if final.exists() else None)
        assert {"a.bin"} >= names(tmp_path)


def test_an_error_in_the_block_removes_the_temporary(tmp_path: Path) -> None:
    """The error comes out as it is, the old content stays."""
    final = tmp_path / "a"
    final.write_bytes(OLD)
    with pytest.raises(ZeroDivisionError), AtomicWriter(final) as out:
        out.write(bytes([1 // len(b"")]))
    assert ({"a"}, OLD) == (names(tmp_path), final.read_bytes())


def test_a_temporary_of_somebody_else_is_not_touched(tmp_path: Path) -> None:
    """It is made exclusively: neither a file nor a link there is written through or removed."""
    final, temp, victim = tmp_path / "a", tmp_path / "a.partial", tmp_path / "victim"
    victim.write_bytes(OLD)
    for make in (lambda: temp.write_bytes(OLD), lambda: temp.symlink_to(victim)):
        make()
        with pytest.raises(FileExistsError), AtomicWriter(final, temp=temp) as out:
            out.write(NEW)
        assert OLD == temp.read_bytes() == victim.read_bytes()
        assert not final.exists()
        temp.unlink()


def test_a_temporary_made_after_the_rename_is_not_touched(tmp_path: Path) -> None:
    """The name is free again once the file has its own: the next writer may already hold it."""
    final, temp = tmp_path / "a", tmp_path / "a.partial"

    def next_writer(step: str, path: str) -> None:
        if step == "fsync_dir":
            temp.write_bytes(OLD)

    with AtomicWriter(final, temp=temp, fault=next_writer) as out:
        out.write(NEW)
    assert (NEW, OLD) == (final.read_bytes(), temp.read_bytes())


def test_a_link_under_the_final_name_is_replaced(tmp_path: Path) -> None:
    """What it points to stays as it is."""
    final, victim = tmp_path / "a", tmp_path / "victim"
    victim.write_bytes(OLD)
    final.symlink_to(victim)
    write_atomic(final, NEW)
    assert (OLD, NEW, False) == (victim.read_bytes(), final.read_bytes(), final.is_symlink())


def test_writing_outside_the_block_is_a_mistake(tmp_path: Path) -> None:
    """Before it and after it."""
    out = AtomicWriter(tmp_path / "a")
    with pytest.raises(ValueError, match="outside"):
        out.write(b"x")
    with out:
        out.write(b"x")
    with pytest.raises(ValueError, match="outside"):
        out.write(b"x")


IN_LITTLE_ROOM = """
import errno, resource, signal, sys
from pathlib import Path
from edgellm.errors import DoesNotFit
from edgellm.fileio import write_atomic

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    write_atomic(Path(sys.argv[1]) / "big", bytes(300_000))
except DoesNotFit as err:
    print(err)
    sys.exit(0 if err.__cause__.errno == errno.EFBIG else 1)
"""


def test_a_write_cut_short_by_the_system_leaves_nothing(tmp_path: Path) -> None:
    """A partial write is followed up until the system says why; then everything is removed."""
    folder = tmp_path / "folder"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", IN_LITTLE_ROOM, folder], check=True, capture_output=True, text=True
    )
    assert "no file of more than 100000 bytes" in done.stdout
    assert "ulimit -f" in done.stdout
    assert set() == names(folder)


def test_a_really_full_disk_is_does_not_fit() -> None:
    """The kernel's own ENOSPC, from the device that is always full."""
    with pytest.raises(DoesNotFit, match="disk is full") as caught:
        AtomicFull(Path("/dev/full")).fill()
    assert isinstance(caught.value.__cause__, OSError)


class AtomicFull(AtomicWriter):
    """A writer whose temporary file is a device without any room."""

    def fill(self) -> None:
        """Write one byte; the device is neither synced nor removed."""
        with self.final.open("wb", buffering=0) as self._file:
            self.write(b"x")


def test_private_dir_makes_every_level_private(tmp_path: Path) -> None:
    """Each folder that is made is the owner's alone; those there are left as they are."""
    there = tmp_path / "there"
    there.mkdir(mode=0o755)
    there.chmod(0o755)
    made = there / "a" / "b"
    assert made == private_dir(made) == private_dir(made)
    modes = [stat.S_IMODE(p.stat().st_mode) for p in (made, made.parent, there)]
    assert [0o700, 0o700, 0o755] == modes


def test_open_regular_gives_the_file_and_its_status(tmp_path: Path) -> None:
    """The status is of what was opened, not of what the name meant before."""
    path = tmp_path / "a"
    path.write_bytes(NEW)
    with open_regular(path) as (file, status):
        assert (NEW, len(NEW)) == (file.read(), status.st_size)


@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "link", "missing", "dangling"])
def test_open_regular_refuses_everything_else(tmp_path: Path, kind: str) -> None:
    """A pipe does not hang, a link is not followed, and no descriptor stays open."""
    path = tmp_path / kind
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path = Path(os.devnull)
    elif kind == "link":
        (tmp_path / "a").write_bytes(NEW)
        path.symlink_to(tmp_path / "a")
    elif kind == "dangling":
        path.symlink_to(tmp_path / "nowhere")
    before = open_descriptors()
    for _ in range(3):
        with pytest.raises(OSError, match=r"\[Errno"), open_regular(path):
            pass
    assert before == open_descriptors()


def open_descriptors() -> int:
    """Count this process's open files."""
    return len(names(Path("/dev/fd")))


def test_open_regular_follows_when_asked(tmp_path: Path) -> None:
    """Models are often links into a cache; what they lead to must still be a file."""
    (tmp_path / "a").write_bytes(NEW)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "to-folder").symlink_to(tmp_path)
    with open_regular(tmp_path / "link", follow=True) as (file, _):
        assert NEW == file.read()
    with (
        pytest.raises(OSError, match=r"\[Errno"),
        open_regular(tmp_path / "to-folder", follow=True),
    ):
        pass


def test_read_exactly_fills_or_says_how_much_is_missing(tmp_path: Path) -> None:
    """No short read goes unnoticed."""
    path = tmp_path / "a"
    path.write_bytes(NEW)
    into = bytearray(len(NEW))
    with open_regular(path) as (file, _):
        read_exactly(file, into)
        assert NEW == into
        read_exactly(file, bytearray())
        file.seek(0)
        with pytest.raises(EOFError, match=r"^2 bytes are missing"):
            read_exactly(file, bytearray(len(NEW) + 2))


def test_read_exactly_goes_on_after_a_short_read() -> None:
    """A pipe gives what it has; the rest is waited for."""
    reader, writer = os.pipe()
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, time; os.write(1, b'ab'); time.sleep(0.05); os.write(1, b'cd')",
        ],
        stdout=writer,
    )
    os.close(writer)
    into = bytearray(4)
    with os.fdopen(reader, "rb", buffering=0) as file:
        read_exactly(file, into)
    assert (b"abcd", 0) == (into, child.wait(20))


def test_a_temporary_name_says_who_writes(tmp_path: Path) -> None:
    """Hidden, beside the final name, different each time, and read back by `temp_owner`."""
    final = tmp_path / "a.b.ekv"
    temp = temp_name(final)
    assert temp.parent == tmp_path
    assert temp.name.startswith(".a.b.ekv.")
    assert os.getpid() == temp_owner(temp)
    assert temp != temp_name(final)


@pytest.mark.parametrize(
    "name",
    [
        *("a.ekv", ".a.ekv", ".tmp", ".1.ab.tmp", "a.ekv.12.ab.tmp", ".a.ekv.12.ab.temp"),
        *(".a.ekv.-1.ab.tmp", ".a.ekv.x.ab.tmp", ".a.ekv..ab.tmp", ".a.ekv.².ab.tmp"),
        *(".a.ekv.\u0661.ab.tmp", f".a.ekv.{'9' * 40}.ab.tmp", ".a.ekv.4294967296.ab.tmp"),
    ],
)
def test_other_names_have_no_owner(name: str) -> None:
    """Any name can lie in a folder: none may raise, or pass for a process id that cannot be."""
    assert temp_owner(Path(name)) is None


def test_processes_are_alive_until_they_are_not() -> None:
    """This one lives, a child that was waited for does not."""
    child: Any = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert (True, False) == (process_alive(os.getpid()), process_alive(child.pid))
    assert not process_alive((1 << 31) - 1)
