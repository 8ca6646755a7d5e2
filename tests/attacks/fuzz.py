"""Fuzz the readers: `python tests/attacks/fuzz.py READER|all --seconds 600 [--jobs 2]`.

With atheris installed (it has wheels for some Pythons only) libFuzzer guides the inputs to new code;
without it the same targets get changes of the same files in a plain loop. A finding is an input that
fails again in a fresh process under the limits; its file is kept and the command that shows it is
printed. Exit 1 if there is one, or if a reader saw less than all seeds and 100 inputs in 600 s.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
if importlib.util.find_spec("edgellm") is None:  # not installed: the checkout is meant
    sys.path.insert(0, str(HERE.parents[1]))

MAX_FINDINGS = 10
_MAX_WALL_S = 120  # for one input, where the machine is busy or the reader blocks
_FEWEST_S = 2
_FEWEST_INPUTS_PER_S = 100 / 600  # the slowest reader does far more: fewer prove nothing
_WORDS = {
    -signal.SIGPROF: "more CPU time than an input may take",
    -signal.SIGKILL: "killed: it blocked",
}


def main() -> int:
    """Run what the command line asks for."""
    from fuzzing.builders import SCRATCH_VARIABLE, memory_folder
    from fuzzing.targets import FAULTS, TARGETS

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reader", choices=[*TARGETS, "all", *FAULTS])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--jobs", type=int, default=1, help="readers at a time, for `all`")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--engine", choices=["atheris", "plain"], default=None)
    parser.add_argument("--work-s", type=float, default=5, help="CPU seconds for one input")
    parser.add_argument("--out", type=Path, help="where findings and corpora are kept")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="read this one input")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.replay or given.child:
        return _work(given)
    out = given.out or Path(tempfile.mkdtemp(prefix="edgellm-fuzz-"))
    engine = given.engine or ("atheris" if importlib.util.find_spec("atheris") else "plain")
    readers = list(TARGETS) if given.reader == "all" else [given.reader]
    scratch = tempfile.TemporaryDirectory(prefix="edgellm-fuzz-", dir=memory_folder())
    with scratch as folder, ThreadPoolExecutor(given.jobs) as pool:
        os.environ[SCRATCH_VARIABLE] = folder
        runs = [pool.submit(fuzz, reader, given, engine, out / reader) for reader in readers]
        return int(any(run.result() for run in runs))


def _work(given: argparse.Namespace) -> int:
    """Do the work of a child process."""
    from fuzzing import child

    if given.replay:
        child.replay(given.reader, given.replay, given.work_s)
        print(f"{given.replay}: handled")
    elif given.engine == "atheris":
        child.guided(given.reader, given.seconds, given.seed, given.child)
    else:
        current = given.child / "current"
        child.loop(given.reader, given.seconds, given.seed, current, given.work_s)
    return 0


def fuzz(reader: str, given: argparse.Namespace, engine: str, folder: Path) -> list[Path]:
    """Fuzz one reader for as long as was asked for, and return the inputs that it cannot handle.

    A child that fails is replaced by another for the time that is left.
    """
    folder.mkdir(parents=True, exist_ok=True)
    started_s, n_inputs, n_seeds, findings = time.monotonic(), 0, 0, []
    for turn in range(1000):
        left_s = given.seconds - (time.monotonic() - started_s)
        if (turn and left_s < _FEWEST_S) or len(findings) >= MAX_FINDINGS:
            break
        options = ["--seconds", str(left_s), "--seed", str(given.seed + turn)]
        options += ["--engine", engine, "--work-s", str(given.work_s)]
        log = folder / f"log-{turn}.txt"
        code = _run_child([reader, *options, "--child", str(folder)], log, folder, left_s)
        told = log.read_text("utf-8", "replace")
        n_inputs += _n_inputs(told)
        n_seeds = max(n_seeds, _n_seeds(told))
        candidates = _candidates(folder, code, turn)
        findings += [path for path in candidates if _is_finding(reader, path, given.work_s)]
        if code and not candidates:
            print(f"{reader}: the fuzzer itself failed, exit {code}\n{told[-3000:]}", flush=True)
            return [*findings, log]
    spent_s = time.monotonic() - started_s
    print(
        f"{reader}: {n_inputs} inputs, {n_seeds} of them seeds, in {spent_s:.0f} s "
        f"({engine}, seed {given.seed}), {len(findings)} findings",
        flush=True,
    )
    fewest = n_seeds + int(given.seconds * _FEWEST_INPUTS_PER_S)
    if not findings and (not n_seeds or n_inputs < fewest):
        print(f"{reader}: TOO FEW inputs: all seeds and {fewest} in all are needed", flush=True)
        return [log]
    return findings


def _run_child(arguments: list[str], log: Path, folder: Path, seconds: float) -> int:
    command = [sys.executable, str(HERE / "fuzz.py"), *arguments]
    current = folder / "current"
    with log.open("wb") as output:
        child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        last_s = time.monotonic() + seconds + _MAX_WALL_S
        try:
            while child.poll() is None:
                time.sleep(0.1)
                moved = current.stat().st_mtime if current.exists() else time.time()
                if time.monotonic() > last_s or time.time() - moved > _MAX_WALL_S:
                    child.kill()
        finally:
            child.kill()
        return child.wait()


def _candidates(folder: Path, code: int, turn: int) -> list[Path]:
    """Return the inputs a child left behind when it failed, under names that stay."""
    found = [
        path for path in folder.glob("*-*") if re.match(r"(crash|timeout|oom|leak)-", path.name)
    ]
    current = folder / "current"
    if code and current.exists():
        found.append(current)
    return [path.rename(folder / f"input-{turn}-{path.name}") for path in found]


def _is_finding(reader: str, path: Path, work_s: float) -> bool:
    """Read an input once more, in a fresh process without instruments; say what comes of it."""
    command = [sys.executable, str(HERE / "fuzz.py"), reader, "--replay", str(path)]
    command += ["--work-s", str(work_s)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_MAX_WALL_S,
            check=False,
        )
        code, told = done.returncode, done.stderr
    except subprocess.TimeoutExpired:
        code, told = -signal.SIGKILL, ""
    if code == 0:
        print(f"{reader}: {path} is handled without instruments", flush=True)
        return False
    ends = _WORDS.get(code, told.strip()[-2500:] or f"exit {code}")
    print(f"{reader}: FINDING {path}\n{ends}\nshow it: {' '.join(command)}", flush=True)
    return True


def _n_seeds(told: str) -> int:
    """Return how many seeds a child read before it began; 0 if it did not come to that."""
    found = re.search(r'^\{"seeds": (\d+)\}$', told, re.MULTILINE)
    return int(found[1]) if found else 0


def _n_inputs(told: str) -> int:
    # libFuzzer counts as it goes; its sum is missing where an input stopped it.
    found = re.findall(r"(?:^#|number_of_executed_units: )(\d+)", told, re.MULTILINE)
    if found:
        return int(found[-1])
    last = told.strip().rpartition("\n")[2]
    return int(json.loads(last)["inputs"]) if last.startswith('{"inputs"') else 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONFAULTHANDLER", "1")
    sys.exit(main())
