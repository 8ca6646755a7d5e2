"""`edgellm stats`: what the prefix snapshots did on this machine, model by model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edgellm.store.answers import SnapshotInfo
    from edgellm.store.ledger import Totals

EXAMPLES: Final = """
edgellm stats
edgellm stats --json
edgellm stats --cost
"""
_SHOWN_ID: Final = 12
_HEADING: Final = (
    *("MODEL", "REQUESTS", "HITS", "RATE", "TOKENS SAVED", "TIME SAVED"),
    *("READ", "WRITTEN", "ON DISK"),
)


@dataclass(frozen=True, slots=True)
class _Row:
    """One model's figures, with what the store says of it."""

    totals: Totals
    name: str
    disk_bytes: int


def stats(
    *,
    cost: Annotated[
        bool, typer.Option("--cost", help="What answers cost, here and at endpoints, instead.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """Show how often snapshots were of use, and what they saved, for each model.

    RATE is the share of hits among the requests for which a snapshot was looked for. TIME SAVED is
    the time that the saved tokens would have taken at the speed measured with this model on this
    machine, less the time to restore them. With --cost, tokens and money: SPEND AVOIDED is what the
    tokens made here would have cost at the configured endpoint, less `local_usd_per_mtok`.
    """
    from edgellm.cli import render
    from edgellm.cli.costs import print_costs
    from edgellm.paths import snapshots_dir
    from edgellm.store.ledger import Ledger
    from edgellm.store.snapshots import SnapshotStore

    if cost:
        print_costs(as_json=as_json)
        return
    root = snapshots_dir()
    rows = _rows(Ledger(root).totals(), SnapshotStore(root).entries())
    if as_json:
        for row in rows:
            render.json_line(_plain(row))
    elif rows:
        render.table([_HEADING, *(_shown(row) for row in rows)])
    else:
        render.write_err("no requests yet\n")


def _rows(totals: Iterable[Totals], entries: Iterable[SnapshotInfo]) -> list[_Row]:
    """Name the models of the ledger, which holds no text, by what their snapshots say."""
    names: dict[str, str] = {}
    disk_bytes: dict[str, int] = {}
    for entry in entries:
        model = entry.field("model")
        names.setdefault(model, entry.field("name"))
        disk_bytes[model] = disk_bytes.get(model, 0) + entry.n_bytes
    return [_Row(one, names.get(one.model, ""), disk_bytes.get(one.model, 0)) for one in totals]


def _shown(row: _Row) -> tuple[str, ...]:
    from edgellm.units import format_bytes

    one = row.totals
    return (
        f"{row.name} {one.model[:_SHOWN_ID]}".strip(),
        str(one.n_requests),
        str(one.n_hits),
        f"{one.n_hits / one.n_asked:.0%}" if one.n_asked else "-",
        str(one.reused_tokens),
        "-" if one.saved_s is None else f"{one.saved_s:.1f} s",
        format_bytes(one.restore_bytes),
        format_bytes(one.saved_bytes),
        format_bytes(row.disk_bytes),
    )


def _plain(row: _Row) -> dict[str, Any]:
    one = row.totals
    return {
        "type": "stats",
        "model": one.model,
        "name": row.name,
        "n_requests": one.n_requests,
        "n_asked": one.n_asked,
        "n_hits": one.n_hits,
        "codes": dict(one.codes),
        "reused_tokens": one.reused_tokens,
        "prefill_tokens_per_s": one.prefill_tokens_per_s,
        "saved_s": one.saved_s,
        "restore_s": one.restore_s,
        "restore_bytes": one.restore_bytes,
        "saved_bytes": one.saved_bytes,
        "disk_bytes": row.disk_bytes,
    }
