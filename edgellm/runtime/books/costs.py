"""What answers cost: tokens made here and elsewhere, money spent, and money that was not.

Taken from the audit log, which knows every answer; the prices are the ones configured now.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgellm.policy.budget import cost, prices_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edgellm.routing import Endpoint
    from edgellm.runtime.books.record import AuditRecord


@dataclass(frozen=True, slots=True)
class Costs:
    """Sums over all answers.

    Attributes:
        n_local, n_cloud: answers that ended on each route.
        n_open: requests whose end nobody wrote down; what was put aside for them counts as taken.
        local_prompt_tokens, local_completion_tokens: on this machine.
        cloud_prompt_tokens, cloud_completion_tokens: at endpoints.
        cached_tokens: of the cloud's prompt tokens, found in an endpoint's own cache.
        bytes_out: sent to endpoints.
        spent_micro_usd: what they cost, in millionths of a dollar.
        local_micro_usd: what the tokens made here cost, by `local_usd_per_mtok`.
        avoided_micro_usd: what they would have cost at the endpoint, less that; None where its
            prices are not known.
    """

    n_local: int = 0
    n_cloud: int = 0
    n_open: int = 0
    local_prompt_tokens: int = 0
    local_completion_tokens: int = 0
    cloud_prompt_tokens: int = 0
    cloud_completion_tokens: int = 0
    cached_tokens: int = 0
    bytes_out: int = 0
    spent_micro_usd: int = 0
    local_micro_usd: int = 0
    avoided_micro_usd: int | None = None


def costs(
    records: Iterable[AuditRecord], endpoint: Endpoint | None, local_usd_per_mtok: float = 0.0
) -> Costs:
    """Return the sums over some records.

    Args:
        records: of the audit log.
        endpoint: whose prices the tokens made here are held against, or None.
        local_usd_per_mtok: what a million tokens cost here.
    """
    known = list(records)
    clouds = [record.cloud for record in known if record.cloud is not None]
    prompt = sum(record.prompt_tokens for record in known)
    completion = sum(record.completion_tokens for record in known)
    own = round(local_usd_per_mtok * (prompt + completion))  # a dollar a million is one unit each
    prices = prices_of(endpoint) if endpoint is not None else None
    return Costs(
        n_local=sum(record.route == "local" for record in known),
        n_cloud=sum(record.route == "cloud" and not record.is_open for record in known),
        n_open=sum(record.is_open for record in known),
        local_prompt_tokens=prompt,
        local_completion_tokens=completion,
        cloud_prompt_tokens=sum(use.prompt_tokens for use in clouds),
        cloud_completion_tokens=sum(use.completion_tokens for use in clouds),
        cached_tokens=sum(use.cached_tokens for use in clouds),
        bytes_out=sum(use.bytes_out for use in clouds),
        spent_micro_usd=sum(record.micro_usd for record in known),
        local_micro_usd=own,
        avoided_micro_usd=None if prices is None else cost(prices, prompt, completion) - own,
    )
