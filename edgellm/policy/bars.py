"""What closes a route: one table for this machine, one for the endpoint. Pure.

Each row is a phrase, what the user can do about it, and when it holds. A route is open where no row
does. The phrases are constants: they go into the audit log, and hold nothing of a prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Final

from edgellm.core import Mode
from edgellm.routing import Trigger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from edgellm.policy.route import Action, RouteFacts
    from edgellm.routing import OnFailure

OPEN_MODES: Final = (Mode.PREFER_LOCAL, Mode.PREFER_CLOUD)
"""Modes in which anything of a prompt may leave this machine at all."""

SHOWN: Final[Mapping[OnFailure, tuple[Action, Action, Action]]] = {
    # what is done with a text whose beginning was shown:
    #               its own, here | at the endpoint | the endpoint's, here
    "resume-local": ("resume", "continue", "stop"),
    "continue": ("resume", "continue", "continue"),
    "restart": ("restart", "restart", "restart"),
    "stop": ("stop", "stop", "stop"),
}


@dataclass(frozen=True, slots=True)
class Bar:
    """A reason why a route is closed.

    Attributes:
        phrase: for the person reading, and for the audit log.
        remedy: what opens the route, or "".
        holds: whether it is so.
        rest_s: of a bar that goes by itself, in how many seconds; 0 where nobody knows.
    """

    phrase: str
    remedy: str
    holds: Callable[[RouteFacts], bool]
    rest_s: Callable[[RouteFacts], float] | None = None


def has_begun(facts: RouteFacts) -> bool:
    """Return whether the caller has seen something of the answer that broke off."""
    return facts.trigger is not None and (facts.n_shown > 0 or facts.tool_call_shown)


def shown_action(facts: RouteFacts, *, cloud: bool) -> Action:
    """Return how a text whose beginning was shown is gone on with, by `SHOWN`."""
    own, there, here = SHOWN[facts.on_failure]
    from_cloud = facts.trigger is Trigger.CLOUD_FAILED
    return there if cloud else here if from_cloud else own


def barred(table: Sequence[Bar], facts: RouteFacts) -> tuple[Bar, ...]:
    """Return what closes a route. Where prompts stay here, nothing else of the endpoint is looked up."""
    held = tuple(bar for bar in table if bar.holds(facts))
    alone = next((bar for bar in (MODE_BAR, PRIVATE_BAR) if bar in held), None)
    return held if alone is None else (alone,)


def remedy(no_local: Sequence[Bar], no_cloud: Sequence[Bar], facts: RouteFacts) -> str:
    """Return what opens one route or the other; of one that stays closed anyway, nothing is said."""
    ways = [
        _way(bars[0], facts) for bars in (no_local, no_cloud) if all(bar.remedy for bar in bars)
    ]
    return "; or ".join(dict.fromkeys(ways)) or "ask again"


def _way(bar: Bar, facts: RouteFacts) -> str:
    if bar.rest_s is None:
        return bar.remedy
    left_s = ceil(bar.rest_s(facts))
    return f"wait {left_s} s, or {bar.remedy}" if left_s > 0 else f"wait, or {bar.remedy}"


def _shown_bars(*, cloud: bool) -> tuple[Bar, ...]:
    def cannot_continue(facts: RouteFacts) -> bool:
        if not has_begun(facts) or shown_action(facts, cloud=cloud) != "continue":
            return False
        if cloud:
            return facts.endpoint is None or facts.endpoint.continues == "none"
        return not facts.local_continues

    return (
        Bar(
            "a tool call was shown, and may have been carried out",
            "",
            lambda f: has_begun(f) and f.tool_call_shown,
        ),
        Bar(
            "on_failure does not let a shown text go on there",
            "set on_failure to `restart` where shown text can be taken back",
            lambda f: has_begun(f) and shown_action(f, cloud=cloud) == "stop",
        ),
        Bar(
            "it cannot go on with a text begun elsewhere",
            "set on_failure to `restart`, or endpoint.continues to what the server can",
            cannot_continue,
        ),
    )


LOCAL_BARS: Final = (
    Bar(
        "the model is not here, or no engine can run it",
        "install the engine (`edgellm doctor` says which), or choose another model",
        lambda f: f.local == "absent",
    ),
    Bar(
        "nothing smaller is left to try",
        "free memory, or choose a smaller model or context (`edgellm plan MODEL` says what fits)",
        lambda f: f.local == "exhausted",
    ),
    Bar(
        "memory ran out repeatedly, so it rests",
        "`--force` (`force=True`), or `edgellm breaker reset`",
        lambda f: f.local_breaker == "open",
        lambda f: f.local_rest_s,
    ),
    Bar(
        "the answer has changed its route once, and does so once only",
        "ask again",
        lambda f: f.has_switched and f.trigger is Trigger.CLOUD_FAILED,
    ),
    *_shown_bars(cloud=False),
)

MODE_BAR: Final = Bar(
    "the mode keeps prompts on this machine", "", lambda f: f.mode not in OPEN_MODES
)
PRIVATE_BAR: Final = Bar("a message is private", "", lambda f: f.is_private)
CLOUD_BARS: Final = (
    MODE_BAR,
    PRIVATE_BAR,
    Bar(
        "no endpoint is configured",
        "`edgellm config set endpoint.url` and `endpoint.model`",
        lambda f: f.endpoint is None,
    ),
    Bar(
        "no record of it can be kept",
        "export EDGELLM_HOME=/some/folder that you may write to",
        lambda f: not f.has_records,
    ),
    Bar(
        "its key or address cannot be used",
        "check EDGELLM_API_KEY, the keyring and endpoint.url",
        lambda f: not f.is_usable,
    ),
    Bar("nobody consented", "`edgellm consent grant`", lambda f: f.consent == "none"),
    Bar("the consent has expired", "`edgellm consent grant`", lambda f: f.consent == "expired"),
    Bar(
        "the consent is for something else",
        "`edgellm consent grant`",
        lambda f: f.consent == "changed",
    ),
    Bar("the budget is used up", "raise the budget", lambda f: f.budget == "exceeded"),
    Bar(
        "its price is not known",
        "set endpoint.usd_per_mtok_in and _out, or budget.allow_unpriced",
        lambda f: f.budget == "unpriced",
    ),
    Bar(
        "it failed repeatedly, so it is left alone",
        "`edgellm breaker reset`",
        lambda f: f.cloud_breaker == "open",
        lambda f: f.cloud_rest_s,
    ),
    Bar("it has just failed", "", lambda f: f.trigger is Trigger.CLOUD_FAILED),
    Bar(
        "a killed worker is no reason to send a prompt out",
        "ask again",
        lambda f: f.trigger is Trigger.WORKER_KILLED,
    ),
    Bar(
        "memory pressure alone is none, without a deadline",
        "set a deadline",
        lambda f: f.trigger is Trigger.PRESSURE and not f.deadline_set,
    ),
    Bar(
        "the answer has changed its route once, and does so once only",
        "ask again",
        lambda f: f.has_switched and f.trigger is not Trigger.CLOUD_FAILED,
    ),
    *_shown_bars(cloud=True),
)
