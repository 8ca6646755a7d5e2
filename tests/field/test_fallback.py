"""Samples of sse/ and http/ behind the real router: what a user gets where the endpoint must answer.

The local model is a file that is not there, or an engine that is not installed; so every answer is the
endpoint's, through decision, consent and budget, and what the table says of waits and second tries holds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from edgellm.config import set_value
from edgellm.core import Done, Event, Failure, Message, Mode, Request, Token
from edgellm.errors import EndpointError
from edgellm.policy.consent import Wanted, draft
from edgellm.routing import Budget, Endpoint, origin_of
from edgellm.runtime.books.audit import AuditLog
from edgellm.runtime.books.consents import ConsentBook
from edgellm.runtime.opening import open_session
from edgellm.runtime.proving.tiny import write_tiny_model
from edgellm.runtime.session import CloudOptions, SessionOptions

KEY = "sk-FIELDSECRETSECRETSECRET"
ASKED = Request((Message("user", "hi"),), max_tokens=5)


@dataclass(frozen=True)
class Seen:
    """What a reader got, and what the endpoint was asked."""

    events: list[Event]
    n_requests: int
    took_s: float

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, Token))

    @property
    def last(self) -> Any:
        return self.events[-1]


def consent(home: Path, url: str) -> None:
    wanted = Wanted("edgellm", origin_of(url), "m")
    ConsentBook(home).grant(draft(wanted, micro_usd_per_day=1_000_000, now_s=time.time()))


@pytest.fixture
def ask(edgellm_home: Path, tmp_path: Path, field_samples: Path, endpoint_samples: Any):
    """Ask a session whose endpoint is a sample."""

    def ask_once(sample: str, **settings: Any) -> Seen:
        with endpoint_samples.serving(field_samples, f"{sample}.json") as url:
            consent(edgellm_home, url)
            endpoint = Endpoint(url, "m", **{"first_byte_s": 2.0, "idle_s": 1.0} | settings)
            cloud = CloudOptions(endpoint, Budget(), KEY)
            options = SessionOptions(mode=Mode.PREFER_LOCAL, cloud=cloud)
            with open_session(tmp_path / "there-is-none.gguf", options) as session:
                began_s = time.monotonic()
                events = list(session.stream(ASKED))
                took_s = time.monotonic() - began_s
            asked = httpx.get(url.removesuffix("v1"), trust_env=False).json()
        return Seen(events, len(asked), took_s)

    return ask_once


@pytest.mark.parametrize(
    ("sample", "n_requests", "least_s"),
    [
        ("http/01_429_retry_after_1", 2, 1.0),
        ("http/05_429_http_date_past", 2, 0.3),
        ("http/06_429_ms_header", 2, 0.3),
        ("http/07_429_no_header", 2, 0.3),
        ("http/11_500_then_ok", 2, 0.3),
        ("sse/00_ok_control", 1, 0.0),
        ("sse/22_slow_but_alive", 1, 0.0),
    ],
)
def test_f_cf_05_what_passes_is_waited_for(
    ask: Callable[..., Seen], sample: str, n_requests: int, least_s: float
):
    """Not shorter than the endpoint asks; then the answer is whole, and one."""
    seen = ask(sample)
    assert (seen.text, seen.n_requests) == ("Hello", n_requests), seen.last
    assert isinstance(seen.last, Done)
    assert (seen.last.text, seen.last.route) == ("Hello", "cloud")
    assert seen.took_s >= least_s


@pytest.mark.parametrize(
    ("sample", "kind"),
    [
        ("http/02_429_retry_after_90", "90"),
        ("http/03_429_retry_after_86400", "86,400"),
        ("http/04_429_http_date_future", "come again in 2,"),
        ("http/08_429_quota", "quota"),
        ("http/09_401", "***"),
        ("http/10_404_html", "/v1/chat/completions"),
        ("http/13_413", "too large"),
        ("http/14_307_other_host", "127.0.0.2"),
        ("http/16_400_context", "4096"),
    ],
)
def test_f_cf_05_what_does_not_pass_ends_at_once(ask: Callable[..., Seen], sample: str, kind: str):
    """One request, the endpoint's own word in the error, and no key in it."""
    seen = ask(sample)
    assert isinstance(seen.last, Failure)
    assert (seen.text, seen.n_requests, seen.last.code) == ("", 1, EndpointError.code)
    assert kind in seen.last.message
    assert KEY not in seen.last.message
    assert seen.took_s < 5


@pytest.mark.parametrize(
    ("sample", "text"),
    [
        ("sse/17_eof_no_end_marker", "Hel"),
        ("sse/18_abrupt_mid_json", "Hel"),
        ("sse/20_abrupt_after_text", "Hello"),
        ("sse/21_hang_after_text", "Hel"),
        ("sse/23_bad_json_chunk", "Hel"),
    ],
)
def test_f_cf_03_half_an_answer_is_no_answer(
    ask: Callable[..., Seen], edgellm_home: Path, sample: str, text: str
):
    """Its text is kept and comes once; the end is an error, and the log says that it was none."""
    seen = ask(sample)
    assert isinstance(seen.last, Failure)
    assert (seen.text, seen.n_requests) == (text, 1)
    ((_, record),) = AuditLog(edgellm_home).show()
    assert (record.finish, record.cloud is not None) == (EndpointError.code, True)


def test_f_cf_04_what_broke_off_before_any_text_may_be_asked_again(ask: Callable[..., Seen]):
    """As often as the router tries in all; nothing was shown, so nothing is doubled."""
    seen = ask("sse/19_abrupt_before_first_token")
    assert (seen.text, seen.n_requests) == ("", 3)
    assert isinstance(seen.last, Failure)


WITHOUT_ENGINE = """
import sys
for name in ("llama_cpp", "onnxruntime"):
    sys.modules[name] = None  # as if it were not installed
from edgellm.cli.app import main
sys.exit(main())
"""


def _without_engine(tmp_path: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command where no engine can be imported, in workers as well."""
    hidden = tmp_path / "hidden" / "llama_cpp.py"
    hidden.parent.mkdir(exist_ok=True)
    hidden.write_text("raise ModuleNotFoundError(name='llama_cpp')\n", encoding="utf-8")
    root = Path(__file__).resolve().parents[2]
    paths = os.pathsep.join([str(hidden.parent), os.environ.get("PYTHONPATH", str(root))])
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_ENGINE, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_f_pk_03_without_an_engine_the_endpoint_still_serves(
    tmp_path: Path, edgellm_home: Path, field_samples: Path, endpoint_samples: Any
):
    """Where it may: with mode, endpoint and consent it answers, else the extra is named; exit 1."""
    model = tmp_path / "tiny.gguf"
    write_tiny_model(model)
    refused = _without_engine(tmp_path, "run", model, "hi")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "llama-cpp-python" in refused.stderr
    with endpoint_samples.serving(field_samples, "sse/00_ok_control.json") as url:
        set_value("endpoint.url", url)
        set_value("endpoint.model", "m")
        consent(edgellm_home, url)
        done = _without_engine(
            tmp_path, "run", model, "hi", "--mode", "prefer-local", "--json", "-n", 5
        )
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["text"], last["route"]) == ("Hello", "cloud")
