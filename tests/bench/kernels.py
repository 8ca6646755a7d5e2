"""Speed of each implementation of the kernels, against numpy and memcpy in one run.

Each is a ratio to memcpy of the float16 side, on one thread, over the same buffers, taking turns. A
prefix is packed and unpacked layer by layer, so that a layer's memory has left the second-level cache
when its turn comes again, as it has when a snapshot is restored: SmolLM2's 30 layers of 192 channels
at 1,024 tokens, eight of a larger model's layers of 1,024, and one of 8,192 tokens. Buffers lie where
numpy puts them, which is not at the start of a cache line, as nothing is in an engine's state.

Goals, of the default row: unpack 8, 6 and 4 bits 1.0, pack K 0.5, pack V 0.3; transpose 0.4 where the
data is larger than the second-level cache. Unpacking into the transposed layout is reported. What is
timed is the library's call; what Python adds is a row of its own.

Tried and not kept. Transpose with AVX-512, each slower on one of the sizes: channel blocks of 32
outside the token loop, software prefetch of the next tokens or of the lines to be written, 256 x 64
tiles. Unpack K by blocks of 64 columns over a group's tokens, scales in registers: a third slower at
1,024 channels. Stores of half a cache line: a third slower where lines are not aligned. Unpack into
16 KiB and memcpy from there, which reads no line that it overwrites: a quarter slower. Transposed
output of 8,192 x 1,024 stays at 0.1 to 0.4 in any order of tiles that was tried.
"""

from __future__ import annotations

import ctypes
import statistics
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from _report import Report, bench_parser

from edgellm import kernels
from edgellm.kernels import _choice, _numpy

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgellm.kernels._native import NativeKernels

TRANSPOSED = [(1024, 192), (1024, 1024), (3072, 1024)]
PREFIXES = [(30, 1024, 192), (8, 1024, 1024), (1, 8192, 1024)]
TIERS = {8: (128, 64), 6: (64, 64), 5: (64, 64), 4: (32, 32)}  # groups of K and of V
REPEATS = 30
GOAL_TRANSPOSE = 0.4
GOAL_UNPACK = 1.0
GOALS_PACK = (0.5, 0.3)
GOAL_FROM_BYTES = 2 << 20


def spread(took_s: list[float]) -> tuple[float, float]:
    """Give the median and the spread of the middle half, the latter in percent."""
    low, median, high = statistics.quantiles(took_s, n=4)
    return median, 100 * (high - low) / median


def timed_s(call: Callable[[], object]) -> float:
    """Time one call by this thread's clock, which stands while other programs have their turns."""
    start = time.thread_time()
    call()
    return time.thread_time() - start


def gb_per_s(n_bytes: int, call: Callable[[], object]) -> tuple[float, float]:
    """Time `call` and give the median rate, with the spread of the middle half in percent."""
    call()
    median, percent = spread([timed_s(call) for _ in range(REPEATS)])
    return n_bytes / median / 1e9, percent


def measure_transpose(report: Report, n_tokens: int, n_channels: int) -> None:
    """Add the rows of one size."""
    x = np.random.default_rng(0).integers(0, 1 << 16, (n_tokens, n_channels), dtype=np.uint16)
    out = np.empty((n_channels, n_tokens), np.uint16)
    size = f"{n_tokens} x {n_channels}"
    library = _choice.native()

    copy, percent = gb_per_s(
        x.nbytes, lambda: ctypes.memmove(out.ctypes.data, x.ctypes.data, x.nbytes)
    )
    report.row(f"memcpy {size}", copy, "GB/s")
    report.row(f"memcpy {size} spread", percent, "%")
    rates = {"numpy": gb_per_s(x.nbytes, lambda: _numpy.transpose_f16(x, out))}
    for isa in library.isas() if library else ():
        library.force_isa(isa)
        rates[isa] = gb_per_s(x.nbytes, lambda: kernels.transpose_f16(x, out))
    for isa, (rate, percent) in rates.items():
        report.row(f"transpose_f16 {size} {isa}", rate, "GB/s")
        report.row(f"transpose_f16 {size} {isa} spread", percent, "%")
    best = max(rate for rate, _ in rates.values())
    name = f"transpose_f16 {size} best / memcpy"
    if x.nbytes >= GOAL_FROM_BYTES:
        goal = GOAL_TRANSPOSE
        report.row(name, best / copy, "x", f">= {goal}", best >= goal * copy)
    else:
        report.row(name, best / copy, "x")
    if library:
        library.force_isa("")
        chosen = rates[library.isa()][0]
        report.row(f"{size} chosen row / best", chosen / best, "x", ">= 0.9", chosen >= 0.9 * best)


@dataclass(frozen=True, slots=True)
class Buffers:
    """All layers of a prefix, and the packed ones of one axis and width.

    Attributes:
        x: float16 as uint16, shape (n_layers, n_tokens, n_channels).
        y: like `x`, to be written.
        packed: codes, scale and minimum, each with the layers first.
        axis: 0 for K (by channel), 1 for V (by token).
        bits: width of a code.
        group: elements that share a scale.
    """

    x: np.ndarray
    y: np.ndarray
    packed: tuple[np.ndarray, np.ndarray, np.ndarray]
    axis: int
    bits: int
    group: int

    def calls(self, library: NativeKernels, layer: int) -> dict[str, Callable[[], object]]:
        """Give what is timed, by name, of one layer; all is worked out beforehand but the call."""
        n_tokens, n_channels = self.x.shape[1:]
        counts = (n_tokens, n_channels, self.bits, self.group)
        x, y = self.x[layer].ctypes.data, self.y[layer].ctypes.data
        packed = [array[layer].ctypes.data for array in self.packed]
        pack, unpack = library._pack[self.axis], library._unpack[self.axis]
        return {
            "memcpy": partial(ctypes.memmove, y, x, self.x[layer].nbytes),
            "unpack": partial(unpack, *packed, *counts, y, n_channels, 1),
            "pack": partial(pack, x, n_channels, *counts, *packed),
            "unpack transposed": partial(unpack, *packed, *counts, y, 1, n_tokens),
        }


def buffers(x: np.ndarray, axis: int, bits: int) -> Buffers:
    """Make the buffers of one axis and width, filled."""
    group = TIERS[bits][axis]
    name: Any = ("channels", "tokens")[axis]
    shapes = kernels.packed_shapes(*x.shape[1:], axis=name, bits=bits, group=group)
    codes = np.zeros((len(x), *shapes.codes), np.uint8)
    scale, minimum = (np.zeros((len(x), *shapes.scale), np.uint16) for _ in range(2))
    return Buffers(x, np.zeros_like(x), (codes, scale, minimum), axis, bits, group)


def ratios(made: Buffers, library: NativeKernels) -> dict[str, tuple[float, float]]:
    """Give each call's rate to memcpy's beside it, and the spread; the calls take turns."""
    calls = [made.calls(library, layer) for layer in range(len(made.x))]
    for each in calls:
        each["pack"]()
    names, turns = list(calls[0]), []
    for turn in range(max(REPEATS, 2 * len(calls))):
        at = turn * len(names)
        turns.append([timed_s(calls[(at + n) % len(calls)][name]) for n, name in enumerate(names)])
    return {name: spread([t[0] / t[n] for t in turns]) for n, name in enumerate(names)}


def measure_codec(report: Report, library: NativeKernels, shape: tuple[int, int, int]) -> None:
    """Add the rows of one prefix: the default row with its goals, the others without."""
    size = "{} x {} x {}".format(*shape)
    rng = np.random.default_rng(0)
    layer = rng.standard_normal(shape[1:], np.float32).astype(np.float16).view(np.uint16)
    x = np.repeat(layer[None], shape[0], axis=0)
    report.row(f"layers of {size}", layer.nbytes, "bytes")
    for axis, kind in enumerate("KV"):
        for bits in TIERS:
            made = buffers(x, axis, bits)
            for isa in library.isas():
                library.force_isa(isa)
                if isa == "scalar" and shape != PREFIXES[0]:
                    continue  # seconds a call, and no news
                for name, (ratio, percent) in ratios(made, library).items():
                    title = f"{kind}{bits} {name} {size} {isa}"
                    goal = goal_of(name, axis, bits) if isa == library.isas()[0] else None
                    if name == "memcpy":
                        continue
                    if goal is None:
                        report.row(title, ratio, "x")
                    else:
                        report.row(title, ratio, "x", f">= {goal}", ratio >= goal)
                    report.row(f"{title} spread", percent, "%")
    library.force_isa("")


def goal_of(name: str, axis: int, bits: int) -> float | None:
    """Give the goal of one ratio of the default row, or None."""
    if name == "pack":
        return GOALS_PACK[axis]
    if name == "unpack" and bits != 5:
        return GOAL_UNPACK
    return None


def measure_door(report: Report) -> None:
    """Add what a call through Python costs beside the kernel: one token of one block."""
    x, out = np.zeros((1, 64), np.uint16), np.zeros((1, 64), np.uint16)
    packed = kernels.pack_tokens(x, bits=6, group=64)
    for name, call in (
        ("pack", lambda: kernels.pack_tokens(x, bits=6, group=64)),
        ("unpack", lambda: kernels.unpack_tokens(packed, 64, bits=6, group=64, out=out)),
    ):
        median, _ = spread([timed_s(call) for _ in range(1000)])
        report.row(f"{name}_tokens of 64 values, from Python", median * 1e6, "us")


def main() -> int:
    """Measure every size."""
    arguments = bench_parser(__doc__).parse_args()
    report = Report(f"kernels, one thread, medians of {REPEATS} and more")
    for n_tokens, n_channels in TRANSPOSED:
        measure_transpose(report, n_tokens, n_channels)
    library = _choice.native()
    if library is None:
        report.row("native library", "missing", "", "there", ok=False)
    else:
        for shape in PREFIXES:
            measure_codec(report, library, shape)
        measure_door(report)
    return report.finish(arguments.json)


if __name__ == "__main__":
    sys.exit(main())
