"""`edgellm consent`: the user's leave to send conversations to an endpoint: shown, asked, kept, revoked.

Nobody there to ask is a no. On a terminal the answer is No unless somebody types yes.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from edgellm.cli.route_options import EndpointModel, EndpointUrl  # noqa: TC001  # read at run time
from edgellm.errors import EXIT_FAILURE, EXIT_NOT_FOUND, EdgeLLMError, UsageError

if TYPE_CHECKING:
    from edgellm.policy.consent import Consent
    from edgellm.routing import Endpoint

EXAMPLES: Final = """
edgellm consent grant
edgellm consent show
edgellm consent revoke --all
"""
GRANT_EXAMPLES: Final = """
edgellm consent grant
edgellm consent grant --usd-day 0.50 --days 30
edgellm consent grant --endpoint https://api.example.com/v1 --endpoint-model m --yes
"""
SHOW_EXAMPLES: Final = """
edgellm consent show
edgellm consent show --json
"""
REVOKE_EXAMPLES: Final = """
edgellm consent revoke http://127.0.0.1:8080
edgellm consent revoke --app my-editor
edgellm consent revoke --all
"""
DEFAULT_APP: Final = "edgellm"
DEFAULT_DAYS: Final = 90

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]


def grant(
    *,
    endpoint: EndpointUrl = None,
    endpoint_model: EndpointModel = None,
    usd_day: Annotated[
        float | None,
        typer.Option(
            "--usd-day",
            metavar="X",
            help="Most that may be spent there a day; else budget.usd_per_day, or nothing.",
        ),
    ] = None,
    days: Annotated[
        int, typer.Option("--days", metavar="N", help="How long it holds, 90 at most.")
    ] = DEFAULT_DAYS,
    app: Annotated[
        str, typer.Option("--app", metavar="NAME", help="The program that may send.")
    ] = DEFAULT_APP,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask: somebody has read the text.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Allow a program to send conversations to an endpoint; shows the text, and asks.

    Off a terminal nothing is granted without --yes. Exits 1 if it was not granted.
    """
    from edgellm.cli import render
    from edgellm.config import read_config
    from edgellm.paths import home_dir
    from edgellm.policy.consent import Wanted, draft
    from edgellm.routing import origin_of
    from edgellm.runtime.books.consents import ConsentBook

    config = read_config()
    place = _endpoint(endpoint, endpoint_model)
    asked = draft(
        Wanted(app, origin_of(place.url), place.model),
        micro_usd_per_day=_micro_usd(config.budget.usd_per_day if usd_day is None else usd_day),
        now_s=time.time(),
        days=days,
    )
    render.write_err(f"{asked.text}\n")
    if not yes and not _confirmed():
        render.write_err("nothing was granted\n")
        raise typer.Exit(EXIT_FAILURE)
    granted = ConsentBook(home_dir()).grant(asked)
    if as_json:
        render.json_line({"type": "consent", **_plain(granted)})
    else:
        render.write_out(f"granted: {granted.consent_id}\n")
    _remind(place, granted.max_micro_usd_per_day)


def show(*, as_json: AsJson = False) -> None:
    """List the consents: who may send where, how much it may cost a day, and until when."""
    from edgellm.cli import render
    from edgellm.paths import home_dir
    from edgellm.runtime.books.consents import ConsentBook

    given = ConsentBook(home_dir()).show()
    if as_json:
        for one in given:
            render.json_line({"type": "consent", **_plain(one)})
    elif given:
        render.table([_HEADING, *(_row(one) for one in given)])
    else:
        render.write_err("nothing was granted\n")


def revoke(
    origin: Annotated[
        str | None, typer.Argument(metavar="URL", help="The endpoint that may be sent to.")
    ] = None,
    *,
    app: Annotated[
        str | None, typer.Option("--app", metavar="NAME", help="Of this program alone.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All consents, damaged ones too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Take consents back; exits 3 if there is none of that endpoint or program."""
    from edgellm.cli import render
    from edgellm.paths import home_dir
    from edgellm.routing import origin_of
    from edgellm.runtime.books.consents import ConsentBook

    if every == (origin is not None or app is not None):
        raise UsageError("give URL or --app, or --all", hint="`edgellm consent show` lists them")
    place = None if origin is None else origin_of(origin)
    n_revoked = ConsentBook(home_dir()).revoke(app=app, origin=place)
    if as_json:
        render.json_line({"type": "revoked", "n_consents": n_revoked})
    else:
        render.write_out(f"revoked: {n_revoked}\n")
    if not n_revoked and not every:
        raise typer.Exit(EXIT_NOT_FOUND)


def _endpoint(url: str | None, model: str | None) -> Endpoint:
    """Return the endpoint that the flags or the file name.

    Raises:
        UsageError: none is named, or one that is no address.
    """
    from edgellm.config import read_config
    from edgellm.runtime.routes import RouteWishes, endpoint_of

    found = endpoint_of(RouteWishes(endpoint=url, endpoint_model=model), read_config())
    if found is None:
        raise UsageError(
            "no endpoint is configured",
            hint="`edgellm config set endpoint.url URL`, and endpoint.model; or give --endpoint",
        )
    return found


def _micro_usd(usd: float | None) -> int:
    """Return an amount in millionths of a dollar.

    Raises:
        UsageError: it is none.
    """
    from edgellm.policy.budget import micro_usd
    from edgellm.routing import MAX_USD

    if usd is not None and not 0 <= usd <= MAX_USD:
        raise UsageError(f"--usd-day must be a number between 0 and {MAX_USD:g}, not {usd}")
    return micro_usd(usd or 0.0)


def _confirmed() -> bool:
    """Ask on a terminal that has shown the text.

    Raises:
        EdgeLLMError: there is none, and nobody says yes.
    """
    from edgellm.cli import render, streams

    if sys.stdin is None or not (sys.stdin.isatty() and streams.is_terminal(sys.stderr)):
        raise EdgeLLMError(
            "nothing was granted: nobody is there to ask",
            hint="run it on a terminal, or give --yes for somebody who has read the text",
        )
    render.write_err("allow it? [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _remind(place: Endpoint, micro_usd_per_day: int) -> None:
    """Say what still keeps the endpoint from being asked."""
    from edgellm.cli import render
    from edgellm.config import allowed_mode, read_config
    from edgellm.policy.bars import OPEN_MODES
    from edgellm.policy.budget import prices_of

    config = read_config()
    mode = allowed_mode(config.mode)
    prices = prices_of(place)
    if mode not in OPEN_MODES:
        render.write_err(
            f"mode {mode.value}: nothing is sent yet; `edgellm config set mode prefer-local`\n"
        )
    if prices is None and not config.budget.allow_unpriced:
        render.write_err(
            "its price is not known, so nothing is sent yet: set endpoint.usd_per_mtok_in and _out\n"
        )
    elif prices is not None and any((prices.prompt, prices.answer)) and not micro_usd_per_day:
        render.write_err("it costs money, and nothing may be spent: grant it with --usd-day\n")


_HEADING: Final = ("APP", "ENDPOINT", "MODEL", "A DAY", "UNTIL", "STATE", "ID")


def _row(one: Consent) -> tuple[str, ...]:
    from edgellm.policy.budget import format_usd

    return (
        one.app,
        one.origin,
        one.model,
        format_usd(one.max_micro_usd_per_day),
        time.strftime("%Y-%m-%d", time.gmtime(one.expires_s)),
        _state(one),
        one.consent_id,
    )


def _plain(one: Consent) -> dict[str, Any]:
    return {"id": one.consent_id, "state": _state(one), **one.to_wire()}


def _state(one: Consent) -> str:
    """Return whether it still holds: it is asked for just what it says."""
    from edgellm.policy.consent import Wanted, look

    wanted = Wanted(one.app, one.origin, one.model, one.data)
    return look([one], wanted, time.time())[0]
