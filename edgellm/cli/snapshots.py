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
    from collections.abc import Collection, Sequence
    from pathlib import Path

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
edgellm snapshots rm --plain
"""
FIX_HINT: Final = "run `edgellm snapshots check --fix`"
_SHOWN_KEY: Final = 12

Encrypt = Annotated[
    str | None,
    typer.Option(
        "--snapshot-encrypt",
        metavar="keyring|file:PATH",
        help="Where the key of an encrypted store is, as for run.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]


def ls(*, encrypt: Encrypt = None, as_json: AsJson = False) -> None:
    """List the snapshots: key, tokens, size, ages, what they lean on, tier and model.

    A snapshot that leans on another one, its base, keeps only the tokens after it, +N of them, and
    has the size of those alone. `turn` marks what was kept after an answer.
    Snapshots of an imported pack stand here from their first use on.
    """
    from edgellm.cli import render
    from edgellm.store.disk.folder import snapshots_in
    from edgellm.store.packs.imports import Imports
    from edgellm.store.texts import keys_with_text

    store = open_store(encrypt)
    entries = sorted(store.entries(), key=lambda entry: entry.created_s, reverse=True)
    packs, turns = list(Imports(store.files).packs()), keys_with_text(store.root)
    if as_json:
        for entry in entries:
            is_turn = entry.key in turns
            render.json_line({"type": "snapshot", **_plain(entry), "is_turn": is_turn})
        for name, _, n_waiting in packs:
            render.json_line({"type": "imported", "pack": name, "n_waiting": n_waiting})
        return
    if entries:
        heading = ("KEY", "TOKENS", "SIZE", "CREATED", "USED", "BASE", "TIER", "MODEL")
        rows = [heading, *(_row(entry, turns) for entry in entries)]
        loras = [_adapters(entry) for entry in entries]
        if any(loras):
            rows = [(*row, lora) for row, lora in zip(rows, ("LORA", *loras), strict=True)]
        render.table(rows)
    for _, manifest, n_waiting in packs:
        render.write_err(
            f"imported for {manifest.field('name')}, waiting for the first use: {n_waiting}\n"
        )
    n_other = sum(1 for _ in snapshots_in(store.root)) - len(entries)
    if n_other > 0:  # damaged, or encrypted under a key that was not given
        render.write_err(f"not listed: {n_other}; `edgellm snapshots check` says why\n")
    elif not entries and not packs:
        render.write_err("no snapshots\n")


def check(
    *,
    fix: Annotated[
        bool, typer.Option("--fix", help="Remove what cannot be used, close what others can read.")
    ] = False,
    encrypt: Encrypt = None,
    as_json: AsJson = False,
) -> None:
    """Verify every snapshot; exits 1 if a problem remains."""
    from edgellm.cli import render

    findings = open_store(encrypt).check(fix=fix)
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
            render.finding(finding.path, finding.problem + _done(finding))
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
    plain: Annotated[
        bool, typer.Option("--plain", help="Remove those that are not encrypted.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    encrypt: Encrypt = None,
    as_json: AsJson = False,
) -> None:
    """Remove snapshots; the next run makes them again. Exits 1 if one could not be removed."""
    from edgellm.cli import render
    from edgellm.store.disk.folder import plain_in
    from edgellm.store.packs.imports import Imports

    if every + plain + bool(keys) != 1:
        raise UsageError(
            "give keys, --all or --plain", hint="`edgellm snapshots ls` shows the keys"
        )
    store = open_store(encrypt)
    entries = tuple(store.entries())
    imports = Imports(store.files)
    chosen = None if every else full_keys(keys or (), [entry.key for entry in entries])
    if plain:  # a store with a key lists none of them
        chosen = list(dict.fromkeys(path.stem for path in plain_in(store.root)))
    n = len(entries) if chosen is None else len(chosen)
    n += sum(n_waiting for _, _, n_waiting in imports.packs()) if every else 0
    if n and not yes and not _confirmed(n):
        render.write_err("nothing was removed\n")
        raise typer.Exit(EXIT_FAILURE)
    left: list[tuple[Path, str]] = []
    removed = store.remove(chosen, left) + (imports.remove_all(left) if every else 0)
    with contextlib.suppress(render.StdoutClosed):  # they are gone, whether it is read or not
        if as_json:
            paths = [str(path) for path, _ in left]
            render.json_line({"type": "removed", "n": removed, "left": paths})
        else:
            for path, problem in left:
                render.finding(path, problem)
            render.write_out(f"removed: {removed}\n")
    if left:
        render.error(f"left: {len(left)}", "remove them by hand, if they are yours")
        raise typer.Exit(EXIT_FAILURE)


def full_keys(starts: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the keys that `starts` are the unique starts of.

    Raises:
        UsageError: none or several keys start so.
    """
    found = []
    if "" in starts:
        raise UsageError("an empty key names no snapshot", hint="see `edgellm snapshots ls`")
    for start in starts:
        matches = sorted({key for key in known if start and key.startswith(start)})
        if len(matches) != 1 and start not in matches:
            problem = f"{len(matches)} snapshots start" if matches else "no snapshot starts"
            raise UsageError(f"{problem} with {start!r}", hint="see `edgellm snapshots ls`")
        found.append(start if start in matches else matches[0])
    return list(dict.fromkeys(found))


def open_store(encrypt: str | None = None) -> SnapshotStore:
    """Return the store of this machine's user.

    Args:
        encrypt: where its key is, as `--snapshot-encrypt` says; None leaves it to the environment.
    """
    from edgellm.paths import snapshots_dir
    from edgellm.store.key_sources import open_key
    from edgellm.store.snapshots import SnapshotStore

    root = snapshots_dir()
    return SnapshotStore(root, key=open_key(encrypt, root))


def _done(finding: Finding) -> str:
    """Say what was done: a file whose mode was mended is still there."""
    if not finding.fixed:
        return ""
    return " (mended)" if os.path.lexists(finding.path) else " (removed)"


def _row(entry: SnapshotInfo, turns: Collection[str]) -> tuple[str, ...]:
    size = format_bytes(entry.n_bytes)
    # Two files of one name differ in the hash of their content.
    model = f"{entry.field('name')} {entry.field('model')[:_SHOWN_KEY]}".strip()
    own = "" if entry.parent is None else f" +{entry.n_tokens - entry.parent.n_tokens}"
    own += " turn" if entry.key in turns else ""
    base = "-" if entry.parent is None else entry.parent.key[:_SHOWN_KEY]
    return (
        entry.key[:_SHOWN_KEY],
        f"{entry.n_tokens}{own}",
        size,
        day(entry.created_s),
        day(used_s(entry)),
        base,
        entry.tier.value,
        model,
    )


def _adapters(entry: SnapshotInfo) -> str:
    """Return the adapters it was made with: of each the first digits of its content, and its scale."""
    adapters = entry.field("adapters")
    if adapters == "none":
        return ""
    parts = (one.partition("*") for one in adapters.split())
    return " ".join(f"{content[:_SHOWN_KEY]}{star}{scale}" for content, star, scale in parts)


def used_s(entry: SnapshotInfo) -> int:
    """Return when a snapshot was used last, Unix seconds: each use sets its file's time."""
    try:
        return max(entry.created_s, int(entry.path.lstat().st_mtime))
    except OSError:  # evicted meanwhile
        return entry.created_s


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
        "used_s": used_s(entry),
        "leans_on": None if entry.parent is None else entry.parent.key,
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
