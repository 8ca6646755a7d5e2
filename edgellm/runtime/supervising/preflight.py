"""Preflight: what a model's header and this machine say before anything is loaded.

A plan that cannot be made, because the file or the machine does not say enough, stops nothing: the worker
tries it, and its end would be told.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from edgellm.errors import DoesNotFit, UsageError
from edgellm.formats.gguf_check import checked_model
from edgellm.formats.gguf_shape import shape_of
from edgellm.hw.machine import machine
from edgellm.policy.fitting import MIN_AUTO_CTX
from edgellm.policy.plan import Wishes, fit
from edgellm.units import format_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from edgellm.core import ModelInfo
    from edgellm.policy.estimate import PlanSettings
    from edgellm.policy.plan import Plan
    from edgellm.runtime.session import SessionOptions

_N_WAYS: Final = 3


def read_plan(path: Path, options: SessionOptions) -> tuple[ModelInfo, Plan]:
    """Read a model's header and plan for this machine.

    Raises:
        ModelNotFound, ModelCorrupt, ModelUnsupported: the file is refused.
    """
    header, model = checked_model(path)
    return model, fit(shape_of(header, model), wishes_of(options), machine())


def wishes_of(options: SessionOptions) -> Wishes:
    """Return what a user asked for; settings left at their defaults are free.

    Raises:
        UsageError: one is nothing of its kind.
    """
    engine, default = options.engine, type(options.engine)()
    if not isinstance(engine.kv_type, str):
        raise UsageError(f"kv_type must be the name of a type, not {engine.kv_type!r}")
    return Wishes(
        n_ctx=options.n_ctx,
        n_batch=None if engine.n_batch == default.n_batch else engine.n_batch,
        kv_type=None if engine.kv_type == default.kv_type else engine.kv_type,
        n_gpu_layers=engine.n_gpu_layers,
        n_threads=engine.n_threads or None,
        flash_attention=None if engine.flash_attention == "auto" else engine.flash_attention,
        repack=None if engine.repack else False,
        snapshots=options.snapshot.value != "off",
    )


def with_settings(
    options: SessionOptions, plan: Plan, settings: PlanSettings | None = None
) -> SessionOptions:
    """Return the options to open a worker with.

    Args:
        options: the user's.
        plan: made for them.
        settings: of a rung below the plan; None takes the plan's own.
    """
    asked = plan.settings if settings is None else settings
    engine = options.engine
    if plan.wishes.n_batch is None:
        engine = dataclasses.replace(engine, n_batch=asked.n_batch)
    if asked.kv_type != plan.settings.kv_type:  # else the user's own, whatever it is
        engine = dataclasses.replace(engine, kv_type=asked.kv_type)
    if plan.machine.gpus:
        engine = dataclasses.replace(engine, n_gpu_layers=asked.n_gpu_layers)
    # The default size grows with the conversation; what was made smaller on purpose stays so.
    grows = asked.n_ctx >= min(plan.shape.model.n_ctx_train, MIN_AUTO_CTX)
    n_ctx = options.n_ctx if options.n_ctx or grows else asked.n_ctx
    return dataclasses.replace(options, engine=engine, n_ctx=n_ctx)


def refusal(plan: Plan, path: Path) -> DoesNotFit:
    """Return the error for a plan that does not fit, with the cheapest ways to make it fit."""
    kv_bytes = plan.estimate.kv_bytes + plan.estimate.gpu_kv_bytes
    what = "the model does not fit"
    if plan.wishes.n_ctx is not None:
        what = f"a context of {plan.wishes.n_ctx} tokens does not fit"
    ways = [f"{way.flags} ({way.what})" if way.flags else way.what for way in plan.ways[:_N_WAYS]]
    need_bytes, have_bytes, whose = plan.need_bytes, plan.have_bytes, ""
    if plan.gpu_have_bytes is not None and need_bytes <= have_bytes:
        need_bytes, have_bytes = plan.estimate.gpu_bytes, plan.gpu_have_bytes
        whose = "the GPU's "
    return DoesNotFit(
        f"{what}: keys and values take {format_bytes(kv_bytes)}, all together "
        f"{format_bytes(need_bytes)}, {format_bytes(have_bytes)} of {whose}memory are free",
        path=path,
        hint=f"ways to fit: {'; '.join(ways)}" if ways else "choose a smaller model",
        need_bytes=need_bytes,
        have_bytes=have_bytes,
    )
