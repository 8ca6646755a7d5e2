"""One bench's figures: a table with goals beside them, and JSON that names machine, commit, command.

A bench makes a `Report`, adds rows as it measures, and exits with what `finish` returns: 0, or 1
when a goal was missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Row:
    """One figure: `ok` is None where no goal was set."""

    name: str
    value: float | str
    unit: str
    goal: str | None
    ok: bool | None


class Report:
    """Collects rows, prints them as they come, and writes them down at the end."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.rows: list[Row] = []
        self._started_s = time.time()
        print(f"{title}\n{'-' * len(title)}", flush=True)

    def row(
        self,
        name: str,
        value: float | str,
        unit: str,
        goal: str | None = None,
        ok: bool | None = None,
    ) -> None:
        """Add and print one figure.

        Args:
            name: what was measured; unique in this report.
            value: the figure.
            unit: `GB/s`, `ms`, `bytes`, `x` for a ratio, or empty.
            goal: the goal as a reader sees it, such as `>= 0.4`.
            ok: whether the goal was met; given exactly when `goal` is.

        Raises:
            ValueError: a goal without a verdict, a verdict without a goal, or a name used twice.
        """
        if (goal is None) != (ok is None):
            raise ValueError(f"bench row {name!r}: give `goal` and `ok` together")
        if any(row.name == name for row in self.rows):
            raise ValueError(f"bench row {name!r} was measured twice")
        row = Row(name, value, unit, goal, ok)
        self.rows.append(row)
        print(_line(row), flush=True)

    def finish(self, json_path: str | Path | None) -> int:
        """Say how the goals fared, write the JSON if a path is given, return the exit status."""
        judged = [row for row in self.rows if row.ok is not None]
        missed = [row.name for row in judged if not row.ok]
        print(f"\ngoals met: {len(judged) - len(missed)} of {len(judged)}")
        for name in missed:
            print(f"missed: {name}")
        if json_path is not None:
            record = {
                "title": self.title,
                # Paths by their last part: results are kept, and say nothing of a home folder.
                "command": [Path(word).name if os.sep in word else word for word in sys.argv],
                "commit": _commit(),
                "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._started_s)),
                "wall_s": round(time.time() - self._started_s, 3),
                "machine": machine(),
                "rows": [asdict(row) for row in self.rows],
            }
            Path(json_path).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        return 1 if missed else 0


def bench_parser(description: str | None) -> argparse.ArgumentParser:
    """Give the argument parser every bench starts from: it knows `--json FILE`."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n", 1)[0])
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")
    return parser


def machine() -> dict[str, str | int]:
    """State what the figures depend on; no host name, no user, no path."""
    return {
        "cpu": _cpu_model(),
        "cpus": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1,
        "memory_bytes": _memory_bytes(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "load_1min": f"{os.getloadavg()[0]:.2f}",
    }


def _line(row: Row) -> str:
    if isinstance(row.value, str):
        value = row.value
    else:
        value = f"{row.value:,.4g}" if isinstance(row.value, float) else f"{row.value:,}"
    verdict = "" if row.ok is None else f"goal {row.goal}  {'ok' if row.ok else 'MISSED'}"
    return f"{row.name:<46} {value:>14} {row.unit:<8} {verdict}".rstrip()


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _commit() -> str:
    """Name the commit measured, with `+` where tracked files differ from it."""
    folder = Path(__file__).resolve().parent
    try:
        head = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
        dirty = subprocess.run(["git", "diff", "--quiet", "HEAD"], cwd=folder, check=False)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("+" if dirty.returncode else "")
