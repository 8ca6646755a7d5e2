"""`edgellm snapshots purge`: every file that the store ever wrote goes."""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated, Final

import typer

from edgellm.errors import EXIT_FAILURE
from edgellm.units import format_bytes

EXAMPLES: Final = """
edgellm snapshots purge
edgellm snapshots purge --yes --forget-key
"""


def purge(
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    forget: Annotated[
        bool, typer.Option("--forget-key", help="Remove the store's key from the keyring, too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """Remove everything that the store ever wrote; exits 1 if something is left.

    Snapshots of every version, plain and encrypted, texts, locks, figures and what killed programs
    left behind. Files of others, and with other names than the store gives, are named and stay.
    """
    from edgellm.cli import render
    from edgellm.paths import cache_dir, snapshots_dir
    from edgellm.store import key_sources
    from edgellm.store.purge import purge as purge_store

    root = snapshots_dir()
    if not yes and not _confirmed():
        render.write_err("nothing was removed\n")
        raise typer.Exit(EXIT_FAILURE)
    purged = purge_store(root, [cache_dir() / "losses"])
    forgotten = key_sources.forget_key(root) if forget else False
    with contextlib.suppress(render.StdoutClosed):  # they are gone, whether it is read or not
        if as_json:
            render.json_line(
                {
                    "type": "purged",
                    "n_files": purged.n_files,
                    "n_bytes": purged.n_bytes,
                    "key_forgotten": forgotten,
                    "left": [str(finding.path) for finding in purged.left],
                }
            )
        else:
            for finding in purged.left:
                render.finding(finding.path, finding.problem)
            render.write_out(f"files removed: {purged.n_files} ({format_bytes(purged.n_bytes)})\n")
            if forget:
                render.write_out(f"key forgotten: {'yes' if forgotten else 'there was none'}\n")
    if purged.left:
        render.error(f"left: {len(purged.left)}", "remove them by hand, if they are yours")
        raise typer.Exit(EXIT_FAILURE)


def _confirmed() -> bool:
    """Ask on a terminal; a script has decided."""
    from edgellm.cli import render

    if sys.stdin is None or not sys.stdin.isatty():
        return True
    render.write_err("remove everything that the store has written? [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")
