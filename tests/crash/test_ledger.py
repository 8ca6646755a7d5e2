"""The ledger under many processes and kills: what may be spent is never exceeded, and never forgotten."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edgellm.policy.budget import Amount, limits_of, need_of
from edgellm.routing import Budget, Endpoint
from edgellm.runtime.books.ledger import BudgetExceeded, Ledger

ENDPOINT = Endpoint("https://api.example.com/v1", "m", usd_per_mtok_in=1, usd_per_mtok_out=2)
NEED = need_of(ENDPOINT, 700, 150)  # 1,000 millionths of a dollar
N_PROCESSES = 32

SPENDERS = """
import os, sys, time
from pathlib import Path
from edgellm.policy.budget import limits_of, need_of
from edgellm.routing import Budget, CloudUse, Endpoint
from edgellm.runtime.books.ledger import BudgetExceeded, Ledger

home, how, n, n_processes = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
endpoint = Endpoint("https://api.example.com/v1", "m", usd_per_mtok_in=1, usd_per_mtok_out=2)

def say(word):
    os.write(1, word.encode() + b"\\n")

def spend():
    ledger, need = Ledger(home), need_of(endpoint, 700, 150)
    for _ in range(n):
        try:
            reservation = ledger.reserve(need, limits_of(Budget(usd_per_day=0.05)), "app")
        except BudgetExceeded:
            say("exceeded")
            continue
        say("reserved")
        if how == "hang":
            time.sleep(60)
        if how == "settle":
            ledger.settle(reservation, CloudUse("o", "m", 700, 0, 150, bytes_out=700))

for _ in range(n_processes - 1):  # behind the imports, so that all begin at once
    if os.fork() == 0:
        spend()
        os._exit(0)
spend()
failed = [status for _, status in (os.wait() for _ in range(n_processes - 1)) if status]
sys.exit(len(failed))
"""


def start(home: Path, how: str, n: int, n_processes: int = 1) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SPENDERS, str(home), how, str(n), str(n_processes)],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_g10_32_processes_do_not_overspend(edgellm_home: Path) -> None:
    """Cloud spend never exceeds budget, even with 32 concurrent requests or a crash after send."""
    processes = start(edgellm_home, "settle", 4, N_PROCESSES)
    said = processes.communicate(timeout=120)[0]
    assert 0 == processes.returncode
    assert 50 == said.count("reserved")  # of 128 that asked: $0.05 pays for so many at $0.001
    assert 128 - 50 == said.count("exceeded")
    ledger = Ledger(edgellm_home)
    assert (
        50_000 == ledger.today().micro_usd == sum(one.amount.micro_usd for one in ledger.totals())
    )
    ledger.check()


def test_g10_a_kill_after_the_reservation_keeps_it(edgellm_home: Path) -> None:
    """A process that is killed when it may have sent something has spent the most it could have."""
    processes = [start(edgellm_home, "hang", 1) for _ in range(3)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("reserved")
        process.send_signal(signal.SIGKILL)
    for process in processes:
        process.communicate(timeout=30)
    ledger = Ledger(edgellm_home)
    assert Amount(3000, 3 * 850, 3 * 700) == ledger.today()
    assert 3 == ledger.totals()[0].n_open
    with pytest.raises(BudgetExceeded, match=r"usd_per_day is \$0\.003"):
        ledger.reserve(NEED, limits_of(Budget(usd_per_day=0.003)), "app")


def test_kills_at_any_time_leave_a_sound_ledger(edgellm_home: Path) -> None:
    """Writers killed in the middle of it leave a file that is whole and holds all they were told."""
    told = 0
    for n in range(4):
        process = start(edgellm_home, "reserve", 1000)
        assert process.stdout is not None
        said = "".join(process.stdout.readline() for _ in range(n + 1))
        process.send_signal(signal.SIGKILL)
        told += (said + process.communicate(timeout=30)[0]).count("reserved")
    ledger = Ledger(edgellm_home)
    ledger.check()
    assert told <= ledger.totals()[0].n_requests <= told + 4
