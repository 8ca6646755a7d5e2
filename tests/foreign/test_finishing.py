"""An answer whose worker runs out of memory, finished by a real second server: in the default run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from edgellm.core import Done, Message, Mode, Request, Sampling, Switch, Token
from edgellm.policy.consent import Wanted, draft
from edgellm.routing import Budget, Endpoint, origin_of
from edgellm.runtime.books.audit import AuditLog
from edgellm.runtime.books.consents import ConsentBook
from edgellm.runtime.opening import open_session
from edgellm.runtime.session import CloudOptions, SessionOptions

pytestmark = pytest.mark.model

ASKED = Request(
    (
        Message("system", "You are a poet of the sea. Answer in plain words."),
        Message("user", "Name three things that one finds on a beach."),
    ),
    max_tokens=24,
    sampling=Sampling(temperature=0),
)


@pytest.mark.parametrize("fault", ["decode:5:oom", "prefill:1:oom"])
def test_a_real_server_finishes_what_this_machine_cannot(
    llama_server: Any,
    smollm2_gguf: Path,
    edgellm_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    """`prefer-local`, two deaths for memory: one `Switch` to the endpoint, and a whole answer."""
    monkeypatch.setenv("EDGELLM_WORKER_FAULT", fault)
    endpoint = Endpoint(llama_server.url, llama_server.model, continues="trailing")
    wanted = Wanted("edgellm", origin_of(endpoint.url), endpoint.model)
    ConsentBook(edgellm_home).grant(draft(wanted, micro_usd_per_day=0, now_s=time.time()))
    options = SessionOptions(
        n_ctx=512,
        mode=Mode.PREFER_LOCAL,
        cloud=CloudOptions(endpoint, Budget(), llama_server.key),
    )
    with open_session(smollm2_gguf, options) as session:
        events = list(session.stream(ASKED))
    done = events[-1]
    assert isinstance(done, Done), done
    pieces = [event.text for event in events if isinstance(event, Token)]
    assert done.text == "".join(pieces)
    routes = [(event.source, event.target) for event in events if isinstance(event, Switch)]
    assert routes.count(("local", "cloud")) == 1
    assert done.route == "cloud"
    assert done.cloud is not None
    assert done.cloud.completion_tokens > 4
    (record,) = [record for _, record in AuditLog(edgellm_home).show()]
    assert (record.route, record.trigger) == ("cloud", "worker_died")
    assert record.cloud == done.cloud
