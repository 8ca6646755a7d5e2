"""`edgellm snapshots prune`: give back room, the least recently used first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from edgellm.paths import CAP_VARIABLE

if TYPE_CHECKING:
    from edgellm.store.disk.room import Pruned

EXAMPLES: Final = """
edgellm snapshots prune
edgellm snapshots prune --max 2GB
"""


def prune(
    *,
    most: Annotated[
        str,
        typer.Option(
            "--max",
            metavar="BYTES",
            help=f"What may be left, as 20GB; without it {CAP_VARIABLE}, or 10 GiB or a tenth of "
            "the disk.",
        ),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """Remove what nobody can use any more, then snapshots, the least recently used first."""
    from edgellm.paths import parse_cap, snapshots_dir
    from edgellm.store.snapshots import SnapshotStore

    max_bytes = parse_cap(most, "--max") if most else None
    _print(SnapshotStore(snapshots_dir()).prune(max_bytes), as_json=as_json)


def _print(done: Pruned, *, as_json: bool) -> None:
    from dataclasses import asdict

    from edgellm.cli import render
    from edgellm.units import format_bytes

    if as_json:
        render.json_line({"type": "pruned", **asdict(done)})
        return
    render.facts(
        [
            ("snapshots removed", str(done.n_snapshots)),
            ("leftovers removed", str(done.n_orphans)),
            ("freed", format_bytes(done.freed_bytes)),
            ("left", format_bytes(done.left_bytes)),
            ("other files", format_bytes(done.other_bytes)),
        ]
    )
