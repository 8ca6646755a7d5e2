"""Recorder: what is written down of answers: one audit record each, and how this machine fared.

The record is on the disk before `Done` is handed out, and before something is sent another one says so: a
program that is killed in between leaves that. An answer that failed, was refused or was given up
has one as well. Only where none can be written (a read-only home, a full disk) is an answer of this machine
made without one, and says so; then nothing leaves it.
"""

from __future__ import annotations

import dataclasses
import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from edgellm.errors import EdgeLLMError, RecordsUnavailable
from edgellm.policy.budget import MICRO
from edgellm.runtime.books.audit import AuditLog
from edgellm.runtime.books.record import SENDING, AuditRecord

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from edgellm.core import Done
    from edgellm.routing import CloudUse
    from edgellm.runtime.session import SessionOptions
    from edgellm.runtime.supervising.resting import Resting
    from edgellm.runtime.supervising.turn import RouteFailed, Turn


class Recorder:
    """Writes down what one session did.

    Args:
        options: the user's.
        model: name of the local model.
        resting: this machine's breaker, or None where nothing of it can be outlived.
        home: the folder of the books.
    """

    def __init__(
        self, options: SessionOptions, model: str, resting: Resting | None, home: Path
    ) -> None:
        self._options = options
        self._model = model
        self._resting = resting
        self._log = AuditLog(home)

    @contextmanager
    def recording(self, turn: Turn) -> Iterator[None]:
        """See to it that a turn has its record, whatever ends it.

        Raises:
            RecordsDamaged: the log is not what was written; then nothing is answered.
            RecordsUnavailable: the disk became full when something had been sent.
        """
        self._ready(turn)
        finish, owner = "given_up", os.getpid()
        try:
            yield
        except EdgeLLMError as err:
            finish = err.code
            raise
        finally:
            if not turn.audit_id and os.getpid() == owner:  # a forked child has a copy of the turn
                self._append(turn, finish, has_answer=False)

    def _ready(self, turn: Turn) -> None:
        try:
            self._log.ready()
        except RecordsUnavailable as err:
            _leave_out(turn, err)

    def finished(self, turn: Turn, done: Done) -> Done:
        """Write down an answer, and return its end as the caller gets it."""
        has_tried = turn.decision is not None and "warm_up" in turn.decision.obligations
        if self._resting and has_tried and done.finish_reason != "cancelled":
            self._resting.note_success()
        usage = done.usage
        if done.route == "cloud":  # which knows nothing of the tokens that were made here
            usage = dataclasses.replace(usage, completion_tokens=turn.n_local_tokens)
        turn.usage = usage
        self._append(turn, done.finish_reason, has_answer=True)
        return dataclasses.replace(
            done,
            usage=usage,
            timings=dataclasses.replace(done.timings, ttft_ms=turn.ttft_ms),
            seed=turn.seed,
            degraded=turn.degraded,
            cloud=turn.cloud,
            audit_id=turn.audit_id,
        )

    def sending(self, turn: Turn, most: CloudUse, consent_id: str, reservation_id: str) -> None:
        """Write down that a request is about to be sent; it is on the disk when this returns.

        Args:
            turn: of the answer.
            most: that the request can take.
            consent_id: under which consent it is sent.
            reservation_id: which part of the budget was put aside for it.

        Raises:
            RecordsDamaged: the log is not what was written. Nothing may be sent then.
            RecordsUnavailable: it cannot be written to. Nothing may be sent then.
        """
        record = dataclasses.replace(
            self._record(turn, SENDING, "cloud"),
            cloud=most,
            micro_usd=round((most.usd or 0.0) * MICRO),
            consent_id=consent_id,
            reservation_id=reservation_id,
        )
        self._log.append(record, _prompt_bytes(turn))

    def failed(self, failure: RouteFailed) -> None:
        """Note that a route failed."""
        if self._resting and failure.is_death_for_memory:
            self._resting.note_death()

    def _append(self, turn: Turn, finish: str, *, has_answer: bool) -> None:
        if turn.is_unrecorded:
            return
        taken = "none" if turn.decision is None else turn.decision.route
        record = self._record(turn, finish, (turn.route or taken) if has_answer else taken)
        turn.is_unrecorded = True  # until it is there; a second try would fail as well
        try:
            turn.audit_id = self._log.append(record, _prompt_bytes(turn))
        except RecordsUnavailable as err:
            if turn.cloud is not None:
                raise
            _leave_out(turn, err)
        else:
            turn.is_unrecorded = False

    def _record(self, turn: Turn, finish: str, route: str) -> AuditRecord:
        decision, failure = turn.decision, turn.failure
        return AuditRecord(
            app=self._options.app,
            mode=self._options.mode.value,
            route=route,
            action="" if decision is None else decision.action,
            reason="" if decision is None else decision.reason,
            trigger="" if failure is None else failure.trigger.value,
            model=self._model,
            finish=finish,
            n_switches=turn.n_switches,
            degraded=turn.degraded,
            prompt_tokens=turn.usage.prompt_tokens,
            completion_tokens=turn.usage.completion_tokens or turn.n_local_tokens,
            cloud=turn.cloud,
            micro_usd=turn.micro_usd,
            consent_id=turn.consent_id,
            reservation_id=turn.reservation_id,
            turn=turn.name if turn.n_cloud else "",
        )


def _leave_out(turn: Turn, err: RecordsUnavailable) -> None:
    turn.is_unrecorded = True
    turn.warnings.append(f"this answer is not in the audit log: {err}")


def _prompt_bytes(turn: Turn) -> bytes:
    """Return the conversation in one fixed form; the log keeps a keyed hash of it alone."""
    messages = [message.to_wire() for message in turn.request.messages]
    return json.dumps([messages, turn.request.to_wire()["tools"]], sort_keys=True).encode()
