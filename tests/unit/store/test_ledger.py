"""What snapshots did is counted over many processes, and no broken line breaks the count."""

from __future__ import annotations

import errno
import os
import re
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgellm.store.disk.flight import Locks
from edgellm.store.ledger import LEDGER_NAME, SAVED, Ledger, Speed, Use

MODEL, OTHER = "ab" * 32, "cd" * 32
WRITER = """
import sys
from pathlib import Path
from edgellm.store.ledger import Ledger, Use
ledger = Ledger(Path(sys.argv[1]), max_bytes=int(sys.argv[2]))
for _ in range(100):
    assert ledger.record(Use("ab" * 32, "hit", reused_tokens=7, restore_s=0.001))
"""


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "store")


def test_an_empty_ledger_says_nothing(ledger: Ledger):
    """To ask makes no file."""
    assert (ledger.uses(), ledger.totals(), ledger.speed(MODEL)) == ([], (), Speed())
    assert not ledger.path.parent.exists()


def test_what_was_recorded_comes_back(ledger: Ledger):
    """Every number, and times to the microsecond."""
    uses = [
        Use(MODEL, "hit", 1, 900, 16, 0.25, 0.012, 20_000_000, 0, 0.0),
        Use(OTHER, "not_stored", 1, 0, 916, 12.5, 0.0, 0, 20_000_000, 0.04),
    ]
    assert all(ledger.record(use) for use in uses)
    assert uses == ledger.uses()


def test_the_file_is_private_and_holds_no_text(ledger: Ledger):
    """Lines of numbers, hex and a code; mode 0600; no lock is left."""
    ledger.record(Use(MODEL, "hit", reused_tokens=5))
    assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600
    line = re.compile(r"1 [0-9a-f]{64} hit( [0-9]+){8} [0-9a-f]{8}\n")
    assert line.fullmatch(ledger.path.read_text())
    assert list(ledger.path.parent.rglob("*.lock")) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: line[: len(line) // 2],
        lambda line: line[:1],
        lambda line: line[:-1],
        lambda line: line.replace(b" 5 ", b" 6 "),
        lambda line: b"\xff\x00 some text\n",
        lambda line: b"2" + line[1:],
        lambda line: b"\n\n" + b" " * 100,
    ],
)
def test_a_line_that_is_torn_or_foreign_is_left_out(ledger: Ledger, damage):
    """It costs itself, and at most the one that was added right behind it."""
    use = Use(MODEL, "hit", reused_tokens=5)
    ledger.record(use)
    whole = ledger.path.read_bytes()
    ledger.path.write_bytes(whole + damage(whole))
    ledger.record(use)
    ledger.record(use)
    uses = ledger.uses()
    assert set(uses) == {use}
    assert len(uses) in {2, 3}


@pytest.mark.parametrize(
    ("model", "code"),
    [("", "hit"), ("a name", "hit"), (MODEL, "Hit!"), (MODEL, ""), (MODEL, "a\nb")],
)
def test_text_is_refused(ledger: Ledger, model: str, code: str):
    """What is no content id or no code is a mistake of the caller."""
    with pytest.raises(ValueError, match="no line"):
        ledger.record(Use(model, code))


def test_numbers_that_no_line_can_hold_are_cut(ledger: Ledger):
    """A clock that stood still or ran backwards does no harm."""
    ledger.record(Use(MODEL, "hit", 1, -5, 1 << 70, -1.0, float("nan"), 0, 0, float("inf")))
    assert ledger.uses() == [Use(MODEL, "hit", 1, 0, 10**15 - 1, 0.0, 0.0, 0, 0, 0.0)]


def test_a_place_that_cannot_be_written_is_no_error(tmp_path: Path):
    """The answer is False, and the request goes on."""
    (tmp_path / "store").write_text("in the way")
    assert not Ledger(tmp_path / "store").record(Use(MODEL, "hit"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / LEDGER_NAME).symlink_to(tmp_path / "aim")
    assert not Ledger(tmp_path / "other").record(Use(MODEL, "hit"))
    assert Ledger(tmp_path / "other").uses() == []
    assert not (tmp_path / "aim").exists()


def test_totals_are_those_of_each_model(ledger: Ledger):
    """Saved time is what the tokens would have taken at the model's own speed, less the restores."""
    ledger.record(Use(MODEL, "not_stored", prefill_tokens=1000, prefill_s=10.0, restore_s=0.5))
    ledger.record(Use(MODEL, "hit", 1, 900, 100, 1.0, 0.25, 5_000_000))
    ledger.record(Use(MODEL, "live", 1, 990, 0, 0.0))
    ledger.record(Use(MODEL, "too_short", 1, 0, 0, 0.0))
    ledger.record(Use(MODEL, SAVED, saved_bytes=7_000_000, save_s=0.1))
    ledger.record(Use(OTHER, "hit", 1, 50))
    first, second = ledger.totals()
    assert (first.model, second.model) == (MODEL, OTHER)
    assert (first.n_requests, first.n_asked, first.n_hits) == (4, 2, 1)
    assert first.reused_tokens == 900
    assert first.prefill_tokens_per_s == 100.0
    assert first.saved_s == pytest.approx(9.0 - 0.25)
    assert (first.restore_bytes, first.saved_bytes) == (5_000_000, 7_000_000)
    assert (second.saved_s, second.prefill_tokens_per_s) == (None, None)


def test_a_short_rest_does_not_tell_the_speed(ledger: Ledger):
    """What a hit leaves to read is a call's own time more than its tokens."""
    ledger.record(Use(MODEL, "not_stored", prefill_tokens=1000, prefill_s=10.0))
    ledger.record(Use(MODEL, "hit", 1, 990, 10, 5.0))
    assert ledger.totals()[0].prefill_tokens_per_s == 100.0
    assert ledger.speed(MODEL).prefill_tokens_per_s == 100.0
    ledger.record(Use(OTHER, "hit", 1, 990, 10, 5.0))
    assert ledger.speed(OTHER).prefill_tokens_per_s == 2.0


def test_speeds_follow_the_newest_measurements(ledger: Ledger):
    """A machine that became faster is soon known as that; disks are the same for every model."""
    for seconds in (10.0, *[1.0] * 12):
        ledger.record(Use(MODEL, "hit", prefill_tokens=100, prefill_s=seconds))
    ledger.record(Use(OTHER, "hit", restore_bytes=1000, restore_s=0.5))
    ledger.record(Use(OTHER, SAVED, saved_bytes=1000, save_s=0.25))
    speed = ledger.speed(MODEL)
    assert speed.prefill_tokens_per_s is not None
    assert 95 < speed.prefill_tokens_per_s < 100
    assert (speed.restore_bytes_per_s, speed.save_bytes_per_s) == (2000.0, 4000.0)
    assert ledger.speed(OTHER).prefill_tokens_per_s is None


def test_a_long_ledger_is_summed_up(tmp_path: Path):
    """Totals and speeds stay as they are, and the file stays short."""
    short, long = Ledger(tmp_path / "a", max_bytes=6000), Ledger(tmp_path / "b")
    for i in range(300):
        for ledger in (short, long):
            code = ("hit", "not_stored")[i % 3 == 0]
            seconds = float(1 + i % 7)
            ledger.record(Use((MODEL, OTHER)[i % 2], code, 1, i, 100, seconds, 0.01, i, i, 0.1))
    assert short.path.stat().st_size < 10_000 < long.path.stat().st_size
    for before, after in zip(long.totals(), short.totals(), strict=True):
        assert before.codes == after.codes
        assert before.saved_s == pytest.approx(after.saved_s)
        assert (before.reused_tokens, before.saved_bytes) == (
            after.reused_tokens,
            after.saved_bytes,
        )
    newest = long.speed(MODEL).prefill_tokens_per_s
    assert short.speed(MODEL).prefill_tokens_per_s == pytest.approx(newest, rel=0.01)
    assert sorted(path.name for path in short.path.parent.iterdir()) == [LEDGER_NAME, "locks"]


def test_a_stuck_process_is_waited_for_once(ledger: Ledger, monkeypatch: pytest.MonkeyPatch):
    """Requests are counted beside it, without its lock, and the next one does not wait."""
    monkeypatch.setattr("edgellm.store.ledger._LOCK_WAIT_S", 0.1)
    ledger = Ledger(ledger.path.parent)
    with Locks(ledger.path.parent).take(LEDGER_NAME) or pytest.fail("is free"):
        started = time.monotonic()
        assert ledger.record(Use(MODEL, "hit"))
        first_s = time.monotonic() - started
        assert all(ledger.record(Use(MODEL, "hit")) for _ in range(3))
        assert ledger._wait_s == 0
    assert first_s >= 0.1
    assert ledger.record(Use(MODEL, "hit"))
    assert ledger._wait_s > 0
    assert len(ledger.uses()) == 5


def test_many_writers_lose_no_line(tmp_path: Path):
    """Four processes add lines while each of them sums the ledger up again and again."""
    command = [sys.executable, "-c", WRITER, tmp_path, "4000"]
    writers = [subprocess.Popen(command) for _ in range(4)]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    (total,) = Ledger(tmp_path).totals()
    assert total.codes == (("hit", 400),)
    assert total.reused_tokens == 2800
    assert total.restore_s == pytest.approx(0.4)


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_full_disk_costs_the_line_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
):
    """Also while the ledger is summed up, whatever says that the disk is full."""
    ledger = Ledger(tmp_path / "store", max_bytes=10)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, full)
    assert not ledger.record(Use(MODEL, "hit"))
    monkeypatch.undo()
    assert ledger.record(Use(MODEL, "hit"))
