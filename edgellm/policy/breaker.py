"""Circuit breakers, as pure steps from one state to the next: times come in, nothing is read.

A breaker is closed while all is well, open while a route rests, and half open when one careful try
is due. Times are seconds since 1970, since the states outlive processes; where the clock was set
back meanwhile, a rest counts as over, and the careful try finds out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from edgellm.wire import Wire

if TYPE_CHECKING:
    from edgellm.errors import EndpointFailure
    from edgellm.policy.route import BreakerState

DEATHS_THAT_OPEN: Final = 2
DEATH_WINDOW_S: Final = 600.0
FIRST_REST_S: Final = 60.0
LONGEST_REST_S: Final = 1800.0
READS_APART_S: Final = 5.0
FAILURES_IN_A_ROW: Final = 5
N_REMEMBERED: Final = 20
LONGEST_RETRY_AFTER_S: Final = 3600.0
TRIAL_S: Final = 120.0
"""For so long others take a careful try of one process to be under way."""
_REQUESTS_FAULT: Final = ("invalid", "too_long")
"""Failures that say nothing of the endpoint."""


@dataclass(frozen=True, slots=True)
class LocalHealth(Wire):
    """How a model fares on this machine, of one backend and size of context.

    Attributes:
        deaths_s: when memory ran out lately.
        opened_s: since when it rests, or None.
        rest_s: for how long.
        fits_since_s: since when each look has found memory enough, after the rest.
        may_try: whether two such looks lay far enough apart.
    """

    deaths_s: tuple[float, ...] = ()
    opened_s: float | None = None
    rest_s: float = FIRST_REST_S
    fits_since_s: float | None = None
    may_try: bool = False


@dataclass(frozen=True, slots=True)
class CloudHealth(Wire):
    """How an endpoint fares.

    Attributes:
        outcomes: of the latest requests, True for a whole answer.
        n_in_a_row: failures since the last whole answer.
        opened_s: since when it rests, or None.
        rest_s: for how long.
        not_before_s: when it said to come again.
        trial_s: when somebody began a careful try, or None.
        refused: the settings that it refused (`auth`); it rests until they change.
    """

    outcomes: tuple[bool, ...] = ()
    n_in_a_row: int = 0
    opened_s: float | None = None
    rest_s: float = FIRST_REST_S
    not_before_s: float = 0.0
    trial_s: float | None = None
    refused: str = ""


def local_state(health: LocalHealth) -> BreakerState:
    """Return the state: half open only when the rest is over and memory was enough twice."""
    if health.opened_s is None:
        return "closed"
    return "half_open" if health.may_try else "open"


def local_rest_s(health: LocalHealth, now_s: float) -> float:
    """Return the seconds to the end of the rest; behind it memory must be found to be enough."""
    return 0.0 if health.opened_s is None else _left_s(health.opened_s, health.rest_s, now_s)


def after_death(health: LocalHealth, now_s: float) -> LocalHealth:
    """Return the state after memory ran out: the second time in ten minutes opens it."""
    lately = tuple(at for at in health.deaths_s if 0 <= now_s - at < DEATH_WINDOW_S)
    deaths_s = (*lately, now_s)[-DEATHS_THAT_OPEN:]
    if health.opened_s is not None:  # the careful try failed
        return LocalHealth(deaths_s, now_s, _longer(health.rest_s))
    opened_s = now_s if len(deaths_s) >= DEATHS_THAT_OPEN else None
    return LocalHealth(deaths_s, opened_s)


def after_look(health: LocalHealth, now_s: float, *, fits: bool) -> LocalHealth:
    """Return the state after a look at free memory, which found enough with a margin, or not."""
    if health.opened_s is None or not _is_over(health.opened_s, health.rest_s, now_s):
        return health
    if not fits:
        return replace(health, fits_since_s=None, may_try=False)
    since_s = health.fits_since_s
    if since_s is None or since_s > now_s:
        return replace(health, fits_since_s=now_s)
    return replace(health, may_try=health.may_try or now_s - since_s >= READS_APART_S)


def after_warm_up(_: LocalHealth) -> LocalHealth:
    """Return the state after a decode that went well."""
    return LocalHealth()


def cloud_state(health: CloudHealth, now_s: float, settings: str) -> BreakerState:
    """Return the state of an endpoint.

    Args:
        health: what is known of it.
        now_s: seconds since 1970.
        settings: fingerprint of its address and key; other ones than refused close the breaker.
    """
    if health.refused:
        return "open" if health.refused == settings else "closed"
    if 0 < health.not_before_s - now_s <= LONGEST_RETRY_AFTER_S:
        return "open"
    if health.opened_s is None:
        return "closed"
    if not _is_over(health.opened_s, health.rest_s, now_s):
        return "open"
    is_tried = health.trial_s is not None and 0 <= now_s - health.trial_s < TRIAL_S
    return "open" if is_tried else "half_open"


def cloud_rest_s(health: CloudHealth, now_s: float) -> float:
    """Return the seconds until a careful try may be due; 0 where waiting does not help."""
    if health.refused:
        return 0.0
    asked_s = health.not_before_s - now_s
    rest_s = max(0.0, asked_s) if asked_s <= LONGEST_RETRY_AFTER_S else 0.0
    if health.opened_s is None:
        return rest_s
    rest_s = max(rest_s, _left_s(health.opened_s, health.rest_s, now_s))
    return (
        rest_s if health.trial_s is None else max(rest_s, _left_s(health.trial_s, TRIAL_S, now_s))
    )


def at_trial(health: CloudHealth, now_s: float) -> CloudHealth:
    """Return the state while one request is the careful try."""
    return replace(health, trial_s=now_s)


def after_no_trial(health: CloudHealth) -> CloudHealth:
    """Return the state after a careful try that said nothing of the endpoint."""
    return replace(health, trial_s=None)


def after_answer(health: CloudHealth) -> CloudHealth:
    """Return the state after a whole answer."""
    return CloudHealth(outcomes=(*health.outcomes, True)[-N_REMEMBERED:])


def after_failure(
    health: CloudHealth,
    now_s: float,
    kind: EndpointFailure,
    *,
    settings: str,
    retry_after_s: float | None = None,
) -> CloudHealth:
    """Return the state after a failure: five in a row, or half of the last twenty, open it.

    Args:
        health: what was known.
        now_s: seconds since 1970.
        kind: of the failure.
        settings: fingerprint of the address and key that were used.
        retry_after_s: when the endpoint said to come again, from now.
    """
    if kind in _REQUESTS_FAULT:
        return replace(health, trial_s=None)
    if kind == "auth":
        return replace(health, refused=settings, trial_s=None)
    outcomes = (*health.outcomes, False)[-N_REMEMBERED:]
    n_in_a_row = health.n_in_a_row + 1
    wait_s = min(retry_after_s or 0.0, LONGEST_RETRY_AFTER_S)
    noted = CloudHealth(
        outcomes, n_in_a_row, health.opened_s, health.rest_s, now_s + wait_s if wait_s > 0 else 0.0
    )
    if kind == "quota":  # no waiting helps: one look in half an hour is enough
        return replace(noted, opened_s=now_s, rest_s=LONGEST_REST_S)
    if health.opened_s is not None:
        return replace(noted, opened_s=now_s, rest_s=_longer(health.rest_s))
    is_half = len(outcomes) == N_REMEMBERED and 2 * outcomes.count(False) >= N_REMEMBERED
    is_open = n_in_a_row >= FAILURES_IN_A_ROW or is_half
    return replace(noted, opened_s=now_s) if is_open else noted


def _longer(rest_s: float) -> float:
    return min(2 * rest_s, LONGEST_REST_S)


def _is_over(opened_s: float, rest_s: float, now_s: float) -> bool:
    return not 0 <= now_s - opened_s < rest_s


def _left_s(began_s: float, rest_s: float, now_s: float) -> float:
    return 0.0 if _is_over(began_s, rest_s, now_s) else began_s + rest_s - now_s
