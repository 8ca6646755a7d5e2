"""What a worker costs, and what it saves: speed and memory beside this process, cancels, and deaths.

The same model answers in this process and in a worker, in turns. A prefix of a thousand tokens is then
read, a short question behind it, the worker killed at its twentieth token, and timed from there to the
next new token: in a new worker with the snapshot that the dead one had written, and in one that has to
read everything again.
Goals: at most 2 % of decode speed, 300 ms from a cancel to a free slot, twice as fast as without the
snapshot (five times for a model of 1 B weights), the same text.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import TYPE_CHECKING

from _models import cache_folder, model_or_exit
from _report import Report, bench_parser

from edgellm.core import Done, Message, Request, Sampling, Tier, Token
from edgellm.runtime.local import open_session
from edgellm.runtime.session import SessionOptions
from edgellm.runtime.worker.ending import WorkerEnded
from edgellm.runtime.worker.handle import Worker

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from edgellm.core import Event
    from edgellm.runtime.session import Step

MAX_LOSS_PERCENT = 2.0
MAX_CANCEL_MS = 300.0
MIN_GAIN = {"smollm2": 2.0, "shape-1b": 5.0}
KILL_AT = 20
PREFIX_TOKENS = 1000
N_TOKENS = 48
OFF = SessionOptions(snapshot=Tier.OFF)
EXACT = SessionOptions(snapshot=Tier.EXACT)
GREEDY = Sampling(temperature=0)
QUESTION = Message("user", "Tell a long story of two rivers and of the people beside them.")
SHORT_QUESTION = Message("user", "Tell me more.")
_RSS_PROGRAM = """
import sys, psutil
from pathlib import Path
from edgellm.core import Message, Request, Sampling, Tier
from edgellm.runtime.session import SessionOptions
options = SessionOptions(snapshot=Tier.OFF)
asked = Request((Message("user", "Tell me of two rivers."),), max_tokens=16, sampling=Sampling(temperature=0))
if sys.argv[2] == "worker":
    from edgellm.runtime.worker.handle import Worker
    held = Worker.start(Path(sys.argv[1]), options)
else:
    from edgellm.runtime.local import open_session
    held = open_session(Path(sys.argv[1]), options)
list(held.stream(asked))
print(psutil.Process().memory_info().rss)
held.close()
"""


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = bench_parser(__doc__)
    parser.add_argument("--pairs", type=int, default=60, help="of answers whose speed is compared")
    parser.add_argument("--rounds", type=int, default=9, help="of deaths, each warm and cold")
    parser.add_argument("--cancels", type=int, default=200, help="answers that are cancelled")
    parser.add_argument("--shape-1b", type=Path, help="a model by _shape_1b.py; made if not given")
    parser.add_argument("--only", choices=("speed", "memory", "cancel", "death"), action="append")
    options = parser.parse_args()
    wanted = options.only or ["speed", "memory", "cancel", "death"]
    report = Report("worker: a process of its own, against none")
    model = model_or_exit("smollm2")
    if "speed" in wanted:
        speed(report, model, options.pairs)
    if "memory" in wanted:
        memory(report, model)
    if "cancel" in wanted:
        cancels(report, model, options.cancels)
    if "death" in wanted:
        deaths(report, "smollm2", model, options.rounds)
        deaths(report, "shape-1b", options.shape_1b or _shape_1b(), max(3, options.rounds // 3))
    return report.finish(options.json)


def speed(report: Report, model: Path, n_pairs: int) -> None:
    """Compare tokens a second as whoever reads the answer sees them.

    Two answers that follow each other differ by several percent on a machine that others use as well,
    so there are many short ones.
    """
    with open_session(model, OFF) as session, Worker.start(model, OFF) as worker:
        asked = Request((QUESTION,), max_tokens=N_TOKENS, sampling=GREEDY)
        arms = {
            "in process": lambda: tokens_per_s(session.stream(asked)),
            "worker": lambda: tokens_per_s(events_of(worker.stream(asked))),
        }
        seen: dict[str, list[float]] = {name: [] for name in arms}
        for n in range(n_pairs + 1):
            for name in sorted(arms, reverse=bool(n % 2)):
                rate = arms[name]()
                if n:  # the first pair warms both up
                    seen[name].append(rate)
    for name, rates in seen.items():
        report.row(f"decode, {name}, median", median(rates), "token/s")
    pairs = zip(seen["in process"], seen["worker"], strict=True)
    loss = median(100 * (1 - there / here) for here, there in pairs)
    report.row(
        "decode, lost to the worker, median of pairs",
        loss,
        "%",
        f"<= {MAX_LOSS_PERCENT:g}",
        ok=loss <= MAX_LOSS_PERCENT,
    )


def tokens_per_s(events: Iterable[Event]) -> float:
    """Return pieces of text a second, from the first piece to the last."""
    times_s = [perf_counter() for event in events if isinstance(event, Token)]
    return (len(times_s) - 1) / (times_s[-1] - times_s[0])


def memory(report: Report, model: Path) -> None:
    """Show what the program itself takes, with the model inside it and beside it."""
    for kind in ("in process", "worker"):
        done = subprocess.run(
            [sys.executable, "-c", _RSS_PROGRAM, str(model), kind],
            capture_output=True,
            text=True,
            check=True,
        )
        report.row(f"RSS of the program, {kind}", int(done.stdout) / 2**20, "MiB")


def cancels(report: Report, model: Path, n_cancels: int) -> None:
    """Time from a cancel, in the prompt or at any token, until the next request may come."""
    rng = random.Random(1)
    times_ms = []
    with Worker.start(model, OFF) as worker:
        for n in range(n_cancels):
            system = Message("system", f"{n}. " + "Rivers run from the hills to the sea. " * 12)
            asked = Request((system, QUESTION), sampling=GREEDY)
            answer = worker.stream(asked)
            for _ in range(rng.randrange(1, 24)):
                next(answer)
            sleep(rng.random() * 0.01)
            started_s = perf_counter()
            worker.cancel()
            for _ in answer:
                pass
            times_ms.append(1000 * (perf_counter() - started_s))
    times_ms.sort()
    report.row("cancel to free, median", median(times_ms), "ms")
    p99 = times_ms[min(len(times_ms) - 1, int(0.99 * len(times_ms)))]
    report.row("cancel to free, p99", p99, "ms", f"<= {MAX_CANCEL_MS:g}", ok=p99 <= MAX_CANCEL_MS)


def deaths(report: Report, name: str, model: Path, n_rounds: int) -> None:
    """Time from a death to the next new token, with the dead worker's snapshot and without any."""
    asked = _long_request(model)
    whole = _undisturbed(model, asked)
    times_s: dict[str, list[float]] = {"warm": [], "cold": []}
    n_same = n_hits = 0
    for n in range(n_rounds):
        for kind in sorted(times_s, reverse=bool(n % 2)):
            with _home():
                took_s, text, reused = _killed(model, asked, EXACT if kind == "warm" else OFF)
            times_s[kind].append(took_s)
            n_same += text == whole
            n_hits += kind == "warm" and reused > 0
    report.row(f"{name}: prompt", _prompt_tokens(model, asked), "tokens")
    report.row(f"{name}: deaths with a snapshot to start from", n_hits, f"of {n_rounds}")
    for kind, taken in times_s.items():
        report.row(f"{name}: death to next token, {kind}, median", 1000 * median(taken), "ms")
    gain = median(cold / warm for warm, cold in zip(times_s["warm"], times_s["cold"], strict=True))
    goal = MIN_GAIN[name]
    report.row(f"{name}: cold / warm, median of pairs", gain, "x", f">= {goal:g}", ok=gain >= goal)
    n_all = 2 * n_rounds
    report.row(f"{name}: texts as undisturbed", n_same, "", f"{n_all}", ok=n_same == n_all)


def _killed(model: Path, asked: Request, options: SessionOptions) -> tuple[float, str, int]:
    """Kill a worker at a token; return the time to the next one, the whole text and what was reused."""
    ids: list[int] = []
    texts: list[str] = []
    worker = Worker.start(model, options)
    try:
        for step in worker.stream(asked):
            ids.extend(step.ids)
            texts += [step.event.text] if isinstance(step.event, Token) else []
            if len(ids) == KILL_AT:
                os.kill(worker.pid, signal.SIGKILL)
                break
        while worker.ending is None:  # seen by its pipe
            sleep(0.0005)
    except WorkerEnded:
        pass
    started_s = perf_counter()
    took_s, reused = 0.0, 0
    with Worker.start(model, options) as successor:
        for step in successor.stream(asked, journal=ids):
            if isinstance(step.event, Token):
                took_s = took_s or perf_counter() - started_s
                texts.append(step.event.text)
            if isinstance(step.event, Done):
                reused = step.event.usage.reused_tokens
    worker.close()
    return took_s, "".join(texts), reused


def _undisturbed(model: Path, asked: Request) -> str:
    with open_session(model, OFF) as session:
        return session.generate(asked).text


def _prompt_tokens(model: Path, asked: Request) -> int:
    with open_session(model, OFF) as session:
        return session.generate(asked).usage.prompt_tokens


def _long_request(model: Path) -> Request:
    """Return a short question behind a system prompt of a thousand tokens, or a few more."""
    line = "The river runs from the hills to the sea and takes with it what it finds. "
    text = line
    with open_session(model, OFF) as session:
        while len(session.engine.tokenize(text, special=False, add_bos=False)) < PREFIX_TOKENS:
            text += line
    asked = (Message("system", text), SHORT_QUESTION)
    return Request(asked, max_tokens=KILL_AT + 12, sampling=GREEDY)


@contextmanager
def _home() -> Iterator[None]:
    """Give all processes an empty folder of their own."""
    before = os.environ.get("EDGELLM_HOME")
    folder = tempfile.mkdtemp(prefix="edgellm-worker-")
    os.environ["EDGELLM_HOME"] = folder
    try:
        yield
    finally:
        os.environ.pop("EDGELLM_HOME")
        if before is not None:
            os.environ["EDGELLM_HOME"] = before
        shutil.rmtree(folder, ignore_errors=True)


def events_of(steps: Iterable[Step]) -> Iterator[Event]:
    """Return what the reader of a worker's answer sees."""
    return (step.event for step in steps if step.event is not None)


def _shape_1b() -> Path:
    from _shape_1b import make

    path = cache_folder() / "shape-1b.gguf"
    if not path.exists():
        make(path)
    return path


if __name__ == "__main__":
    sys.exit(main())
