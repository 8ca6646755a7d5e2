"""`edgellm plan`: the settings a model would be run with, here or elsewhere. Nothing is loaded.

It exits with the code of what does not fit where it would not.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from edgellm.cli.flags import INT_MAX, gpu_layers
from edgellm.cli.options import KvType  # noqa: TC001  # typer reads the annotations at run time
from edgellm.core import Tier
from edgellm.errors import EXIT_DOES_NOT_FIT, UsageError
from edgellm.ggml_types import MAX_THREADS
from edgellm.units import format_bytes

if TYPE_CHECKING:
    from edgellm.policy.plan import Plan, Way, Wishes

EXAMPLES: Final = """
edgellm plan model.gguf
edgellm plan model.gguf --device raspberry-pi-5-8gb
edgellm plan model.gguf --ctx 32768 --kv-type q8_0
"""
_PARTS: Final = (
    ("weights, mapped", "weights_mapped_bytes"),
    ("weights, copied", "weights_resident_bytes"),
    ("keys and values", "kv_bytes"),
    ("computing", "compute_bytes"),
    ("a snapshot's copy", "staging_bytes"),
    ("process", "process_bytes"),
    ("GPU: weights", "gpu_weights_bytes"),
    ("GPU: keys and values", "gpu_kv_bytes"),
    ("GPU: computing", "gpu_compute_bytes"),
)


def plan(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="GGUF file; its header is read.")],
    *,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", metavar="NAME", help="Plan for this machine of `edgellm devices`."
        ),
    ] = None,
    ctx: Annotated[
        int | None, typer.Option("--ctx", metavar="N", min=1, help="Context in tokens.")
    ] = None,
    kv_type: Annotated[
        KvType | None, typer.Option("--kv-type", help="Type of keys and values.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", metavar="N", min=1, help="Tokens per decode call.")
    ] = None,
    layers: Annotated[
        str, typer.Option("--gpu-layers", metavar="auto|N", help="Layers on the GPU.")
    ] = "auto",
    threads: Annotated[
        int, typer.Option("--threads", metavar="N", min=0, help="CPU threads; 0 takes the quota.")
    ] = 0,
    prompt_tokens: Annotated[
        int, typer.Option("--prompt-tokens", metavar="N", min=0, help="Length of the prompt.")
    ] = 0,
    max_tokens: Annotated[
        int | None,
        typer.Option("--max-tokens", "-n", metavar="N", min=1, help="Length of the answer."),
    ] = None,
    snapshot: Annotated[
        Tier, typer.Option("--snapshot", help="As of `run`; off counts no snapshot's copy.")
    ] = Tier.AUTO,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say whether a model fits, and how; exit 4 where it does not."""
    from edgellm.cli import render
    from edgellm.policy.plan import Wishes

    limits = (
        ("--ctx", ctx, INT_MAX),
        ("--batch", batch, INT_MAX),
        ("--threads", threads, MAX_THREADS),
    )
    for name, value, most in limits:
        if value is not None and value > most:
            raise UsageError(f"{name} must be at most {most}, not {value}")
    found = planned(
        Path(model),
        Wishes(
            n_ctx=ctx,
            n_batch=batch,
            kv_type=None if kv_type is None else kv_type.value,
            n_gpu_layers=gpu_layers(layers),
            n_threads=threads or None,
            snapshots=snapshot is not Tier.OFF,
            max_tokens=max_tokens,
        ),
        device,
        prompt_tokens,
    )
    if as_json:
        render.json_line({"type": "plan", "file": model, **plan_facts(found)})
    else:
        render.facts(_lines(found))
        for way in found.ways:
            render.labelled("hint", _way_text(way))
    for warning in (*found.shape.model.warnings, *found.warnings):
        render.warning(warning)
    if not found.fits:
        raise typer.Exit(EXIT_DOES_NOT_FIT)


def planned(path: Path, wishes: Wishes, device: str | None = None, prompt_tokens: int = 0) -> Plan:
    """Plan for a file by its header.

    Args:
        path: a GGUF file.
        wishes: what was asked for.
        device: name of a profile, None plans for this machine.
        prompt_tokens: length of the prompt, 0 where it is not known.

    Raises:
        ModelError: the file is not there, not a GGUF, contradicts itself, or cannot be run here.
        UsageError: there is no such profile.
    """
    from edgellm.formats.gguf_check import checked_model
    from edgellm.formats.gguf_shape import shape_of
    from edgellm.hw.machine import machine
    from edgellm.hw.profiles import profile
    from edgellm.policy.plan import fit

    facts = machine(with_profile=True) if device is None else profile(device).machine()
    header, model = checked_model(path)
    return fit(shape_of(header, model), wishes, facts, prompt_tokens)


def plan_facts(found: Plan) -> dict[str, Any]:
    """Return a plan as plain values, bytes and tokens in their names."""
    import dataclasses

    machine, settings = found.machine, found.settings
    return {
        "name": found.shape.model.name,
        "fits": found.fits,
        "need_bytes": found.need_bytes,
        "have_bytes": found.have_bytes,
        "margin_bytes": found.margin_bytes,
        "limited_by": machine.limited_by,
        "gpu_need_bytes": found.estimate.gpu_bytes,
        "gpu_have_bytes": found.gpu_have_bytes,
        "unified": machine.unified,
        "settings": dataclasses.asdict(settings),
        "reasons": dict(found.reasons),
        "estimate": dataclasses.asdict(found.estimate),
        "context_tokens_trained": found.shape.model.n_ctx_train,
        "bytes_of_whole_context": found.full_kv_bytes,
        "slow_types": list(found.slow_types),
        "bandwidth_gb_s": machine.bandwidth_gb_s,
        "tokens_per_s_at_most": found.tokens_per_s,
        "profile": machine.profile,
        "ways": [dataclasses.asdict(way) for way in found.ways],
        "warnings": [*found.shape.model.warnings, *found.warnings],
    }


def _lines(found: Plan) -> list[tuple[str, str]]:
    reasons, settings = dict(found.reasons), found.settings
    verdict = "yes" if found.fits else "no"
    if found.shape.unknown:
        verdict = "not known"
    need, have = format_bytes(found.need_bytes), format_bytes(found.have_bytes)
    if not found.fits and found.need_bytes <= found.have_bytes:
        verdict = "no, the GPU's memory is too small"
    return [
        ("model", found.shape.model.name),
        ("machine", found.machine.profile or "this one"),
        ("fits", f"{verdict}: {need} needed, {have} may be taken"),
        ("memory", reasons["memory"]),
        *_gpu_lines(found),
        *[
            (f"  {label}", format_bytes(n_bytes))
            for label, field in _PARTS
            if (n_bytes := getattr(found.estimate, field))
        ],
        ("context", f"{settings.n_ctx} tokens ({reasons['n_ctx']})"),
        ("keys and values", f"{settings.kv_type} ({reasons['kv_type']})"),
        ("batch", f"{settings.n_batch} tokens ({reasons['n_batch']})"),
        ("GPU layers", f"{settings.n_gpu_layers} ({reasons['n_gpu_layers']})"),
        ("threads", f"{settings.n_threads} ({reasons['n_threads']})"),
        ("whole context", _whole_text(found)),
        ("speed", _speed_text(found)),
    ]


def _gpu_lines(found: Plan) -> list[tuple[str, str]]:
    if not found.estimate.gpu_bytes or found.machine.unified:
        return []
    have = found.gpu_have_bytes
    there = "how much there is, is not known" if have is None else f"{format_bytes(have)} there"
    return [("GPU memory", f"{format_bytes(found.estimate.gpu_bytes)} needed, {there}")]


def _whole_text(found: Plan) -> str:
    n_bytes, trained = found.full_kv_bytes, found.shape.model.n_ctx_train
    whole = format_bytes(n_bytes) if n_bytes else "nothing"
    return f"keys and values of all {trained} tokens would take {whole}"


def _speed_text(found: Plan) -> str:
    rate, bandwidth = found.tokens_per_s, found.machine.bandwidth_gb_s
    if rate is None:
        return "not known; `edgellm doctor` measures the memory"
    of = "the GPU's memory" if found.estimate.gpu_bytes and not found.machine.unified else ""
    of = of or f"memory at {bandwidth:g} GB/s"
    return f"at most {rate:.1f} tokens/s, by {of}"


def _way_text(way: Way) -> str:
    need = "" if way.need_bytes is None else f" ({format_bytes(way.need_bytes)} needed then)"
    return f"{way.flags}: {way.what}{need}" if way.flags else way.what
