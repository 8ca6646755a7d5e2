"""The plan: settings under which a model fits a machine, each with its reason, or ways to make it fit.

Pure: sizes, wishes and facts in, a plan out. What the user asked for is never changed, and nothing that
changes answers is chosen to save memory; where it does not fit, the plan says so and names what would.
What cannot be estimated is a warning, never a refusal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from edgellm.formats.gguf_shape import ModelShape
    from edgellm.hw.machine import MachineFacts
    from edgellm.policy.estimate import Estimate, PlanSettings


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
        need_bytes: of the host's memory, the GPU's part counted where both are one.
        have_bytes: of the host's memory that may be taken, margin kept.
        margin_bytes: of the available memory that is left alone.
        gpu_have_bytes: of the GPUs' memory that may be taken, None without one or where it is not told.
        fits: whether the estimate stays within `have_bytes`, and on the GPU; true where something of
            the model is not known.
        reasons: a setting's name and why it has its value, for each setting.
        ways: what would make it fit, the cheapest first; empty if it fits.
        slow_types: types of weights that this CPU has no fast kernel for.
        full_kv_bytes: what keys and values of the whole trained context would take.
        tokens_per_s: how fast an answer can come at most, None where the bandwidth is not known.
        warnings: what is not known, or will be slow.
        shape: what was planned for.
        machine: where.
        wishes: what the user asked for.
    """

    settings: PlanSettings
    estimate: Estimate
    need_bytes: int
    have_bytes: int
    margin_bytes: int
    gpu_have_bytes: int | None
    fits: bool
    reasons: tuple[tuple[str, str], ...]
    ways: tuple[Way, ...]
    slow_types: tuple[str, ...]
    full_kv_bytes: int
    tokens_per_s: float | None
    warnings: tuple[str, ...]
    shape: ModelShape
    machine: MachineFacts
    wishes: Wishes


def fit(shape: ModelShape, wishes: Wishes, machine: MachineFacts, prompt_tokens: int = 0) -> Plan:
    """Return the settings for a model on a machine.

    Args:
        shape: the model's sizes.
        wishes: what the user asked for.
        machine: where it is to run.
        prompt_tokens: length of the prompt, 0 where it is not known yet.
    """
    from edgellm.policy.fitting import Fitting  # which knows the classes above

    return Fitting(shape, wishes, machine, prompt_tokens).plan()
