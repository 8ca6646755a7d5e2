"""Every reader, some hundred broken inputs each: refused in our words or read, and soon.

The long form, guided by coverage where atheris is installed, is `fuzz.py` here; `-m full` runs it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fuzzing.child import inputs
from fuzzing.targets import MAX_WORK_S, TARGETS

FUZZ = Path(__file__).with_name("fuzz.py")
N_INPUTS = 600
MAX_CPU_S = 2.5
FULL_S = float(os.environ.get("EDGELLM_FUZZ_SECONDS", "600"))


@pytest.mark.parametrize("reader", TARGETS)
def test_no_input_gets_past_a_readers_errors(reader: str):
    """Whole files, field samples and changed ones give a value or a promised error, in time."""
    target = TARGETS[reader]
    started_s = time.process_time()
    for n_read, data in enumerate(inputs(target, seed=int.from_bytes(reader.encode(), "big"))):
        if n_read >= N_INPUTS or time.process_time() - started_s > MAX_CPU_S:
            break
        before_s = time.process_time()
        try:
            target.read(data)
        except Exception:
            print(f"{reader}: input {n_read} is {data[:500]!r}")
            raise
        assert time.process_time() - before_s < MAX_WORK_S, data[:500]
    assert n_read >= len(target.seeds()), "the seeds alone take too long"


@pytest.mark.parametrize("reader", TARGETS)
def test_a_whole_file_is_read_to_its_end(reader: str):
    """The control: a first seed passes every check, so that changes of it start behind them."""
    target = TARGETS[reader]
    assert target.read(target.seeds()[0])


@pytest.mark.parametrize(
    ("fault", "told"),
    [("error", "KeyError: 'a fault'"), ("hang", "more CPU time"), ("memory", "MemoryError")],
)
def test_the_fuzzer_finds_what_it_should(fault: str, told: str, tmp_path: Path):
    """A fault of each kind is caught; its input is kept, and a command shows it again."""
    command = [sys.executable, str(FUZZ), f"fault-{fault}", "--engine", "plain"]
    command += ["--seconds", "1", "--work-s", "1", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    assert told in done.stdout
    [kept, *_] = tmp_path.glob("*/input-*")
    assert b"!" in kept.read_bytes()
    assert f"fault-{fault} --replay {kept}" in done.stdout


def test_a_fuzzer_that_reads_nothing_fails(tmp_path: Path):
    """What counts is what was read: a child that ends well before its seeds are through is told."""
    command = [sys.executable, str(FUZZ), "fault-silence", "--engine", "plain"]
    command += ["--seconds", "1", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    assert "fault-silence: 0 inputs, 0 of them seeds, " in done.stdout
    assert "fault-silence: TOO FEW inputs" in done.stdout


@pytest.mark.full
@pytest.mark.parametrize("reader", TARGETS)
def test_long_fuzzing_finds_nothing(reader: str, tmp_path: Path):
    """0 crashes, hangs over 5 s and allocations over 1 GiB; the findings' files are printed."""
    command = [sys.executable, str(FUZZ), reader, "--seconds", str(FULL_S), "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stdout[-4000:]
    said = re.search(rf"^{reader}: (\d+) inputs, (\d+) of them seeds, ", done.stdout, re.MULTILINE)
    assert said, done.stdout
    n_inputs, n_seeds = map(int, said.groups())
    assert n_seeds == len(TARGETS[reader].seeds())
    assert n_inputs >= n_seeds + int(FULL_S / 6)
