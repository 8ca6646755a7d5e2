"""The ladder: what is tried on this machine when memory ran out, one rung after the other.

The cheapest first: a smaller batch, keys and values in 8 bits, a context that just holds what is
needed, fewer layers on the GPU, a smaller model that is there already. A rung that the user's own words
rule out, or that frees nothing, is left out; each says whether the answer's numbers change with it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from edgellm.policy.estimate import estimate
from edgellm.policy.fitting import MIN_BATCH, WIDE_KV_TYPES, can_round_rows, whole_cells
from edgellm.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from edgellm.policy.estimate import PlanSettings
    from edgellm.policy.plan import Plan

Step = Literal["batch", "kv_type", "context", "gpu_layers", "model"]
NARROW_KV_TYPE: Final = "q8_0"
_BATCH_STEP: Final = 4
_WORTH_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Artifact:
    """Another file of the same model that is on this machine.

    Attributes:
        path: of the file.
        n_bytes: its length.
    """

    path: str
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Rung:
    """One thing that is made smaller.

    Attributes:
        step: what kind of thing.
        settings: all of them, with the change.
        reason: the change in words, such as `a batch of 128 tokens in place of 512`.
        changes_numerics: whether the same tokens give other logits than before, beyond rounding.
        model_path: the file to load, None where it stays the same.
    """

    step: Step
    settings: PlanSettings
    reason: str
    changes_numerics: bool
    model_path: str | None = None


def next_lower(
    plan: Plan,
    history: Sequence[Rung] = (),
    artifacts: Sequence[Artifact] = (),
    *,
    needed_tokens: int = 0,
) -> Rung | None:
    """Return the next rung below the plan and what was tried already; None at the bottom.

    Args:
        plan: what was tried first.
        history: the rungs taken since, in order.
        artifacts: files of the same model that may be taken instead.
        needed_tokens: that the context must hold: prompt, what was answered, what is still to come; 0
            where that is not known, and the context stays.
    """
    now = history[-1].settings if history else plan.settings
    for rung in _rungs(plan, now, needed_tokens):
        if _frees(plan, now, rung.settings):
            return rung
    return _smaller_model(plan, now, history, artifacts)


def _rungs(plan: Plan, now: PlanSettings, needed_tokens: int) -> Iterator[Rung]:
    """Yield what the user's words allow to be made smaller, the cheapest first."""
    wishes = plan.wishes
    if now.n_batch > MIN_BATCH and wishes.n_batch is None:
        n_batch = max(MIN_BATCH, now.n_batch // _BATCH_STEP)
        yield Rung(
            "batch",
            dataclasses.replace(now, n_batch=n_batch),
            f"a batch of {n_batch} tokens in place of {now.n_batch}",
            changes_numerics=False,
        )
    can_round = can_round_rows(plan.shape) and now.flash_attention != "off"
    if now.kv_type in WIDE_KV_TYPES and wishes.kv_type is None and can_round:
        yield Rung(
            "kv_type",
            dataclasses.replace(now, kv_type=NARROW_KV_TYPE),
            f"keys and values as {NARROW_KV_TYPE} in place of {now.kv_type}",
            changes_numerics=True,
        )
    n_ctx = whole_cells(needed_tokens)
    if 0 < n_ctx < now.n_ctx and wishes.n_ctx is None:
        yield Rung(
            "context",
            dataclasses.replace(now, n_ctx=n_ctx),
            f"a context of {n_ctx} tokens in place of {now.n_ctx}",
            changes_numerics=False,
        )
    if now.n_gpu_layers > 0 and wishes.n_gpu_layers is None and not plan.machine.unified:
        n_layers = now.n_gpu_layers - max(1, now.n_gpu_layers // 4)
        yield Rung(
            "gpu_layers",
            dataclasses.replace(now, n_gpu_layers=n_layers),
            f"{n_layers} layers on the GPU in place of {now.n_gpu_layers}",
            changes_numerics=False,
        )


def _frees(plan: Plan, now: PlanSettings, lower: PlanSettings) -> bool:
    """Return whether a step frees memory where it ran out, and takes no more than there is elsewhere."""
    flags = plan.machine.flags or None
    before = estimate(plan.shape, now, flags=flags)
    after = estimate(plan.shape, lower, flags=flags)
    if lower.n_gpu_layers < now.n_gpu_layers:
        return before.gpu_bytes > after.gpu_bytes and after.total_bytes <= plan.have_bytes
    freed = before.total_bytes - after.total_bytes + before.gpu_bytes - after.gpu_bytes
    return bool(plan.shape.unknown) or freed >= _WORTH_BYTES


def _smaller_model(
    plan: Plan, now: PlanSettings, history: Sequence[Rung], artifacts: Sequence[Artifact]
) -> Rung | None:
    """Return the largest file that is smaller than the one tried last."""
    tried = next((rung.model_path for rung in reversed(history) if rung.model_path), None)
    sizes = {artifact.path: artifact.n_bytes for artifact in artifacts}
    limit = sizes.get(tried, 0) if tried else plan.shape.model.file_bytes
    smaller = [artifact for artifact in artifacts if artifact.n_bytes < limit]
    if not smaller:
        return None
    found = max(smaller, key=lambda artifact: (artifact.n_bytes, artifact.path))
    return Rung(
        "model",
        now,
        f"the smaller model {found.path} ({format_bytes(found.n_bytes)})",
        changes_numerics=True,
        model_path=found.path,
    )
