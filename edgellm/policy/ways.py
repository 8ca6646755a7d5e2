"""Ways to make a model fit that does not: what to type, in the order of what it costs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from edgellm.policy.fitting import (
    MIN_BATCH,
    WIDE_KV_TYPES,
    Fitting,
    available_for,
    can_round_rows,
    gpu_total_for,
)
from edgellm.policy.plan import Way
from edgellm.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgellm.policy.estimate import PlanSettings

N_WAYS: Final = 3
_SLACK_BYTES: Final = 16 << 20
"""What is available moves between two commands, and one that answers is larger than one that plans."""
_LEAST_BITS: Final = 2  # per weight: below that nobody quantises
_RAISES: Final = {
    "host": "close other programs until {} more are free",
    "cgroup": "raise the control group's memory limit by {}",
    "rlimit": "raise `ulimit -v` by {}",
}
_ANEW: Final = "prompts are read anew every time"
_OR_SMALLER: Final = "or a smaller model"
_NARROW: Final = (("q8_0", "answers change a little"), ("q4_0", "answers change noticeably"))


def ways_to_fit(fitting: Fitting, first: PlanSettings, settings: PlanSettings) -> tuple[Way, ...]:
    """Return the cheapest ways, at most three; each was estimated, and fits with a little to spare.

    Args:
        fitting: the model, the machine and what was asked.
        first: what was wished, and the defaults.
        settings: which do not fit, though what was left open is as small as it gets.
    """
    found: list[Way] = []
    calm = _with_slack(fitting)
    on_the_host = tuple(_on_the_host(calm, first)) or tuple(_on_the_host(calm, settings))
    for way in (
        *on_the_host,
        *_flags(calm, settings),
        *_beyond_flags(calm, settings),
    ):
        if way.flags not in [other.flags for other in found if other.flags]:
            found.append(way)
        if len(found) == N_WAYS:
            break
    return tuple(found)


def _with_slack(fitting: Fitting) -> Fitting:
    """Return the same with a little less memory, so that a way still fits when it is typed."""
    machine = fitting.machine
    if machine.limited_by == "profile":  # whose figures do not move
        return fitting
    left = max(0, machine.available_bytes - _SLACK_BYTES)
    machine = dataclasses.replace(machine, available_bytes=left)
    return Fitting(fitting.shape, fitting.wishes, machine, fitting.prompt_tokens)


def _flags(fitting: Fitting, settings: PlanSettings) -> Iterator[Way]:
    """Yield single flags, then two together."""
    if settings.n_batch > MIN_BATCH:
        lower = dataclasses.replace(settings, n_batch=MIN_BATCH)
        yield from _if_it_fits(
            fitting, lower, f"--batch {MIN_BATCH}", "prompts are read more slowly"
        )
    without = dataclasses.replace(settings, snapshots=False)
    if settings.snapshots:
        yield from _if_it_fits(fitting, without, "--snapshot off", _ANEW)
    yield from _shorter(fitting, settings, "")
    can_round = can_round_rows(fitting.shape) and settings.flash_attention != "off"
    if settings.kv_type in WIDE_KV_TYPES and can_round:
        yield from _rounded(fitting, settings)
        for kv_type, _ in _NARROW:
            lower = dataclasses.replace(settings, kv_type=kv_type)
            yield from _shorter(fitting, lower, f"--kv-type {kv_type} ")
        if settings.snapshots:
            yield from _rounded(fitting, without, "--snapshot off ", f"{_ANEW}, and ")


def _rounded(
    fitting: Fitting, settings: PlanSettings, before: str = "", cost_before: str = ""
) -> Iterator[Way]:
    """Yield the narrow types of keys and values that fit."""
    for kv_type, cost in _NARROW:
        lower = dataclasses.replace(settings, kv_type=kv_type)
        what = f"{cost_before}keys and values are rounded: {cost}"
        yield from _if_it_fits(fitting, lower, f"{before}--kv-type {kv_type}", what)


def _shorter(fitting: Fitting, settings: PlanSettings, before: str) -> Iterator[Way]:
    """Yield the largest context that fits."""
    n_ctx = fitting.largest_ctx(settings, settings.n_ctx - 1)
    if n_ctx:
        lower = dataclasses.replace(settings, n_ctx=n_ctx)
        what = f"conversations of {n_ctx} tokens in place of {settings.n_ctx}"
        yield from _if_it_fits(fitting, lower, f"{before}--ctx {n_ctx}", what)


def _on_the_host(fitting: Fitting, settings: PlanSettings) -> Iterator[Way]:
    """Yield the most layers on the GPU that fit, where too many were asked for."""
    for n_layers in range(settings.n_gpu_layers - 1, -1, -1):
        lower = dataclasses.replace(settings, n_gpu_layers=n_layers)
        if fitting.fits(lower):
            what = "the other layers are computed by the CPU, which is slower"
            yield from _if_it_fits(fitting, lower, f"--gpu-layers {n_layers}", what)
            return


def _if_it_fits(fitting: Fitting, lower: PlanSettings, flags: str, what: str) -> Iterator[Way]:
    found = fitting.estimate(lower)
    if fitting.is_enough(found):
        yield Way(flags, what, fitting.need_bytes(found))


def _beyond_flags(fitting: Fitting, settings: PlanSettings) -> Iterator[Way]:
    """Yield what no setting does: another file, more memory, or the risk."""
    found, machine = fitting.estimate(settings), fitting.machine
    need = fitting.need_bytes(found)
    short, needed = need - fitting.have_bytes, available_for(need)
    weights = fitting.shape.weight_bytes
    most = weights - short
    if short > 0 and most >= fitting.shape.model.n_params * _LEAST_BITS // 8:
        yield Way(
            "",
            f"a file of this model with fewer bits per weight, at most {format_bytes(most)} long "
            f"(this one: {format_bytes(weights)})",
        )
    more = _RAISES.get(machine.limited_by)
    if more is not None and short > 0:
        yield Way("", more.format(_at_least(needed - machine.available_bytes)))
    fits_resident = found.resident_bytes <= fitting.have_bytes
    cost = (
        "weights that do not fit are read from the disk for every token"
        if fits_resident
        else "it will run out of memory if the estimate is right"
    )
    yield Way("--force", f"try all the same: {cost}")
    if short > 0:
        yield Way("", f"a machine with {_at_least(needed)} of available memory, {_OR_SMALLER}")
    else:
        own = _at_least(gpu_total_for(found.gpu_bytes))
        yield Way("", f"a GPU with {own} of memory, {_OR_SMALLER}")


def _at_least(n_bytes: int) -> str:
    """Return an amount rounded up where it is rounded: what is typed after it must do."""
    step = 10**8 if n_bytes >= 10**9 else 10**5
    return format_bytes(-(-n_bytes // step) * step)
