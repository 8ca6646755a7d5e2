"""The plan: settings under which a model fits a machine, each with its reason, or ways to make it fit.

Pure: sizes, wishes and facts in, a plan out. What the user asked for is never changed; where it does
not fit, the plan says so and names what would. What cannot be estimated is a warning, never a refusal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from edgellm.policy.estimate import PlanSettings, estimate

if TYPE_CHECKING:
    from edgellm.formats.gguf_shape import ModelShape
    from edgellm.hw.machine import MachineFacts
    from edgellm.policy.estimate import Estimate

MIN_AUTO_CTX: Final = 4096
ANSWER_ROOM: Final = 1024
_MIN_MARGIN_BYTES: Final = 64 << 20
_MAX_MARGIN_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user asked for; None leaves it to the plan.

    Attributes:
        n_ctx: tokens of the context.
        n_batch: tokens of one decode call.
        kv_type: ggml's name of the type of keys and values.
        n_gpu_layers: layers on the GPU.
        n_threads: CPU threads.
        flash_attention: how attention is computed.
        repack: whether weights may be copied into a faster layout.
        snapshots: whether prefixes are kept.
        max_tokens: the longest answer.
    """

    n_ctx: int | None = None
    n_batch: int | None = None
    kv_type: str | None = None
    n_gpu_layers: int | None = None
    n_threads: int | None = None
    flash_attention: Literal["auto", "on", "off"] | None = None
    repack: bool | None = None
    snapshots: bool = True
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Way:
    """Something that would make it fit.

    Attributes:
        flags: what to type, such as `--ctx 2048`; "" where no flag does it.
        what: in words, with the cost.
        need_bytes: of the host's memory then; None where that depends on what is done.
    """

    flags: str
    what: str
    need_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings to load a model with, and why.

    Attributes:
        settings: all decided.
        estimate: of the memory they take.
        have_bytes: of the host's memory that may be taken, margin kept.
        margin_bytes: of the available memory that is left alone.
        fits: whether the estimate stays within `have_bytes`, and on the GPU; true where a part of it
            is not known.
        reasons: a setting's name and why it has its value, for each setting.
        ways: what would make it fit, the cheapest first; empty if it fits.
        slow_types: types of weights that this CPU has no fast kernel for.
        warnings: what is not known, or will be slow.
        shape: what was planned for.
        machine: where.
        wishes: what the user asked for.
    """

    settings: PlanSettings
    estimate: Estimate
    have_bytes: int
    margin_bytes: int
    fits: bool
    reasons: tuple[tuple[str, str], ...]
    ways: tuple[Way, ...]
    slow_types: tuple[str, ...]
    warnings: tuple[str, ...]
    shape: ModelShape
    machine: MachineFacts
    wishes: Wishes


def margin_bytes(available_bytes: int) -> int:
    """Return what is left to others: a tenth of what is available, 64 MiB to 1 GiB."""
    return max(_MIN_MARGIN_BYTES, min(_MAX_MARGIN_BYTES, available_bytes // 10))


def default_ctx(n_ctx_train: int, prompt_tokens: int) -> int:
    """Return the context taken where nobody asked: max(4096, prompt + 1024), or the model's own."""
    return min(n_ctx_train, max(MIN_AUTO_CTX, prompt_tokens + ANSWER_ROOM))


def fit(shape: ModelShape, wishes: Wishes, machine: MachineFacts, prompt_tokens: int = 0) -> Plan:
    """Return the settings for a model on a machine.

    Args:
        shape: the model's sizes.
        wishes: what the user asked for.
        machine: where it is to run.
        prompt_tokens: length of the prompt, 0 where it is not known yet.
    """
    settings = PlanSettings(
        n_ctx=wishes.n_ctx or default_ctx(shape.model.n_ctx_train, prompt_tokens),
        n_batch=wishes.n_batch or 512,
        kv_type=wishes.kv_type or "f16",
        n_gpu_layers=wishes.n_gpu_layers or 0,
        n_threads=wishes.n_threads or machine.share.n_threads,
        flash_attention=wishes.flash_attention or "auto",
        repack=wishes.repack is not False,
        snapshots=wishes.snapshots,
    )
    found = estimate(shape, settings, flags=machine.flags or None)
    margin = margin_bytes(machine.available_bytes)
    have = max(0, machine.available_bytes - margin)
    return Plan(
        settings=settings,
        estimate=found,
        have_bytes=have,
        margin_bytes=margin,
        fits=bool(found.unknown) or found.total_bytes <= have,
        reasons=(),
        ways=(),
        slow_types=(),
        warnings=found.unknown,
        shape=shape,
        machine=machine,
        wishes=wishes,
    )
