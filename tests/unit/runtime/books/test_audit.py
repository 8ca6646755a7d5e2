"""The audit log: one record an answer, nothing of its text, and no change that is not seen."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from edgellm.errors import EdgeLLMError, RecordsDamaged, RecordsUnavailable
from edgellm.routing import CloudUse
from edgellm.runtime.books import audit
from edgellm.runtime.books.audit import HEAD_NAME, KEY_NAME, LOG_NAME, AuditLog
from edgellm.runtime.books.folder import Records
from edgellm.runtime.books.record import MAX_PHRASE, AuditRecord

CANARY = b"CANARY-7f3a in the prompt"
SENT = AuditRecord(
    "app",
    mode="prefer-local",
    route="cloud",
    cloud=CloudUse("https://api.example.com", "m", 10, 0, 5, 0.5, 100, 200),
    micro_usd=20,
    consent_id="c1",
)


@pytest.fixture
def log(edgellm_home: Path) -> AuditLog:
    return AuditLog(edgellm_home, clock=lambda: 1_800_000_000.1234)


@pytest.fixture
def records(edgellm_home: Path) -> Path:
    return edgellm_home / "records"


def test_a_record_comes_back_by_its_id(log: AuditLog) -> None:
    """What was written is read, with its time and a mark of its prompt."""
    first = log.append(AuditRecord("app", reason="the first choice"), CANARY)
    second = log.append(SENT)
    found = log.find(second)
    assert found is not None
    assert (SENT.cloud, 20, 1_800_000_000.123, "") == (
        found.cloud,
        found.micro_usd,
        found.time_s,
        found.prompt,
    )
    assert log.find("9-00000000") is None
    assert [first, second] == [name for name, _ in log.show()]
    assert 2 == log.verify()


def test_g12_the_log_holds_no_prompt(log: AuditLog, records: Path) -> None:
    """Audit, logs, crash dumps and snapshots contain no prompt canary: here, the records.

    Equal prompts have equal marks within one installation, and other ones in another.
    """
    log.append(SENT, CANARY)
    log.append(SENT, CANARY)
    log.append(SENT, CANARY + b"!")
    marks = [record.prompt for _, record in log.show()]
    assert marks[0] == marks[1] != marks[2]
    for file in records.iterdir():
        assert b"CANARY" not in file.read_bytes()
    other = AuditLog(records.parent / "other")
    other.append(SENT, CANARY)
    assert marks[0] != next(record.prompt for _, record in other.show())


def test_what_could_be_somebodys_text_is_cut(log: AuditLog) -> None:
    """A phrase longer than any of ours does not go in whole."""
    log.append(AuditRecord("app", reason="x" * 10_000, finish="y" * 10_000))
    record = next(record for _, record in log.show())
    assert MAX_PHRASE == len(record.reason) == len(record.finish)


def test_its_files_are_for_their_owner(log: AuditLog, records: Path) -> None:
    """Files are 0600, the folder 0700, also where it was open before."""
    records.mkdir(parents=True, mode=0o755)
    records.chmod(0o755)
    log.append(SENT)
    assert 0o700 == stat.S_IMODE(records.stat().st_mode)
    assert {0o600} == {stat.S_IMODE(file.stat().st_mode) for file in records.iterdir()}
    assert 32 == (records / KEY_NAME).stat().st_size


def test_an_empty_log_is_sound_and_reading_makes_nothing(log: AuditLog, records: Path) -> None:
    """Before the first record there is nothing to verify."""
    assert 0 == log.verify()
    assert [] == list(log.show())
    assert not records.parent.exists()


def written(log: AuditLog, n: int = 3) -> None:
    for k in range(n):
        log.append(AuditRecord("app", reason=f"r{k}", micro_usd=k), CANARY)


def test_g11_every_edit_of_every_byte_is_detected(log: AuditLog, records: Path) -> None:
    """Each served turn has exactly one audit record; deleting or editing any record is detected.

    Every byte of the log, of its head and of its key, changed one at a time.
    """
    written(log, 2)
    for name in (LOG_NAME, HEAD_NAME, KEY_NAME):
        path = records / name
        whole = path.read_bytes()
        for at in range(len(whole)):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x01]) + whole[at + 1 :])
            with pytest.raises(RecordsDamaged):
                log.verify()
        path.write_bytes(whole)
    assert 2 == log.verify()


def test_g11_every_cut_is_detected(log: AuditLog, records: Path) -> None:
    """A log cut off at any byte, its last record included, is not what its head says."""
    written(log, 2)
    path = records / LOG_NAME
    whole = path.read_bytes()
    for n_bytes in range(len(whole)):
        path.write_bytes(whole[:n_bytes])
        with pytest.raises(RecordsDamaged):
            log.verify()
        with pytest.raises(RecordsDamaged):
            log.ready()


def test_g11_records_cannot_be_taken_moved_doubled_or_added(log: AuditLog, records: Path) -> None:
    """Lines that are each true, in another order or number, are no log; nor is a copied one."""
    written(log, 4)
    path = records / LOG_NAME
    lines = path.read_bytes().splitlines(keepends=True)
    forged = json.loads(lines[3]) | {"n": 4}
    for changed in (
        lines[1:],
        [*lines[:1], *lines[2:]],
        [lines[1], lines[0], *lines[2:]],
        [*lines, lines[3]],
        [*lines[:2], lines[1], *lines[2:]],
        [*lines, json.dumps(forged, separators=(",", ":")).encode() + b"\n"],
        [*lines, b"\n"],
        [b"\n", *lines],
        [*lines[:3], lines[3].replace(b"\n", b"\r\n")],
    ):
        path.write_bytes(b"".join(changed))
        with pytest.raises(RecordsDamaged):
            log.verify()


@pytest.mark.parametrize(
    "names",
    [(LOG_NAME,), (HEAD_NAME,), (KEY_NAME,), (LOG_NAME, HEAD_NAME), (LOG_NAME, KEY_NAME)],
)
def test_g11_a_missing_file_is_detected(names: tuple[str, ...], log: AuditLog, records) -> None:
    """Without one of its files, or two, the log does not begin anew in silence."""
    written(log)
    for name in names:
        (records / name).unlink()
    for use in (log.verify, log.ready, lambda: log.append(SENT)):
        with pytest.raises(RecordsDamaged):
            use()


def test_g11_an_older_log_under_the_newer_head_is_detected(log: AuditLog, records: Path) -> None:
    """A copy of the log from before the last record does not pass."""
    written(log)
    older = (records / LOG_NAME).read_bytes()
    written(log, 1)
    (records / LOG_NAME).write_bytes(older)
    with pytest.raises(RecordsDamaged, match="its end is missing"):
        log.verify()


def test_a_kill_before_the_head_loses_no_record(log: AuditLog, records: Path) -> None:
    """A record whose head was not written yet is true, and the next one follows it."""
    written(log, 2)
    head = (records / HEAD_NAME).read_bytes()
    written(log, 1)
    (records / HEAD_NAME).write_bytes(head)
    assert 3 == log.verify()
    written(log, 1)
    assert 4 == log.verify()


def test_a_kill_in_the_middle_of_a_line_is_no_damage(log: AuditLog, records: Path) -> None:
    """Half a record that nobody was told of is dropped by the next one."""
    written(log, 2)
    path = records / LOG_NAME
    whole = path.read_bytes()
    path.write_bytes(whole + whole.splitlines()[1][:100])
    assert 2 == log.verify()
    written(log, 1)
    assert 3 == log.verify()
    path.write_bytes(path.read_bytes() + b"x" * (2 << 20))
    with pytest.raises(RecordsDamaged, match="more follows"):
        log.ready()


def test_a_beginning_that_was_killed_begins_again(log: AuditLog, records: Path) -> None:
    """A head for no records without a key is what the very first start may leave behind."""
    log.ready()
    (records / KEY_NAME).unlink()
    written(log, 1)
    assert 1 == log.verify()


def test_a_full_disk_is_said_and_heals(log: AuditLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that found no room is an error, and the log goes on when there is some."""
    written(log, 1)
    write = os.write

    def full(fd: int, data: bytes) -> int:
        write(fd, data[:50])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(audit.os, "write", full)
    with pytest.raises(RecordsUnavailable, match="full"):
        log.append(SENT)
    monkeypatch.undo()
    written(log, 1)
    assert 2 == log.verify()


def test_a_lock_that_is_removed_lets_nobody_in_beside(log: AuditLog, records: Path) -> None:
    """Whoever opened the lock file before somebody swept it away takes the new one."""
    done = threading.Event()

    def append() -> None:
        log.append(SENT)
        done.set()

    other = threading.Thread(target=append)
    with contextlib.ExitStack() as new:
        with Records(records.parent).locked("audit"):
            other.start()
            assert not done.wait(0.1)  # it has the old file open by now
            (records / "audit.lock").unlink()
            new.enter_context(Records(records.parent).locked("audit"))
        assert not done.wait(0.1)
    other.join()
    assert log.verify() == 1


def test_a_damaged_log_can_be_put_aside(log: AuditLog, records: Path) -> None:
    """`restart` keeps what there is for whoever looks into it, and a new log begins."""
    assert log.restart() is None
    written(log)
    whole = (records / LOG_NAME).read_bytes()
    (records / LOG_NAME).write_bytes(whole[:-1])
    aside = log.restart()
    assert aside is not None
    assert whole[:-1] == (aside / "records" / LOG_NAME).read_bytes()
    ((_, first),) = log.show()
    assert first.reason == f"behind {aside.name}, which is damaged"
    written(log, 1)
    assert 2 == log.verify()


def test_a_long_log_can_be_put_aside(log: AuditLog, records: Path) -> None:
    """The new one says how many records the old one has and how it ends; the old one can be checked."""
    written(log)
    last = json.loads((records / LOG_NAME).read_bytes().splitlines()[-1])["mac"]
    aside = log.restart()
    assert aside is not None
    assert AuditLog(aside).verify() == 3
    ((_, first),) = log.show()
    assert first.reason == f"behind {aside.name}, 3 records up to {last[:32]}"
    assert {0o700} == {stat.S_IMODE(one.stat().st_mode) for one in (aside, aside / "records")}
    again = log.restart()
    assert again is not None
    assert "1 records up to" in next(log.show())[1].reason


def test_a_log_that_is_a_link_is_refused(log: AuditLog, records: Path, tmp_path: Path) -> None:
    """Nobody redirects the records by a link, to a file or to another folder."""
    written(log)
    shutil.move(records / LOG_NAME, tmp_path / "elsewhere")
    (records / LOG_NAME).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RecordsDamaged):
        log.append(SENT)
    shutil.move(records, tmp_path / "folder")
    records.symlink_to(tmp_path / "folder")
    with pytest.raises(RecordsDamaged, match="link"):
        log.ready()


def test_threads_and_processes_write_one_chain(log: AuditLog, edgellm_home: Path) -> None:
    """Writers at the same time, in one process and in several, lose no record and fork no chain."""
    program = (
        "import sys; from pathlib import Path; from edgellm.runtime.books.audit import AuditLog;"
        "from edgellm.runtime.books.record import AuditRecord; log = AuditLog(Path(sys.argv[1]));"
        "[log.append(AuditRecord('child'), b'p') for _ in range(10)]"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", program, str(edgellm_home)]) for _ in range(4)
    ]
    threads = [threading.Thread(target=written, args=(log, 10)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [0] * 4 == [child.wait(60) for child in children]
    assert 80 == log.verify()


def test_a_book_that_is_held_for_too_long_is_an_error(edgellm_home: Path) -> None:
    """Nobody waits for ever for a suspended process."""
    records = Records(edgellm_home, wait_s=0.05)
    with (
        records.locked("audit"),
        pytest.raises(EdgeLLMError, match="held the audit"),
        records.locked("audit"),
    ):
        pass
    with records.locked("audit"), records.locked("consents"):
        pass


def test_kills_at_any_time_leave_a_sound_log(log: AuditLog, edgellm_home: Path) -> None:
    """Writers that are killed leave a chain that is whole and holds every record they were told of."""
    program = (
        "import sys; from pathlib import Path; from edgellm.runtime.books.audit import AuditLog\n"
        "from edgellm.runtime.books.record import AuditRecord; log = AuditLog(Path(sys.argv[1]))\n"
        "while True: print(log.append(AuditRecord('child'), b'p'), flush=True)"
    )
    told: list[str] = []
    for n in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", program, str(edgellm_home)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        first = [child.stdout.readline() for _ in range(3 * n + 1)]
        child.kill()
        rest = child.communicate(timeout=30)[0]
        told += [line.strip() for line in (*first, *rest.splitlines(keepends=True)) if "\n" in line]
    kept = [name for name, _ in log.show()]
    assert set(told) <= set(kept)
    assert len(kept) <= len(told) + 4
    log.append(SENT)


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    """Where no folder can be made, reading finds nothing and writing names the way out."""
    (tmp_path / "file").write_text("")
    log = AuditLog(tmp_path / "file" / "home")
    assert 0 == log.verify()
    for use in (log.ready, lambda: log.append(SENT)):
        with pytest.raises(RecordsUnavailable, match="EDGELLM_HOME"):
            use()
