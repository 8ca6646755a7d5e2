"""`edgellm doctor`: what an answer needs here, checked one by one; exits 1 if a check fails."""

from __future__ import annotations

import dataclasses
import os
from typing import Annotated, Final

import typer

from edgellm.cli.variables import offline_variable
from edgellm.core import Mode
from edgellm.errors import EXIT_FAILURE

EXAMPLES: Final = """
edgellm doctor
edgellm doctor --json
edgellm doctor --endpoint
"""
_MARKS: Final = {"ok": "", "warning": "WARNING: ", "failed": "FAILED: ", "skipped": "(skipped) "}


def doctor(
    *,
    endpoint: Annotated[
        bool,
        typer.Option("--endpoint", help="Ask the configured endpoint, too, if the mode allows."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check CPU, engines, GPU, memory and disk; exits 1 if a check fails."""
    from edgellm.cli import render
    from edgellm.runtime.doctoring import checkup

    mode = Mode.OFFLINE if offline_variable(os.environ) else None
    found = tuple(checkup(_ask_endpoint if endpoint else None, mode))
    failed = [check.name for check in found if check.status == "failed"]
    if as_json:
        checks = [dataclasses.asdict(check) for check in found]
        render.json_line({"type": "doctor", "ok": not failed, "checks": checks})
    else:
        render.facts([(check.name, f"{_MARKS[check.status]}{check.found}") for check in found])
        for check in found:
            if check.hint and check.status in ("warning", "failed"):
                render.labelled("hint", f"{check.name}: {check.hint}")
    if failed:
        raise typer.Exit(EXIT_FAILURE)


def _ask_endpoint() -> str:
    """Ask the configured endpoint for its models; that sends no content.

    Raises:
        UsageError: none is configured.
        EndpointError: it is not there, or refuses.
    """
    from edgellm.cloud.client import ChatClient
    from edgellm.config import read_config
    from edgellm.errors import UsageError
    from edgellm.routing import origin_of
    from edgellm.runtime.api_key import api_key

    endpoint = read_config().endpoint
    if endpoint is None:
        raise UsageError(
            "no endpoint is configured",
            hint="`edgellm config set endpoint.url URL`, and endpoint.model",
        )
    found = ChatClient(endpoint, api_key(origin_of(endpoint.url))).probe()
    told = f"{found.url} answered in {found.answered_ms:.0f} ms"
    if found.lists_model is None:
        return f"{told}; it keeps no list of models"
    has = "has" if found.lists_model else "does not list"
    return f"{told}; it {has} {endpoint.model!r}"
