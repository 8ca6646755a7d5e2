"""The snapshot store against its goals, one table: sizes, speeds, exactness, counts.

SmolLM2 (dense) and gemma-3-270m (sliding windows), and with `--shape-1b FILE` a random model of the
shape of Llama-3.2-1B with a prefix of 4,096 tokens. Sizes are whole files over the engine's own bytes.
Every program runs in a process of its own (`_store_programs.py`); a warm restore is lookup, read,
checksums and hand-over to the engine, beside the engine's own `llama_state_seq_set_data_ext` of the
same bytes, both in turn in one process. "cold" drops the files from the page cache before each read.
TTFT is that of `ttft.py`, cold and warm by turns. Rows "tests" run the tests of that goal, all of their
counts with `--full`, and give how many passed.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from _models import model_or_exit
from _report import Report, bench_parser
from _shape_1b import make as make_shape_1b
from _store_programs import KINDS, Job
from _ttft_programs import Task
from ttft import EARLIER_QUESTION, N_RULES, QUESTION, Run, run, system_prompt

from edgellm.hw.cpu import available_threads

ROOT = Path(__file__).resolve().parents[2]
TEXT = ROOT / "tests" / "data" / "eval.txt"
LENGTHS = (128, 448, 1024)
SIZE_GOALS = {"exact": 1.005, "lossless": 0.87, "q8": 0.52, "q4": 0.33}
DISK_CACHE_GOALS = {"exact": 1 / 9, "q8": 1 / 17, "q4": 1 / 28}
US = "edgellm"

TESTS = {
    "G7 damaged files": ("tests/attacks/test_snapshots.py", "tests/e2e/test_snapshot_damage.py"),
    "G8 killed while saving": (
        "tests/crash/test_store_kill.py",
        "tests/crash/test_store_faults.py",
    ),
    "G8, G9 killed, and many at once": ("tests/crash/test_store_shared.py",),
    "G9 many sessions": ("tests/e2e/test_many_processes.py",),
    "G11 never above the cap": ("tests/unit/store/disk/test_eviction.py",),
    "G5 exactness, 19 models": ("tests/e2e/test_memory_kinds.py",),
    "G12 replays, 19 models": ("tests/e2e/test_auto.py",),
    "G13 boundaries": ("tests/e2e/test_boundaries.py",),
    "G14 privacy": ("tests/e2e/test_private_store.py",),
    "G15 reasons": ("tests/e2e/test_why.py",),
    "G17 failed restores, cuts, 14 kinds": ("tests/unit/engines/test_memory.py",),
}


N_PROCESSES: Final = 5
"""That measure the same, where a ratio is judged: where memory lies differs from one to the next."""


def figures_of(program: str, job: Job) -> dict[str, Any]:
    """Run a program in a process of its own and return what it measured.

    Raises:
        SystemExit: it failed.
    """
    script = Path(__file__).with_name("_store_programs.py")
    child = subprocess.run(
        [sys.executable, str(script), program],
        input=json.dumps(asdict(job)),
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode:
        raise SystemExit(f"{program} failed:\n{child.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return found


def medians(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of each figure of some processes."""
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def median_ratio(runs: list[dict[str, Any]], one: str, other: str) -> float:
    """Return the median of what two figures of one process are to each other."""
    return statistics.median(run[one] / run[other] for run in runs)


class Bench:
    """Measures one model after the other into one report."""

    def __init__(self, report: Report, scratch: Path, n_threads: int) -> None:
        self.report, self.scratch, self.n_threads = report, scratch, n_threads

    def at_most(self, name: str, value: float, limit: float, unit: str = "x") -> None:
        """Add a figure that must not be larger than a limit."""
        self.report.row(name, value, unit, f"<= {limit:.4g}", value <= limit)

    def length(self, name: str, model: Path, n_prefix: int, repeats: int = 7) -> dict[str, Any]:
        """Measure sizes and speeds at one length of the prefix."""
        folder = self.scratch / f"{name}-{n_prefix}"
        job = Job(
            str(model), str(folder), TEXT.read_text("utf-8"), n_prefix,
            n_threads=self.n_threads, repeats=repeats,
        )  # fmt: skip
        n_processes = N_PROCESSES if n_prefix >= 1024 else 1
        figures = figures_of("make", job)
        warm, cold = (
            [figures_of(program, job) for _ in range(n_processes)] for program in ("warm", "cold")
        )
        figures |= medians(warm) | medians(cold)
        row = f"{name}, {n_prefix} tokens"
        self.report.row(f"{row}: prefill", figures["prefill_ms"], "ms")
        self.report.row(f"{row}: set_data", figures["set_data_ms"], "ms")
        for kind in KINDS:
            self.report.row(f"{row}: {kind}, restore", figures[f"{kind}_restore_ms"], "ms")
        restore_ms = figures["exact_restore_ms"]
        limit = 1 / 20 if n_prefix < 448 else 1 / 100
        self.at_most(f"G1 {row}: restore / prefill", restore_ms / figures["prefill_ms"], limit)
        self.at_most(f"G2 {row}: restore / suffix", restore_ms / figures["suffix_ms"], 0.15)
        if n_prefix >= 448:
            for kind, goal in SIZE_GOALS.items():
                ratio = figures[f"{kind}_bytes"] / figures["raw_bytes"]
                self.at_most(f"G4 {row}: {kind} / raw f16, bytes", ratio, goal)
        if n_prefix >= 1024:
            ratio = median_ratio(warm, "exact_restore_ms", "set_data_ms")
            self.at_most(f"A2 {row}: restore / set_data", ratio, 2.6)
            ratio = median_ratio(cold, "q8_cold_ms", "exact_cold_ms")
            self.at_most(f"A2 {row}: q8 / exact, page cache cold", ratio, 0.7)
            for kind in KINDS:
                self.report.row(f"{row}: {kind}, cold", figures[f"{kind}_cold_ms"], "ms")
        return figures

    def peak(self, name: str, model: Path, n_prefix: int) -> None:
        """Measure the memory that a save takes."""
        folder = self.scratch / f"{name}-memory"
        job = Job(str(model), str(folder), TEXT.read_text("utf-8"), n_prefix)
        found = figures_of("memory", replace(job, n_threads=self.n_threads))
        ratio = found["peak_bytes"] / found["state_bytes"]
        self.at_most(f"A3 {name}, {n_prefix} tokens: peak of a save / state", ratio, 1.1)

    def beside_disk_cache(self, name: str, model: Path) -> None:
        """Measure bytes and load time beside `LlamaDiskCache`, at the length its goal was set."""
        folder = self.scratch / f"{name}-448"
        job = Job(str(model), str(folder), TEXT.read_text("utf-8"), 448, n_threads=self.n_threads)
        figures = self.length(name, model, 448) | figures_of("disk_cache", replace(job, repeats=3))
        theirs = figures["disk_cache_bytes"]
        for kind, goal in DISK_CACHE_GOALS.items():
            ratio = figures[f"{kind}_bytes"] / theirs
            self.at_most(f"G3 {name}: {kind} / LlamaDiskCache, bytes", ratio, goal)
        ratio = figures["exact_restore_ms"] / figures["disk_cache_ms"]
        self.at_most(f"G3 {name}: restore / LlamaDiskCache", ratio, 1 / 20)

    def same_answers(self, name: str, model: Path) -> None:
        """Compare restored and uninterrupted runs, bit for bit, for two KV types."""
        text = TEXT.read_text("utf-8")
        for kv_type in ("f16", "q8_0"):
            worst, equal = 0.0, 0
            for number in range(3):
                folder = self.scratch / f"{name}-{kv_type}-{number}"
                job = Job(str(model), str(folder), text[number * 5000 :], 448, kv_type=kv_type)
                job = replace(job, n_threads=self.n_threads)
                figures_of("make", job)
                found = figures_of("exact", job)
                worst = max(worst, found["max_dlogit"])
                equal += found["greedy_equal"]
            row = f"G5 {name}, {kv_type}, 3 prompts"
            self.at_most(f"{row}: largest difference of a logit", worst, 0, "")
            self.report.row(f"{row}: greedy tokens equal", equal, "of 768", "all", equal == 768)

    def losses(self, name: str, model: Path) -> None:
        """Hold the rounded tiers against the engine's own noise.

        Where its kernels round what they multiply, as for all 4-bit files, another order of the same
        work moves more top tokens than 3 in 100: `tiers.py` judges those on F32 weights.
        """
        text = TEXT.read_text("utf-8")
        folder = str(self.scratch / f"{name}-loss")
        job = Job(str(model), folder, text, 1024, n_threads=self.n_threads)
        found = figures_of("loss", job)
        noise = f"{name}: one by one against a batch"
        self.report.row(f"{noise}, mean KLD", found["noise_kl"], "nats")
        self.report.row(f"{noise}, same top-1", found["noise_top1"], "")
        for kind in ("q8", "q4"):
            ratio = found[f"{kind}_kl"] / found["noise_kl"]
            self.at_most(f"G6 {name}: {kind} / noise, mean KLD", ratio, 1.5)
            top1 = found[f"{kind}_top1"]
            self.report.row(f"{name}: {kind}, same top-1", top1, "")

    def first_tokens(self, name: str, model: Path, n_pairs: int) -> None:
        """Time the first answer token: cold, warm and with snapshots off, by turns."""
        task = Task(str(model), "", system_prompt(N_RULES), QUESTION, self.n_threads)
        kept = self.scratch / f"{name}-ttft"
        kept.mkdir()
        run(US, replace(task, question=EARLIER_QUESTION), kept)
        runs: dict[str, list[Run]] = {"cold": [], "warm": [], "off": []}
        for _ in range(n_pairs):
            with tempfile.TemporaryDirectory() as empty:
                runs["cold"].append(run(US, task, Path(empty)))
            runs["warm"].append(run(US, task, kept))
            with tempfile.TemporaryDirectory() as empty:
                runs["off"].append(run("edgellm off", task, Path(empty)))
        times = {how: statistics.median(r.ttft_ms for r in some) for how, some in runs.items()}
        for how, value in times.items():
            self.report.row(f"{name}: TTFT {how}", value, "ms")
        n = runs["warm"][0].answer.reused_tokens
        row = f"{name}, {n} + {runs['warm'][0].answer.prompt_tokens - n} tokens"
        self.at_most(f"A2 {row}: TTFT warm / cold", times["warm"] / times["cold"], 0.10)
        self.at_most(
            f"G16 {row}: TTFT, store on and cold / off", times["cold"] / times["off"], 1.03
        )

    def lookups(self, name: str, model: Path) -> None:
        """Time what comes before the read."""
        folder = str(self.scratch / f"{name}-lookups")
        job = Job(str(model), folder, TEXT.read_text("utf-8"), 8, n_threads=self.n_threads)
        found = figures_of("lookups", job)
        self.at_most(f"G10 {name}: a miss among 1,000 files", found["miss_ms"], 1.0, "ms")
        self.at_most(f"G10 {name}: a hit of 8 tokens among them", found["hit_ms"], 1.0, "ms")
        row = f"G8 {name}: first lookup, 100 orphans among 1,000 files"
        self.at_most(row, found["first_lookup_ms"], 50, "ms")
        self.report.row(f"{name}: identity of the model, hashed", found["identity_first_ms"], "ms")
        row = f"G10 {name}: identity of the model, remembered"
        self.at_most(row, found["identity_ms"], 1.0, "ms")


def test_rows(report: Report, *, full: bool) -> None:
    """Run the tests of the goals that are counts."""
    for name, paths in TESTS.items():
        select = "not bench and not torch and not browser and not foreign"
        arguments = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m"]
        child = subprocess.run(
            [*arguments, select if full else f"{select} and not full", *paths],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        last = child.stdout.strip().splitlines()[-1:] or [child.stderr[-200:]]
        counts = ", ".join(re.findall(r"\d+ [a-z]+", last[0].rpartition(" in ")[0]))
        passed = not child.returncode and "passed" in counts and "skipped" not in counts
        report.row(f"{name}, tests", counts or last[0], "", "all pass", passed)


def models(named: list[str]) -> Iterator[tuple[str, Path]]:
    """Give the real models that are asked for."""
    for name in named:
        path = model_or_exit(name).resolve()
        path.read_bytes()  # so that the page cache is hot from the first run on
        yield name, path


def main() -> int:
    """Measure, then run the tests of the goals that are counts."""
    parser = bench_parser(__doc__)
    parser.add_argument("--models", default="smollm2,gemma3", help="which of the real models")
    parser.add_argument("--pairs", type=int, default=5, help="cold and warm first tokens")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0: the CPU quota")
    parser.add_argument("--shape-1b", metavar="FILE", help="the 1B-shape model; made if missing")
    parser.add_argument("--full", action="store_true", help="all counts of the tests")
    parser.add_argument("--no-tests", action="store_true", help="leave the rows of tests out")
    arguments = parser.parse_args()
    n_threads = arguments.threads or available_threads()
    report = Report(f"snapshot store, {n_threads} threads")
    with tempfile.TemporaryDirectory(dir=os.environ.get("EDGELLM_BENCH_DIR")) as scratch:
        bench = Bench(report, Path(scratch), n_threads)
        for name, model in models([n for n in arguments.models.split(",") if n]):
            for n_prefix in LENGTHS:
                if n_prefix == 448:
                    bench.beside_disk_cache(name, model)
                else:
                    bench.length(name, model, n_prefix)
            bench.peak(name, model, 1024)
            bench.same_answers(name, model)
            bench.losses(name, model)
            bench.first_tokens(name, model, arguments.pairs)
            bench.lookups(name, model)
        if arguments.shape_1b:
            model = make_shape_1b(Path(arguments.shape_1b))
            bench.length("1B shape", model, 4096, repeats=5)
            bench.peak("1B shape", model, 4096)
    if not arguments.no_tests:
        test_rows(report, full=arguments.full)
    return report.finish(arguments.json)


if __name__ == "__main__":
    sys.exit(main())
