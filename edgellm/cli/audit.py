"""`edgellm audit` and `edgellm why`: what was decided for each answer, and whether the log is whole."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import typer

from edgellm.errors import EXIT_FAILURE, EXIT_NOT_FOUND, EdgeLLMError

if TYPE_CHECKING:
    from edgellm.runtime.books.record import AuditRecord

EXAMPLES: Final = """
edgellm audit show --last 5
edgellm audit verify
edgellm audit show --json
"""
SHOW_EXAMPLES: Final = """
edgellm audit show
edgellm audit show --last 100 --json
"""
VERIFY_EXAMPLES: Final = """
edgellm audit verify
edgellm audit verify --json
"""
RESTART_EXAMPLES: Final = """
edgellm audit restart
edgellm audit restart --yes
"""
WHY_EXAMPLES: Final = """
edgellm why
edgellm why 12-3fa97b01 --json
"""
_DEFAULT_LAST: Final = 20

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]


class NoRecord(EdgeLLMError):
    """The audit log has no such record."""

    code = "not_found"
    exit_code: ClassVar[int] = EXIT_NOT_FOUND


def show(
    *,
    last: Annotated[
        int, typer.Option("--last", metavar="N", min=1, help="So many, the newest.")
    ] = _DEFAULT_LAST,
    as_json: AsJson = False,
) -> None:
    """List the latest answers: where they were made, why, and what left for them; no text is kept.

    FINISH `sending` is a request whose end is not known: its program was killed, or is still at it.
    What it shows is the most that can have left, and cost.
    """
    from edgellm.cli import render

    records = deque(_log().show(), maxlen=last)
    if as_json:
        for name, record in records:
            render.json_line({"type": "record", "id": name, **record.to_wire()})
    elif records:
        render.table([_HEADING, *(_row(name, record) for name, record in records)])
    else:
        render.write_err("no answers yet\n")
    n_open = sum(record.is_open for _, record in records)
    if n_open and not as_json:
        render.write_err(f"{_open_text(n_open)}\n")


def verify(*, as_json: AsJson = False) -> None:
    """Check that no record was changed, moved or removed; exits 5 if one was.

    Counts requests that were sent, and whose end nobody wrote down: their program was killed, or is
    still at it. `edgellm audit show` lists them with the rest.
    """
    from edgellm.cli import render

    log = _log()
    n_records = log.verify()
    n_open = sum(record.is_open for _, record in log.show())
    if as_json:
        render.json_line({"type": "audit", "ok": True, "n_records": n_records, "n_open": n_open})
        return
    render.write_out(f"records: {n_records}, all as they were written\n")
    if n_open:
        render.write_out(f"{_open_text(n_open)}\n")


def restart(
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Put the log aside, damaged or too long, and begin a new one that names it. Nothing is deleted.

    What was put aside can be looked into: `EDGELLM_HOME=FOLDER edgellm audit verify`, or `show`.
    """
    from edgellm.cli import render

    if not yes and not _confirmed():
        render.write_err("the log stays\n")
        raise typer.Exit(EXIT_FAILURE)
    aside = _log().restart()
    with contextlib.suppress(render.StdoutClosed):  # it is done, whether it is read or not
        if as_json:
            name = None if aside is None else str(aside)
            render.json_line({"type": "restarted", "aside": name})
        else:
            render.write_out(f"put aside: {'there was none' if aside is None else aside}\n")


def why(
    record_id: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="As --stats and `edgellm audit show` have it."),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Say why an answer was made where it was, and what it took; without ID, the latest."""
    from edgellm.cli import render

    found = deque(
        (entry for entry in _log().show() if record_id in (None, entry[0])),
        maxlen=1,
    )
    if not found:
        what = "no answer was made yet" if record_id is None else f"there is no record {record_id}"
        raise NoRecord(what, hint="`edgellm audit show` lists the latest")
    name, record = found[0]
    if as_json:
        render.json_line({"type": "record", "id": name, **record.to_wire()})
    else:
        render.facts(_facts(name, record))


def _log() -> Any:
    from edgellm.paths import home_dir
    from edgellm.runtime.books.audit import AuditLog

    return AuditLog(home_dir())


def _confirmed() -> bool:
    """Ask on a terminal; a script has decided."""
    from edgellm.cli import render

    if sys.stdin is None or not sys.stdin.isatty():
        return True
    render.write_err("put the audit log aside and begin a new one? [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _open_text(n_open: int) -> str:
    who = "its program was" if n_open == 1 else "their programs were"
    return f"sent, end not known: {n_open} ({who} killed, or may still be at it)"


_HEADING: Final = ("ID", "TIME", "APP", "MODE", "ROUTE", "WHY", "FINISH", "TOKENS", "CLOUD", "COST")


def _row(name: str, record: AuditRecord) -> tuple[str, ...]:
    from edgellm.policy.budget import format_usd

    cloud = record.cloud
    return (
        name,
        _time(record.time_s),
        record.app,
        record.mode,
        record.route,
        record.reason,
        record.finish,
        f"{record.prompt_tokens}+{record.completion_tokens}",
        "-" if cloud is None else f"{cloud.prompt_tokens}+{cloud.completion_tokens}",
        format_usd(record.micro_usd) if cloud is not None else "-",
    )


def _facts(name: str, record: AuditRecord) -> list[tuple[str, str]]:
    from edgellm.cli.stats import cloud_text

    finish, sent = record.finish, "nothing"
    if record.cloud is not None:
        sent = cloud_text(record.cloud)
    if record.is_open:
        finish = "not known: the program was killed, or is still at it"
        sent = f"at most, {sent}"
    pairs = [
        ("record", name),
        ("time", _time(record.time_s)),
        ("program", record.app),
        ("mode", record.mode),
        ("route", f"{record.route} ({record.action or 'stop'})"),
        ("why", record.reason or "-"),
        ("what happened", record.trigger.replace("_", " ") or "nothing"),
        ("finish", finish),
        ("changes of route", str(record.n_switches)),
        ("may differ", "yes" if record.degraded else "no"),
        ("model here", record.model or "-"),
        ("tokens here", f"{record.prompt_tokens} read, {record.completion_tokens} made"),
        ("sent out", sent),
    ]
    if record.cloud is not None:
        pairs += [("consent", record.consent_id), ("reservation", record.reservation_id)]
    return [*pairs, ("prompt", f"{record.prompt[:16]} (a keyed hash; no text is kept)")]


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
