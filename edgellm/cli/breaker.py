"""`edgellm breaker`: routes that rest after failures, and how to let them be tried again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from edgellm.errors import EXIT_NOT_FOUND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgellm.runtime.books.breakers import Breakers

EXAMPLES: Final = """
edgellm breaker show
edgellm breaker reset
"""
SHOW_EXAMPLES: Final = """
edgellm breaker show
edgellm breaker show --json
"""
RESET_EXAMPLES: Final = """
edgellm breaker reset
edgellm breaker reset http://127.0.0.1:8080
"""

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]


def show(*, as_json: AsJson = False) -> None:
    """List what failed lately: models that ran out of memory here, and endpoints.

    An open breaker lets its route rest, a half open one lets one careful try through. --force of
    `edgellm run` and `chat` tries a model that rests at once; an endpoint is left alone until its
    rest is over or reset.
    """
    from edgellm.cli import render
    from edgellm.paths import home_dir
    from edgellm.runtime.books.breakers import BreakerBook

    rows = list(_rows(BreakerBook(home_dir()).show(), time.time()))
    if as_json:
        for row in rows:
            render.json_line({"type": "breaker", **row})
    elif rows:
        cells = [(row["kind"], row["name"], row["state"], row["note"]) for row in rows]
        render.table([("KIND", "NAME", "STATE", "NOTE"), *cells])
    else:
        render.write_err("nothing has failed lately\n")


def reset(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="As `edgellm breaker show` has it.")
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Close one breaker, or all; exits 3 if there is none of that name."""
    from edgellm.cli import render
    from edgellm.paths import home_dir
    from edgellm.runtime.books.breakers import BreakerBook

    n_reset = BreakerBook(home_dir()).reset(name)
    if as_json:
        render.json_line({"type": "reset", "n_breakers": n_reset})
    else:
        render.write_out(f"reset: {n_reset}\n")
    if name is not None and not n_reset:
        raise typer.Exit(EXIT_NOT_FOUND)


def _rows(known: Breakers, now_s: float) -> Iterator[dict[str, Any]]:
    from edgellm.policy import breaker

    for name, here in known.local.items():
        n_deaths = len(here.deaths_s)
        yield {
            "kind": "local",
            "name": name,
            "state": breaker.local_state(here),
            "note": f"memory ran out {n_deaths} time{'s' * (n_deaths != 1)}",
            **here.to_wire(),
        }
    for name, there in known.cloud.items():
        state = breaker.cloud_state(there, now_s, there.refused)
        failed = f"{there.outcomes.count(False)} of the last {len(there.outcomes)} failed"
        fields = {key: value for key, value in there.to_wire().items() if key != "refused"}
        note = "its key or address was refused" if there.refused else failed
        yield {"kind": "cloud", "name": name, "state": state, "note": note, **fields}
