"""A program that is killed behind a request: what it sent is on record, though nobody wrote down its end."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from edgellm.runtime.books.audit import AuditLog
from edgellm.runtime.books.ledger import Ledger

PROGRAM = """
import sys, time
from pathlib import Path
from edgellm.core import Message, Mode, Request
from edgellm.paths import home_dir
from edgellm.policy.consent import Wanted, draft
from edgellm.routing import Budget, Endpoint, origin_of
from edgellm.runtime.books.consents import ConsentBook
from edgellm.runtime.opening import open_session
from edgellm.runtime.session import CloudOptions, SessionOptions

url, path = sys.argv[1], Path(sys.argv[2])
leave = draft(Wanted("edgellm", origin_of(url), "far"), micro_usd_per_day=0, now_s=time.time())
ConsentBook(home_dir()).grant(leave)
cloud = CloudOptions(Endpoint(url, "far"), Budget(), "sk-test")
options = SessionOptions(isolation="worker", mode=Mode.PREFER_CLOUD, cloud=cloud)
with open_session(path, options) as session:
    for event in session.stream(Request((Message("user", "CANARY-91d2"),), max_tokens=9)):
        print(event.type, flush=True)
"""


@pytest.mark.parametrize("n_words", [0, 1])
def test_g11_a_kill_behind_a_request_leaves_its_record(
    edgellm_home: Path, tiny_models: Path, endpoint_server: Any, n_words: int
) -> None:
    """Before a byte leaves it is written down where to: the audit is never silent about what was sent."""
    has_arrived = threading.Event()

    def handle(line: Any) -> None:
        if n_words:
            line.send(endpoint_server.OK)
            word = {"choices": [{"index": 0, "delta": {"content": "word "}}]}
            line.chunk(endpoint_server.sse(word))
        has_arrived.set()
        line.gone_s()

    with endpoint_server.serving(handle) as server:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, server.url, str(tiny_models / "tiny-llama.gguf")],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert has_arrived.wait(60)
        for _ in range(n_words):
            assert process.stdout.readline() == "token\n"
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)
        n_sent_bytes = len(server.asked[0].body)
    ((_, record),) = AuditLog(edgellm_home).show()
    assert record.is_open
    assert record.cloud is not None
    assert (record.cloud.origin, record.cloud.model) == (server.url, "far")
    assert record.cloud.bytes_out >= n_sent_bytes
    assert record.consent_id
    assert record.prompt
    assert Ledger(edgellm_home).totals()[0].n_open == 1
