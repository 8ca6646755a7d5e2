"""Speed of each implementation of the kernels, against numpy and memcpy in one run.

The sizes are one layer's V of a 1,024-token prefix (SmolLM2 at 192 channels, a larger model at
1,024), and of 3,072 tokens. Goal: the best row moves 0.4 of what memcpy moves, on one thread, where
the data is larger than the second-level cache.

Tried for the AVX-512 row and not kept, each slower on one of the sizes: channel blocks of 32 outside
the token loop, software prefetch of the next tokens or of the lines to be written, 256 x 64 tiles.
"""

from __future__ import annotations

import ctypes
import statistics
import sys
import time
from typing import TYPE_CHECKING

import numpy as np
from _report import Report, bench_parser

from edgellm import kernels
from edgellm.kernels import _choice, _numpy

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = [(1024, 192), (1024, 1024), (3072, 1024)]
REPEATS = 30
GOAL_RATIO = 0.4
GOAL_FROM_BYTES = 2 << 20


def gb_per_s(n_bytes: int, call: Callable[[], object]) -> tuple[float, float]:
    """Time `call` and give the median rate, with the spread of the middle half in percent."""
    call()
    took_s: list[float] = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        took_s.append(time.perf_counter() - start)
    low, median, high = statistics.quantiles(took_s, n=4)
    return n_bytes / median / 1e9, 100 * (high - low) / median


def measure(report: Report, n_tokens: int, n_channels: int) -> None:
    """Add the rows of one size."""
    x = np.random.default_rng(0).integers(0, 1 << 16, (n_tokens, n_channels), dtype=np.uint16)
    out = np.empty((n_channels, n_tokens), np.uint16)
    size = f"{n_tokens} x {n_channels}"
    library = _choice.native()

    copy, spread = gb_per_s(
        x.nbytes, lambda: ctypes.memmove(out.ctypes.data, x.ctypes.data, x.nbytes)
    )
    report.row(f"memcpy {size}", copy, "GB/s")
    report.row(f"memcpy {size} spread", spread, "%")
    rates = {"numpy": gb_per_s(x.nbytes, lambda: _numpy.transpose_f16(x, out))}
    for isa in library.isas() if library else ():
        library.force_isa(isa)
        rates[isa] = gb_per_s(x.nbytes, lambda: kernels.transpose_f16(x, out))
    for isa, (rate, spread) in rates.items():
        report.row(f"transpose_f16 {size} {isa}", rate, "GB/s")
        report.row(f"transpose_f16 {size} {isa} spread", spread, "%")
    best = max(rate for rate, _ in rates.values())
    name = f"transpose_f16 {size} best / memcpy"
    if x.nbytes >= GOAL_FROM_BYTES:
        report.row(name, best / copy, "x", f">= {GOAL_RATIO}", best >= GOAL_RATIO * copy)
    else:
        report.row(name, best / copy, "x")
    if library:
        library.force_isa("")
        chosen = rates[library.isa()][0]
        report.row(f"{size} chosen row / best", chosen / best, "x", ">= 0.9", chosen >= 0.9 * best)


def main() -> int:
    """Measure every size."""
    arguments = bench_parser(__doc__).parse_args()
    report = Report(f"kernels, one thread, median of {REPEATS}")
    for n_tokens, n_channels in SIZES:
        measure(report, n_tokens, n_channels)
    return report.finish(arguments.json)


if __name__ == "__main__":
    sys.exit(main())
