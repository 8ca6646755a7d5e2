"""Time to the first answer token, cold and warm: edgellm, LlamaDiskCache, a plain sequence file.

One model file, one prompt: a system prompt of at least 1,024 tokens and a user's part of about 16.
Every figure is of a process of its own (`_ttft_programs.py`). Cold finds nothing on disk; warm finds
what an earlier process left that asked another question of the same system prompt. TTFT runs from
the request, with the model loaded, to the first piece of the answer; the time from process start
stands beside it. The page cache is hot in all runs: the model was read before, and what a warm run
finds was just written. Cold and warm runs of all three take turns; medians are compared. All use
the CPU, the same number of threads, a context of 4,096 tokens, chunks of 512, flash attention, f16
keys and values, and take the likeliest token.

What differs: edgellm makes its context inside TTFT, verifies checksums, and finds the boundary by
rendering several prompts; the plain program verifies nothing and has the writing of its file in its
cold time. LlamaDiskCache stores whole prompts with their answers: asked the same question again, it
decodes one token where the others decode the user's part; "same question again" shows that case.

It also stores a row of the vocabulary in float32 for each of up to 512 tokens. That part stops
growing at 512 tokens while keys and values do not, so the goal of 1/9 of its bytes is judged at
about 450 tokens, where it was set, and the figure of the long prompt stands beside it without one.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice, product
from pathlib import Path

from _models import model_or_exit
from _report import Report, bench_parser
from _ttft_programs import PROGRAMS, Answer, Task

from edgellm.hw.cpu import available_threads

US, DISK, FILE = PROGRAMS
COLD, WARM, AGAIN = STARTS = ("cold", "warm", "same question again")
N_RULES, N_RULES_SHORT = 36, 16
QUESTION = "When may a guest borrow the keys?"
EARLIER_QUESTION = "What do I say to the courier?"
TIMEOUT_S = 600

GUESTS = ["a guest", "a neighbour", "a painter", "a courier", "a musician", "a student"]
WISHES = ["asks for the keys", "reports a broken lamp", "wants to stay for another night"]
PLACES = ["in the library", "by the boat house", "on the second floor", "at the garden gate"]
REPLIES = [
    "write the name down and offer a cup of tea",
    "look at the plan of the week first, then answer in one sentence",
    "thank them, and call the caretaker if it is after eight",
    "say yes unless the room is being cleaned",
    "point to the notice on the wall and wait for a question",
]


@dataclass(frozen=True, slots=True)
class Run:
    """One process: `ttft_ms` from the request, `start_ms` from the start of the process."""

    ttft_ms: float
    start_ms: float
    answer: Answer


Runs = dict[tuple[str, str], list[Run]]
"""The runs of each program from each start, in the order they were made."""


def system_prompt(n_rules: int) -> str:
    """Write the house rules: our own words, the same ones each time, no two lines alike."""
    cases = islice(product(PLACES, WISHES, GUESTS), n_rules)
    rules = [
        f"{number}. If {guest} {wish} {place}, {REPLIES[number % len(REPLIES)]}."
        for number, (place, wish, guest) in enumerate(cases, 1)
    ]
    return "\n".join(["You keep the house of the painters. These are its rules.", *rules])


def model_path(named: str | None) -> Path:
    """Find the model as the tests do: named, in the environment, or in the package that carries it.

    Raises:
        SystemExit: there is none; the message says where it comes from.
    """
    path = Path(named) if named else model_or_exit("smollm2")
    if not path.is_file():
        raise SystemExit(f"{path}: no such file")
    return path.resolve()


def run(program: str, task: Task, folder: Path, command: Sequence[str] = ()) -> Run:
    """Let a new process do a task.

    Args:
        program: its name.
        task: what to do.
        folder: where it keeps what it keeps.
        command: how it is started, where that is not as the programs of `_ttft_programs.py`.

    Raises:
        SystemExit: it failed; the message is what it said last.
    """
    own = [sys.executable, str(Path(__file__).with_name("_ttft_programs.py")), program]
    started_s = time.monotonic()
    child = subprocess.run(
        command or own,
        input=json.dumps(asdict(replace(task, folder=str(folder)))),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if child.returncode:
        raise SystemExit(f"{program} failed:\n{child.stderr[-2000:]}")
    answer = Answer(**json.loads(child.stdout.splitlines()[-1]))
    if not answer.pieces:
        raise SystemExit(f"{program} gave no answer")
    return Run(
        ttft_ms=(answer.first_s - answer.asked_s) * 1000,
        start_ms=(answer.first_s - started_s) * 1000,
        answer=answer,
    )


def prepare(task: Task, root: Path) -> dict[str, int]:
    """Let each program ask the earlier question, in `root/NAME`; return the bytes it left there."""
    n_bytes: dict[str, int] = {}
    for program in PROGRAMS:
        folder = root / program
        folder.mkdir(parents=True)
        run(program, replace(task, question=EARLIER_QUESTION), folder)
        kept = folder / "snapshots" if program == US else folder  # its home holds a cache as well
        n_bytes[program] = sum(p.stat().st_size for p in kept.rglob("*") if p.is_file())
    return n_bytes


def measure(task: Task, root: Path, n_pairs: int) -> Runs:
    """Run all pairs; each run gets a folder that no other one changes."""
    runs: Runs = {(program, start): [] for program in PROGRAMS for start in STARTS}
    for _ in range(n_pairs):
        for program in PROGRAMS:
            with tempfile.TemporaryDirectory() as scratch:
                cold, warm = Path(scratch, "cold"), Path(scratch, "warm")
                cold.mkdir()
                runs[program, COLD].append(run(program, task, cold))
                shutil.copytree(root / program, warm)
                runs[program, WARM].append(run(program, task, warm))
                runs[program, AGAIN].append(run(program, task, cold))
    return runs


def shown(value_ms: float) -> float:
    """Round to what is worth reading: a whole number from a second up."""
    return round(value_ms) if value_ms >= 1000 else round(value_ms, 1)


def report_tokens(report: Report, runs: Runs) -> None:
    """Add what was asked, what was reused, and whether warm answers are the cold ones."""
    plain = runs[FILE, COLD][0].answer
    n_prefix = plain.prefix_tokens
    lengths = sorted({one.answer.prompt_tokens for some in runs.values() for one in some})
    texts = " / ".join(str(length) for length in lengths)
    report.row("prompt", texts, "tokens", "the same for all", len(lengths) == 1)
    report.row("prefix", n_prefix, "tokens", ">= 1,024", n_prefix >= 1024)
    report.row("user's part", plain.prompt_tokens - n_prefix, "tokens")
    for program in PROGRAMS:
        cold, warm = runs[program, COLD], runs[program, WARM]
        reused = sorted({one.answer.reused_tokens for one in warm})
        equal = sum(a.answer.pieces == b.answer.pieces for a, b in zip(cold, warm, strict=True))
        names = f"{program} warm, reused", f"{program} warm answers equal to cold"
        texts = " / ".join(str(n) for n in reused)
        if program == US:
            report.row(names[0], texts, "tokens", f"== {n_prefix}", reused == [n_prefix])
            report.row(names[1], f"{equal} of {len(warm)}", "", "all", equal == len(warm))
        else:
            report.row(names[0], texts, "tokens")
            report.row(names[1], f"{equal} of {len(warm)}", "")


def report_times(report: Report, runs: Runs) -> None:
    """Add the times and their goals."""
    ttft = {key: statistics.median(one.ttft_ms for one in some) for key, some in runs.items()}
    for (program, start), some in runs.items():
        times = [one.ttft_ms for one in some]
        name, spread = f"{program} {start}", f"{min(times):.0f}-{max(times):.0f}"
        report.row(f"{name}, TTFT", shown(ttft[program, start]), "ms")
        report.row(f"{name}, fastest to slowest", spread, "ms")
        from_start = statistics.median(one.start_ms for one in some)
        report.row(f"{name}, from process start", shown(from_start), "ms")
    for part in ("restore_ms", "decode_ms"):
        value = statistics.median(getattr(one.answer, part) for one in runs[US, WARM])
        report.row(f"{US} warm, of which {part.removesuffix('_ms')}", shown(value), "ms")
    for program in PROGRAMS:
        ratio = ttft[program, WARM] / ttft[program, COLD]
        if program == US:
            report.row(f"{program} warm / cold", ratio, "x", "<= 0.10", ratio <= 0.10)
        else:
            report.row(f"{program} warm / cold", ratio, "x")
    ratio = ttft[US, WARM] / ttft[DISK, WARM]
    report.row(f"warm: {US} / {DISK}", ratio, "x", "<= 1", ratio <= 1)
    report.row(f"warm: {US} / {FILE}", ttft[US, WARM] / ttft[FILE, WARM], "x")


def report_bytes(report: Report, long: dict[str, int], short: dict[str, int], n_short: int) -> None:
    """Add the sizes on disk and their goals."""
    for program in PROGRAMS:
        report.row(f"{program} snapshot", long[program], "bytes")
    ratio = long[US] / long[FILE]
    report.row(f"bytes: {US} / {FILE}", ratio, "x", "<= 1.005", ratio <= 1.005)
    report.row(f"bytes: {US} / {DISK}", long[US] / long[DISK], "x")
    for program in PROGRAMS:
        report.row(f"{program} snapshot, {n_short} tokens", short[program], "bytes")
    ratio = short[US] / short[DISK]
    name = f"bytes, {n_short} tokens: {US} / {DISK}"
    report.row(name, ratio, "x", "<= 0.112", ratio <= 0.112)


def main() -> int:
    """Measure the long prompt in pairs, then the sizes of the short one."""
    parser = bench_parser(__doc__)
    parser.add_argument(
        "--model", metavar="FILE", help="a GGUF file with a chat template; else the tests' SmolLM2"
    )
    parser.add_argument("--pairs", type=int, default=5, help="cold and warm runs of each program")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0: the CPU quota")
    arguments = parser.parse_args()
    if arguments.pairs < 1:
        parser.error("--pairs must be at least 1")
    model = model_path(arguments.model)
    model.read_bytes()  # so that the page cache is hot from the first run on
    n_threads = arguments.threads or available_threads()
    long = Task(str(model), "", system_prompt(N_RULES), QUESTION, n_threads)
    short = replace(long, system=system_prompt(N_RULES_SHORT))
    report = Report(f"TTFT, {n_threads} threads, median of {arguments.pairs} pairs, page cache hot")
    report.row("model", model.name, "")
    with tempfile.TemporaryDirectory() as scratch:
        long_bytes = prepare(long, Path(scratch, "long"))
        runs = measure(long, Path(scratch, "long"), arguments.pairs)
        report_tokens(report, runs)
        report_times(report, runs)
        short_bytes = prepare(short, Path(scratch, "short"))
        n_short = run(FILE, short, Path(scratch, "short", FILE)).answer.prefix_tokens
        report_bytes(report, long_bytes, short_bytes, n_short)
    return report.finish(arguments.json)


if __name__ == "__main__":
    sys.exit(main())
