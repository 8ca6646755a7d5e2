"""`edgellm prove`: what `private` and `offline` promise, tried here; exits 1 if any of it failed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Final

import typer

from edgellm.errors import EXIT_FAILURE

EXAMPLES: Final = """
edgellm prove
edgellm prove model.gguf
edgellm prove --json
"""
_WIDTH: Final = len("not enforced") + 1


def prove(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="GGUF file for the offline answers; a tiny one is written without it.",
        ),
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show that private and offline runs send nothing; exits 1 if one does."""
    from edgellm.cli import render
    from edgellm.runtime.proving.proof import prove as proven

    found = []
    for statement in proven(None if model is None else Path(model)):
        found.append(statement)
        if not as_json:
            label = statement.status.upper() if statement.status == "failed" else statement.status
            pair = (f"{label:<{_WIDTH}} {statement.what}", statement.how)
            render.facts([pair])
    counts = Counter(statement.status for statement in found)
    if as_json:
        lines = [statement.to_wire() for statement in found]
        is_ok, is_all = not counts["failed"], counts["shown"] == len(found)
        render.json_line({"type": "prove", "ok": is_ok, "all_shown": is_all, "statements": lines})
    else:
        said = ", ".join(f"{n} {status}" for status, n in counts.items())
        render.facts([("in all", said)])
    if counts["failed"]:
        raise typer.Exit(EXIT_FAILURE)
