"""`edgellm snapshots ls`, `check` and `rm`: what the prefix store keeps."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from edgellm.errors import EXIT_FAILURE, UsageError
from edgellm.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgellm.store.checkup import Finding
    from edgellm.store.snapshots import SnapshotInfo, SnapshotStore

EXAMPLES: Final = """
edgellm snapshots ls
edgellm snapshots check --fix
edgellm snapshots rm --all
"""
LS_EXAMPLES: Final = """
edgellm snapshots ls
edgellm snapshots ls --json
"""
CHECK_EXAMPLES: Final = """
edgellm snapshots check
edgellm snapshots check --fix
"""
RM_EXAMPLES: Final = """
edgellm snapshots rm 3fa9
edgellm snapshots rm --all --yes
"""
FIX_HINT: Final = "run `edgellm snapshots check --fix`"
_SHOWN_KEY: Final = 12

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]


def ls(*, as_json: AsJson = False) -> None:
    """List the snapshots: key, tokens, size, age, tier and model."""
    from edgellm.cli import render

    entries = sorted(open_store().entries(), key=lambda entry: entry.created_s, reverse=True)
    if as_json:
        for entry in entries:
            render.json_line({"type": "snapshot", **_plain(entry)})
        return
    if not entries:
        render.write_err("no snapshots\n")
        return
    heading = ("KEY", "TOKENS", "SIZE", "CREATED", "TIER", "MODEL")
    render.table([heading, *(_row(entry) for entry in entries)])


def check(
    *,
    fix: Annotated[
        bool, typer.Option("--fix", help="Remove what cannot be used, close what others can read.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Verify every snapshot; exits 1 if a problem remains."""
    from edgellm.cli import render

    findings = open_store().check(fix=fix)
    for finding in findings:
        if as_json:
            render.json_line(
                {
                    "type": "finding",
                    "path": str(finding.path),
                    "problem": finding.problem,
                    "fixed": finding.fixed,
                }
            )
        else:
            render.write_out(f"{finding.path}: {finding.problem}{_done(finding)}\n")
    left = sum(not finding.fixed for finding in findings)
    if not as_json:
        render.write_out(f"problems: {len(findings)}, left: {left}\n")
    if left:
        more = not fix and any(finding.fixable for finding in findings)
        render.error(f"problems left: {left}", FIX_HINT if more else "")
        raise typer.Exit(EXIT_FAILURE)


def rm(
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="KEY", help="Keys, or unique starts of them.")
    ] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="Remove all snapshots.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove snapshots; the next run makes them again."""
    from edgellm.cli import render

    if every == bool(keys):
        raise UsageError("give keys or --all", hint="`edgellm snapshots ls` shows the keys")
    store = open_store()
    entries = tuple(store.entries())
    chosen = None if every else full_keys(keys or (), [entry.key for entry in entries])
    n = len(entries) if chosen is None else len(chosen)
    if n and not yes and not _confirmed(n):
        render.write_err("nothing was removed\n")
        raise typer.Exit(EXIT_FAILURE)
    removed = store.remove(chosen)
    with contextlib.suppress(render.StdoutClosed):  # they are gone, whether it is read or not
        if as_json:
            render.json_line({"type": "removed", "n": removed})
        else:
            render.write_out(f"removed: {removed}\n")


def full_keys(starts: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the keys that `starts` are the unique starts of.

    Raises:
        UsageError: none or several keys start so.
    """
    found = []
    for start in starts:
        matches = sorted({key for key in known if start and key.startswith(start)})
        if len(matches) != 1 and start not in matches:
            problem = f"{len(matches)} snapshots start" if matches else "no snapshot starts"
            raise UsageError(f"{problem} with {start!r}", hint="see `edgellm snapshots ls`")
        found.append(start if start in matches else matches[0])
    return list(dict.fromkeys(found))


def open_store() -> SnapshotStore:
    """Return the store of this machine's user."""
    from edgellm.paths import snapshots_dir
    from edgellm.store.key_sources import open_key
    from edgellm.store.snapshots import SnapshotStore

    root = snapshots_dir()
    return SnapshotStore(root, key=open_key(None, root))


def _done(finding: Finding) -> str:
    """Say what was done: a file whose mode was mended is still there."""
    if not finding.fixed:
        return ""
    return " (mended)" if os.path.lexists(finding.path) else " (removed)"


def _row(entry: SnapshotInfo) -> tuple[str, ...]:
    size = format_bytes(entry.n_bytes)
    # Two files of one name differ in the hash of their content.
    model = f"{entry.field('name')} {entry.field('model')[:_SHOWN_KEY]}".strip()
    made = day(entry.created_s)
    return (entry.key[:_SHOWN_KEY], str(entry.n_tokens), size, made, entry.tier.value, model)


def day(unix_s: int) -> str:
    """Return local date and time; a file may claim any number."""
    from datetime import datetime

    try:
        return datetime.fromtimestamp(unix_s).astimezone().strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return "?"


def _plain(entry: SnapshotInfo) -> dict[str, Any]:
    return {
        "key": entry.key,
        "path": str(entry.path),
        "n_tokens": entry.n_tokens,
        "n_bytes": entry.n_bytes,
        "created_s": entry.created_s,
        "tier": entry.tier.value,
        "fields": dict(entry.fields),
    }


def _confirmed(n: int) -> bool:
    """Ask on a terminal; a script that named what goes has decided."""
    from edgellm.cli import render

    if sys.stdin is None or not sys.stdin.isatty():
        return True
    render.write_err(f"remove {n} snapshots? [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")
