"""`edgellm devices`: the kinds of machine that `edgellm plan --device` knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from edgellm.units import format_bytes

if TYPE_CHECKING:
    from edgellm.hw.profiles import Profile

EXAMPLES: Final = """
edgellm devices
edgellm devices jetson-orin-nano-super-8gb
edgellm devices --json
"""


def devices(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Show all that is known of this one.")
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a line.")] = False,
) -> None:
    """List kinds of machine to plan for, with their source."""
    from edgellm.cli import render
    from edgellm.hw.profiles import profile, profiles

    found = profiles() if name is None else (profile(name),)
    if as_json:
        for one in found:
            render.json_line({"type": "device", **device_facts(one)})
    elif name is None:
        render.table([_HEADING, *(_row(one) for one in found)])
    else:
        render.facts(_pairs(found[0]))


def device_facts(one: Profile) -> dict[str, Any]:
    """Return a profile as plain values."""
    gpu = one.gpu
    return {
        "name": one.id,
        "title": one.name,
        "kind": one.kind,
        "total_bytes": one.total_bytes,
        "usable_bytes": one.usable_bytes,
        "usable_evidence": one.usable_evidence,
        "bandwidth_gb_s": one.bandwidth_gb_s,
        "unified": one.unified,
        "isa": one.isa,
        "cpus": one.n_cpus,
        "flags": sorted(one.flags),
        "gpu": None if gpu is None else gpu.name,
        "gpu_kind": None if gpu is None else gpu.kind,
        "gpu_bytes": None if gpu is None or one.unified else gpu.total_bytes,
        "gpu_bandwidth_gb_s": None if gpu is None else gpu.bandwidth_gb_s,
        "compute_capability": None if gpu is None else gpu.compute_capability or None,
        "source_url": one.source_url,
        "verified": one.verified,
        "notes": one.notes,
    }


_HEADING: Final = ("NAME", "MEMORY", "USABLE", "GB/S", "GPU", "VERIFIED")


def _row(one: Profile) -> tuple[str, ...]:
    return (
        one.id,
        format_bytes(one.total_bytes),
        format_bytes(one.usable_bytes),
        f"{one.bandwidth_gb_s:g}",
        _gpu_text(one),
        "yes" if one.verified else "no",
    )


def _gpu_text(one: Profile) -> str:
    gpu = one.gpu
    if gpu is None:
        return "-"
    if one.unified or gpu.total_bytes is None:
        return f"{gpu.kind}, unified"
    return f"{gpu.kind}, {format_bytes(gpu.total_bytes)} at {gpu.bandwidth_gb_s or 0:g}"


def _pairs(one: Profile) -> list[tuple[str, str]]:
    capability = one.gpu.compute_capability if one.gpu else ""
    return [
        ("name", one.id),
        ("machine", one.name),
        ("memory", f"{format_bytes(one.total_bytes)} at {one.bandwidth_gb_s:g} GB/s"),
        ("usable", f"{format_bytes(one.usable_bytes)}: {one.usable_evidence}"),
        ("CPU", f"{one.isa}, {one.n_cpus} threads"),
        ("GPU", _gpu_text(one) + (f", compute capability {capability}" if capability else "")),
        ("source", one.source_url),
        ("verified", "the bandwidth was read there" if one.verified else "no"),
        ("notes", one.notes or "none"),
    ]
