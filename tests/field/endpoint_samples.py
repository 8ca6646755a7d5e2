"""Samples of sse/ and http/ as endpoints on the loopback interface, and the client's answer to them."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from edgellm.cloud.client import ChatClient
from edgellm.cloud.events import CloudEnd, CloudReasoning, CloudText, CloudToolCall
from edgellm.core import Message, Request
from edgellm.errors import EndpointError
from edgellm.routing import Clearance

MODEL = "m"


@dataclass
class Answer:
    """What came of one call: `end` is the finish reason, or the kind of the failure."""

    text: str = ""
    reasoning: str = ""
    calls: list[CloudToolCall] = field(default_factory=list)
    end: str = ""
    counts: tuple[int | None, int | None] = (None, None)
    status: int | None = None
    wait_s: float | None = None
    may_retry: bool = False
    told: str = ""


@contextlib.contextmanager
def serving(samples: Path, name: str) -> Iterator[str]:
    """Serve a sample by the samples' own program; yield the base URL that it prints."""
    process = subprocess.Popen(
        [sys.executable, "-S", str(samples / "gen_inputs.py"), "serve", str(samples / name)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def ask(client: ChatClient) -> Answer:
    """Ask once, as a router with leave does, and keep what arrives before a failure."""
    answer = Answer()
    leave = Clearance(client.address.origin, MODEL, "consent", "reservation")
    try:
        for event in client.stream(Request((Message("user", "hi"),), 5), leave):
            _take(answer, event)
    except EndpointError as err:
        answer.end, answer.status, answer.told = err.kind, err.status, str(err)
        answer.may_retry, answer.wait_s = err.may_retry, err.retry_after_s
    return answer


def _take(answer: Answer, event: CloudText | CloudReasoning | CloudToolCall | CloudEnd) -> None:
    if isinstance(event, CloudText):
        answer.text += event.text
    elif isinstance(event, CloudReasoning):
        answer.reasoning += event.text
    elif isinstance(event, CloudToolCall):
        answer.calls.append(event)
    else:
        answer.end, answer.told = event.finish_reason, event.note
        answer.counts = (event.prompt_tokens, event.completion_tokens)
