"""Decode speed on a machine that others use as well, in a worker and as the engine does by itself.

Threads of one answer wait for each other at every layer, and look for work before they sleep. Where
they look as long as GNU's OpenMP lets them (`GOMP_SPINCOUNT` 300,000, its own number), a core that
somebody else needs is lost for whole tokens. Both are measured by turns: on a quiet machine, beside a
process that computes all the time on one core, and in two workers that answer at the same time, whose
tokens count together, their prompts' time included. Where `hw/spinning.py` keeps the library's number, both sides are the same.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from statistics import median
from time import monotonic
from typing import TYPE_CHECKING

from _models import model_or_exit
from _report import Report, bench_parser
from worker import GREEDY, OFF, QUESTION, events_of, tokens_per_s

from edgellm.core import Request
from edgellm.runtime.worker.handle import Worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIBRARYS_OWN = "300000"
SPINS = "GOMP_SPINCOUNT"
MIN_GAIN = 2.0
MAX_LOSS_PERCENT = 2.0
N_TOKENS = 48
BUSY_S = 6.0


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = bench_parser(__doc__)
    parser.add_argument("--pairs", type=int, default=40, help="of answers on a quiet machine")
    parser.add_argument("--busy-pairs", type=int, default=3, help="of answers on a busy one")
    options = parser.parse_args()
    model = model_or_exit("smollm2")
    report = Report("decode beside others")
    with _worker(model, LIBRARYS_OWN) as theirs, _worker(model) as ours:
        quiet = _quiet(theirs, ours, options.pairs)
        with _busy_process():
            busy = [(_made([theirs]), _made([ours])) for _ in range(options.busy_pairs)]
    at_once = [
        (_made_by_two(model, LIBRARYS_OWN), _made_by_two(model, None))
        for _ in range(options.busy_pairs)
    ]
    _rows(report, "quiet", quiet)
    loss = 100 * (1 - median(mine / own for own, mine in quiet))
    report.row("quiet, lost, median of pairs", loss, "%", "<= 2", ok=loss <= MAX_LOSS_PERCENT)
    for where, pairs in (("beside a busy process", busy), ("two at once", at_once)):
        _rows(report, where, pairs)
        gain = median(mine for _, mine in pairs) / max(median(own for own, _ in pairs), 1e-9)
        report.row(f"{where}, gain", gain, "x", f">= {MIN_GAIN:g}", ok=gain >= MIN_GAIN)
    return report.finish(options.json)


def _rows(report: Report, where: str, pairs: list[tuple[float, float]]) -> None:
    report.row(f"{where}, as OpenMP has it", median(own for own, _ in pairs), "token/s")
    report.row(f"{where}, in a worker", median(mine for _, mine in pairs), "token/s")


def _quiet(theirs: Worker, ours: Worker, n_pairs: int) -> list[tuple[float, float]]:
    """Return speeds of both, measured one after the other; the first pair warms up."""
    asked = Request((QUESTION,), max_tokens=N_TOKENS, sampling=GREEDY)
    pairs = []
    for n in range(n_pairs + 1):
        rates = {}
        for one in (theirs, ours) if n % 2 else (ours, theirs):
            rates[one] = tokens_per_s(events_of(one.stream(asked)))
        pairs.append((rates[theirs], rates[ours]))
    return pairs[1:]


def _made(workers: list[Worker]) -> float:
    """Return the tokens a second that workers make together in some seconds, prompts included."""
    ends_s = monotonic() + BUSY_S

    def answer(worker: Worker) -> int:
        n_tokens = 0
        for step in worker.stream(Request((QUESTION,), sampling=GREEDY)):
            if monotonic() > ends_s:
                break
            n_tokens += len(step.ids)
        return n_tokens

    with ThreadPoolExecutor(len(workers)) as pool:
        return sum(pool.map(answer, workers)) / BUSY_S


def _made_by_two(model: Path, spins: str | None) -> float:
    with _worker(model, spins) as first, _worker(model, spins) as second:
        return _made([first, second])


@contextmanager
def _worker(model: Path, spins: str | None = None) -> Iterator[Worker]:
    """Give a worker whose threads look so often; None lets the package say how often."""
    before = os.environ.pop(SPINS, None)
    if spins is not None:
        os.environ[SPINS] = spins
    try:
        worker = Worker.start(model, OFF)
    finally:
        os.environ.pop(SPINS, None)
        if before is not None:
            os.environ[SPINS] = before
    with worker:
        yield worker


@contextmanager
def _busy_process() -> Iterator[None]:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        busy.kill()
        busy.wait()


if __name__ == "__main__":
    sys.exit(main())
