"""How near is the memory estimate to what is taken, and are keys and values counted exactly?

Each case is a process of its own that loads a model, prefills, decodes and, where snapshots are on, copies
the memory out. Its parent reads `/proc/PID/status` all the while: the peak of anonymous memory, with the
code that is mapped in; pages of the model's file are apart, the kernel may drop those at any time. The
estimate is of the same: all but the mapped file. Keys and values are held against the engine's log, whose
figures have two decimals of a MiB.

Three real models (SmolLM2, gemma-3-270m, and SmolLM2 re-quantised to Q8_0 by `edgellm convert`) and five
random ones, three contexts, two types of keys and values; one case of each real model is with snapshots.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _memory_models import MODELS, make
from _models import model_or_exit
from _report import Report, bench_parser

from edgellm.formats.gguf_check import checked_model
from edgellm.formats.gguf_shape import ModelShape, shape_of
from edgellm.hw.flags import cpu_flags
from edgellm.policy.estimate import Estimate, PlanSettings, estimate

CHILD = Path(__file__).with_name("_memory_child.py")
MIB = 1 << 20
CONTEXTS = (1024, 4096, 16384)
KV_TYPES = ("f16", "q8_0")
N_TOKENS = 600  # of the prompt: two batches, the second not full
N_THREADS = 2
LOG_MIB = 0.005  # the engine logs two decimals
ERROR_SHARE, ERROR_BYTES, UNDER_BYTES = 0.05, 128 * MIB, 16 * MIB
_WATCH_S = 0.005
_ANONYMOUS = re.compile(r"RssAnon:\s+(\d+) kB")


@dataclass(frozen=True, slots=True)
class Measured:
    """One case: what was foreseen, and what was taken.

    Attributes:
        name: model, context, type, and whether with snapshots.
        foreseen: the estimate.
        taken_bytes: the peak of anonymous memory, and code.
    """

    name: str
    foreseen: Estimate
    taken_bytes: int

    @property
    def error_bytes(self) -> int:
        """Return by how much the estimate is over; negative if it is under."""
        return self.foreseen.resident_bytes - self.taken_bytes

    @property
    def allowed_bytes(self) -> float:
        """Return how far it may be off."""
        return max(ERROR_SHARE * self.taken_bytes, ERROR_BYTES)


def shape_at(path: Path) -> ModelShape:
    """Return the sizes of a model."""
    return shape_of(*checked_model(path))


def logged(wanted: list[tuple[Path, list[PlanSettings]]]) -> list[list[dict[str, Any]]]:
    """Return what the engine logs of each model with each settings: see `_memory_child.py`."""
    asked = [(str(path), [_wire(settings) for settings in cases]) for path, cases in wanted]
    child = subprocess.run(
        [sys.executable, str(CHILD), "log"],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=True,
    )
    answers: list[list[dict[str, Any]]] = json.loads(child.stdout)
    return answers


def measured(path: Path, settings: PlanSettings, n_tokens: int = N_TOKENS) -> Measured:
    """Use a model in a process of its own, and watch what it takes."""
    asked = _wire(settings) | {"model": str(path), "n_tokens": min(n_tokens, settings.n_ctx - 16)}
    child = subprocess.Popen(
        [sys.executable, str(CHILD), "use"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_WAIT_POLICY": "passive"},  # others may need the cores
    )
    if child.stdin is None or child.stdout is None:
        raise OSError("the child has no pipes")
    child.stdin.write(json.dumps(asked))
    child.stdin.close()
    peak = 0
    while child.poll() is None:
        peak = max(peak, _anonymous_bytes(child.pid))
        time.sleep(_WATCH_S)
    told = child.stdout.read()
    child.stdout.close()
    if child.returncode:
        raise OSError(f"the child for {path.name} ended with {child.returncode}")
    foreseen = estimate(shape_at(path), settings, flags=cpu_flags())
    with_snapshots = ", snapshot" if settings.snapshots else ""
    name = f"{path.stem} {settings.n_ctx} {settings.kv_type}{with_snapshots}"
    return Measured(name, foreseen, peak + json.loads(told)["code_bytes"])


def _anonymous_bytes(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    found = _ANONYMOUS.search(text)
    return int(found.group(1)) * 1024 if found else 0


def _wire(settings: PlanSettings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in PlanSettings.__slots__}


def kv_is_exact(foreseen: Estimate, told: dict[str, Any]) -> bool:
    """Return whether keys, values and states are what the engine logs, as far as it tells."""
    told_mib: list[float] = told["kv"]
    return abs(foreseen.kv_bytes / MIB - sum(told_mib)) <= LOG_MIB * len(told_mib) + 1e-6


def models(folder: Path, cache: Path) -> list[Path]:
    """Return the three real models and the five random ones."""
    smollm2, gemma3 = model_or_exit("smollm2"), model_or_exit("gemma3")
    again = folder / "smollm2-q8_0.gguf"
    command = [sys.executable, "-m", "edgellm", "convert", str(smollm2), "--output", str(again)]
    subprocess.run([*command, "--type", "q8_0"], check=True, capture_output=True)
    return [smollm2, gemma3, again, *(make(name, cache) for name in MODELS)]


def tell(report: Report, case: Measured) -> Measured:
    """Add a row for one case, and return it."""
    off = case.error_bytes / MIB
    value = f"{case.foreseen.resident_bytes / MIB:.0f}/{case.taken_bytes / MIB:.0f}"
    report.row(f"{case.name} ({off:+.1f})", value, "MiB")
    return case


def judge(report: Report, cases: list[Measured], exact: list[bool]) -> None:
    """Add the goals over all cases."""
    shares = [abs(case.error_bytes) / case.allowed_bytes for case in cases]
    worst = float(np.percentile(shares, 95))
    under = max(0, -min(case.error_bytes for case in cases)) / MIB
    report.row("error over what is allowed, p95", worst, "x", "<= 1", worst <= 1)
    report.row("largest error", max(abs(case.error_bytes) for case in cases) / MIB, "MiB")
    report.row("furthest under", under, "MiB", "<= 16", under <= UNDER_BYTES / MIB)
    report.row("keys and values exact", sum(exact), f"of {len(exact)}", "all", all(exact))


def main() -> int:
    """Measure all cases; return 1 when a goal is missed."""
    parser = bench_parser(__doc__)
    parser.add_argument("--models", metavar="FOLDER", help="keep the random models here")
    arguments = parser.parse_args()
    report = Report("memory: foreseen and taken, in MiB (the error in brackets)")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        paths = models(folder, Path(arguments.models or scratch))
        plans = [
            PlanSettings(n_ctx=n_ctx, kv_type=kv_type, n_threads=N_THREADS, snapshots=False)
            for n_ctx in CONTEXTS
            for kv_type in KV_TYPES
        ]
        told = logged([(path, plans) for path in paths])
        cases, exact = [], []
        for path, rows in zip(paths, told, strict=True):
            for settings, row in zip(plans, rows, strict=True):
                cases.append(tell(report, measured(path, settings)))
                exact.append(kv_is_exact(cases[-1].foreseen, row))
        for path in paths[:3]:
            settings = PlanSettings(n_ctx=2048, n_threads=N_THREADS)
            cases.append(tell(report, measured(path, settings, n_tokens=2048)))
        judge(report, cases, exact)
    return report.finish(arguments.json)


if __name__ == "__main__":
    sys.exit(main())
