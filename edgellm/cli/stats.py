"""The figures that `--stats` and `/stats` print on stderr after an answer."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edgellm.cli import render
from edgellm.units import format_bytes, format_rate

if TYPE_CHECKING:
    from edgellm.core import Done
    from edgellm.routing import CloudUse
    from edgellm.runtime.session import SessionFacts

_STARTTIME_FIELD: Final = 22  # proc(5), counted from 1
_COMM_FIELD: Final = 2


def process_age_s() -> float:
    """Return the seconds since this process started, interpreter start included.

    Source: `starttime` of proc(5), in clock ticks since boot; psutil knows it elsewhere.
    """
    if sys.platform == "linux":
        stat = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace")
        fields = stat.rpartition(")")[2].split()  # the name may hold blanks and parentheses
        ticks = int(fields[_STARTTIME_FIELD - _COMM_FIELD - 1])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    import psutil

    return float(time.time() - psutil.Process().create_time())


def print_stats(done: Done, facts: SessionFacts, first_token_age_s: float | None) -> None:
    """Write the figures of an answer, one `label: value` a line.

    Args:
        done: the answer's last event.
        facts: the settings that were resolved.
        first_token_age_s: process start to first text, or None when it was not the first answer.
    """
    from_start = (
        "" if first_token_age_s is None else f", {first_token_age_s * 1000:.0f} ms from start"
    )
    first = ("first token", f"{done.timings.ttft_ms:.0f} ms{from_start}")
    made_here = done.usage.prompt_tokens or done.usage.completion_tokens
    if done.cloud is not None and not made_here:
        pairs = [("answer", f"{done.finish_reason}, {done.route}"), first]
    else:
        pairs = [*_counts(done), first, *_work(done, facts)]
    if facts.shared:
        pairs.append(("shared tier", facts.shared))
    if done.cloud is not None:
        pairs.append(("endpoint", cloud_text(done.cloud)))
    if done.audit_id:
        pairs.append(("record", done.audit_id))
    render.write_err("\n")
    render.facts(pairs, to_stderr=True)


def _counts(done: Done) -> list[tuple[str, str]]:
    """Return what was read and made on this machine."""
    usage = done.usage
    return [
        ("prompt", f"{usage.prompt_tokens} tokens, {usage.reused_tokens} reused"),
        ("answer", f"{usage.completion_tokens} tokens, {done.finish_reason}, {done.route}"),
    ]


def _work(done: Done, facts: SessionFacts) -> list[tuple[str, str]]:
    """Return where the time went on this machine, and with what settings."""
    timings, snapshot = done.timings, done.snapshot
    settings = (
        f"ctx {facts.n_ctx}, batch {facts.n_batch}, threads {facts.n_threads}, "
        f"gpu layers {facts.n_gpu_layers}, kv {facts.kv_type}, "
        f"flash attention {facts.flash_attention}"
    )
    return [
        ("of it", f"restore {timings.restore_ms:.0f} ms, prefill {timings.prefill_ms:.0f} ms"),
        ("decode", format_rate(timings.decode_tokens_per_s, 1, "tokens")),
        ("load", f"{timings.load_ms or facts.load_ms:.0f} ms"),
        ("snapshot", ", ".join(p for p in (snapshot.tier, snapshot.reason, snapshot.key) if p)),
        ("seed", "-" if done.seed is None else str(done.seed)),
        ("engine", facts.engine),
        ("settings", settings),
        ("kernels", facts.kernels),
    ]


def cloud_text(use: CloudUse) -> str:
    """Return what an answer took of an endpoint, in one line."""
    from edgellm.policy.budget import MICRO, format_usd

    about = "about " if use.estimated else ""
    cost = "price not known" if use.usd is None else format_usd(round(use.usd * MICRO))
    return (
        f"{use.origin}, {use.model}: {about}{use.prompt_tokens} tokens read ({use.cached_tokens} "
        f"cached), {use.completion_tokens} made, {cost}, {format_bytes(use.bytes_out)} sent"
    )
