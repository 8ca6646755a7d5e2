"""`edgellm stats --cost`: tokens made here and elsewhere, what they cost, and what they did not."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from edgellm.units import format_bytes

if TYPE_CHECKING:
    from edgellm.policy.budget import Amount, Limits
    from edgellm.runtime.books.costs import Costs

_NEAR: Final = {"below": "far", "approaching": "near", "reached": "reached"}


def print_costs(*, as_json: bool) -> None:
    """Print the sums over the audit log, and what is left of today's budget.

    Raises:
        RecordsDamaged: the log or the ledger is not what was written.
    """
    from edgellm.cli import render
    from edgellm.config import read_config
    from edgellm.paths import home_dir
    from edgellm.policy.budget import limits_of, signal
    from edgellm.runtime.books.audit import AuditLog
    from edgellm.runtime.books.costs import costs
    from edgellm.runtime.books.ledger import Ledger

    config = read_config()
    records = (record for _, record in AuditLog(home_dir()).show())
    found = costs(records, config.endpoint, config.local_usd_per_mtok)
    today, limits = Ledger(home_dir()).today(), limits_of(config.budget)
    if as_json:
        render.json_line(
            {
                "type": "costs",
                **dataclasses.asdict(found),
                "today": dataclasses.asdict(today),
                "budget": signal(today, limits),
            }
        )
    else:
        render.facts([*_pairs(found), ("today", _today(today, limits))])


def _pairs(found: Costs) -> list[tuple[str, str]]:
    from edgellm.policy.budget import format_usd

    n_read, n_cached = found.cloud_prompt_tokens, found.cached_tokens
    n_made = found.cloud_completion_tokens
    opened = f", {found.n_open} of unknown end" if found.n_open else ""
    avoided = found.avoided_micro_usd
    if avoided is None:
        told = "not known: set endpoint.url, endpoint.model and its prices"
    else:
        told = f"{'-' * (avoided < 0)}{format_usd(abs(avoided))} at the endpoint's prices"
    return [
        ("answers here", f"{found.n_local}"),
        ("tokens here", f"{found.local_prompt_tokens} read, {found.local_completion_tokens} made"),
        ("cost here", format_usd(found.local_micro_usd)),
        ("answers by endpoints", f"{found.n_cloud}{opened}"),
        ("tokens there", f"{n_read} read ({n_cached} cached), {n_made} made"),
        ("sent out", format_bytes(found.bytes_out)),
        ("spent", format_usd(found.spent_micro_usd)),
        ("spend avoided", told),
    ]


def _today(today: Amount, limits: Limits) -> str:
    """Return what was taken of the budget since midnight UTC, what is put aside included."""
    from edgellm.policy.budget import format_usd, signal

    told = f"{format_usd(today.micro_usd)}, {today.tokens} tokens, {format_bytes(today.n_bytes)}"
    most = (limits.micro_usd_per_day, limits.tokens_per_day, limits.bytes_per_day)
    if all(limit is None for limit in most):
        return f"{told}; no limit is set"
    return f"{told}; the limit is {_NEAR[signal(today, limits)]}"
