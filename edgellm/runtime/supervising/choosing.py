"""Chooser: the facts for the policy, from the turn, this machine and the books; it decides nothing.

In a mode that keeps prompts here no book of endpoints is opened, so none of them can be in the way.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from edgellm.core import Mode, Warn
from edgellm.errors import EdgeLLMError, EndpointError, EngineFailed, RecordsUnavailable
from edgellm.policy.bars import OPEN_MODES
from edgellm.policy.route import RouteFacts, decide, taints
from edgellm.routing import Trigger
from edgellm.runtime.supervising.turn import RouteFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgellm.core import Event
    from edgellm.policy.route import Decision, LocalState
    from edgellm.runtime.session import SessionOptions
    from edgellm.runtime.supervising.place import Place
    from edgellm.runtime.supervising.resting import Resting
    from edgellm.runtime.supervising.there import There
    from edgellm.runtime.supervising.turn import Turn

MAX_LOCAL: Final = 2
"""How often one answer is tried on this machine: once, and once more after a failure."""


class Chooser:
    """Asks the policy for one session.

    Args:
        options: the user's, whose mode is the one that counts.
        place: the model on this machine.
        resting: its breaker.
        there: the endpoint, or None.
    """

    def __init__(
        self, options: SessionOptions, place: Place, resting: Resting, there: There | None
    ) -> None:
        self._options = options
        self._place = place
        self._resting = resting
        self._there = there if options.mode in OPEN_MODES else None

    def decide(self, turn: Turn, failure: RouteFailed | None) -> Decision:
        """Return where an answer is made from here on.

        Raises:
            RecordsDamaged: a book that the decision rests on is not what was written.
        """
        return decide(self._facts(turn, failure, self._local(turn, failure)))

    def decide_here(self, turn: Turn, failure: RouteFailed | None) -> Decision:
        """Return whether this machine should try again; no endpoint is considered."""
        facts = self._facts(turn, failure, self._local(turn, failure), is_private=True)
        return decide(facts)

    def may_leave(self, turn: Turn, trigger: Trigger) -> bool:
        """Return whether an answer that is late here would be made elsewhere."""
        if self._there is None:
            return False
        failure = RouteFailed(EngineFailed("late"), trigger, "prefill")
        try:
            return decide(self._facts(turn, failure, "exhausted")).route == "cloud"
        except EdgeLLMError:  # of a book: who asks is not the one to be told
            return False

    def explained(self, turn: Turn, decision: Decision) -> Iterator[Event]:
        """Say why no endpoint took over, to who wished that one would."""
        if self._options.mode in OPEN_MODES and turn.failure is not None:
            said = [*decision.reasons, decision.remedy]
            is_last = turn.failure is not turn.first_failure  # which is the one that is raised
            if is_last and turn.failure.trigger is Trigger.CLOUD_FAILED:
                said.insert(0, str(turn.failure.error))
            yield Warn(f"no other route: {'; '.join(filter(None, said))}")

    def _local(self, turn: Turn, failure: RouteFailed | None) -> LocalState:
        if turn.n_local >= MAX_LOCAL:
            return "exhausted"
        if failure is not None and failure.trigger is Trigger.NO_FIT and self._there is None:
            return "exhausted"  # who keeps it here is told the ways to fit, and chooses
        return self._place.state(failure, turn.needed_tokens)

    def _facts(
        self,
        turn: Turn,
        failure: RouteFailed | None,
        local: LocalState,
        *,
        is_private: bool = False,
    ) -> RouteFacts:
        options, resting = self._options, self._resting.state()
        is_private = is_private or taints(turn.request.messages)
        stays = failure is None and local == "ready" and resting != "open"
        is_idle = is_private or (stays and options.mode is not Mode.PREFER_CLOUD)
        facts = RouteFacts(
            mode=options.mode,
            trigger=None if failure is None else failure.trigger,
            local=local,
            endpoint=None if self._there is None else self._there.endpoint,
            local_breaker=resting,
            local_rest_s=self._resting.rest_s() if resting == "open" else 0.0,
            is_private=is_private,
            n_shown=turn.n_shown,
            on_failure=options.on_failure,
            has_switched=turn.has_switched,
            deadline_set=options.deadline_s is not None,
            tool_call_shown=turn.tool_call_shown,
            has_records=not turn.is_unrecorded,
        )
        if self._there is None or is_idle or turn.is_unrecorded:
            return facts
        return _asked(facts, self._there, turn)


def _asked(facts: RouteFacts, there: There, turn: Turn) -> RouteFacts:
    """Return the facts with those of the endpoint; what is wrong with it closes that route alone."""
    try:
        facts = replace(facts, consent=there.consent_state())
        # Counting what a request may cost needs the client and its key: not before there is a leave.
        if facts.consent == "valid":
            budget = there.budget_state(turn)
            state = there.breaker_state()
            rest_s = there.rest_s() if state == "open" else 0.0
            facts = replace(facts, budget=budget, cloud_breaker=state, cloud_rest_s=rest_s)
    except RecordsUnavailable:
        return replace(facts, has_records=False)
    except EndpointError as err:
        turn.warn_once(str(err))
        return replace(facts, is_usable=False)
    return facts
