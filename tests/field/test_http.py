"""Every sample of http/ as the endpoint: what the client tells a router of it, by their table.

The client asks once. The waits and second tries of the table are the router's, which has the one loop;
here it is held that it is told enough to do so.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from edgellm.cloud.client import ChatClient
from edgellm.routing import Endpoint

HERE = Path(__file__).resolve().parent
KEY = "sk-FIELDSECRETSECRETSECRET"
DECADES_S = 20 * 365 * 24 * 3600


@dataclass(frozen=True)
class Expected:
    """The failure of the first try; `then` is the text of the second, where one may be made."""

    kind: str
    status: int
    may_retry: bool = False
    wait_s: float | None = None
    told: str = ""
    then: str | None = None


SAMPLES = {
    "01_429_retry_after_1": Expected("rate_limit", 429, True, 1, "slow down", "Hello"),
    "02_429_retry_after_90": Expected("rate_limit", 429, True, 90, "90", "Hello"),
    "03_429_retry_after_86400": Expected("rate_limit", 429, True, 86400, "86,400", "Hello"),
    "04_429_http_date_future": Expected("rate_limit", 429, True, DECADES_S, "", "Hello"),
    "05_429_http_date_past": Expected("rate_limit", 429, True, 0, "", "Hello"),
    "06_429_ms_header": Expected("rate_limit", 429, True, 0.3, "", "Hello"),
    "07_429_no_header": Expected("rate_limit", 429, True, None, "", "Hello"),
    "08_429_quota": Expected("quota", 429, told="quota"),
    "09_401": Expected("auth", 401, told="Incorrect API key provided: ***"),
    "10_404_html": Expected("not_found", 404, told="/v1/chat/completions"),
    "11_500_then_ok": Expected("server", 500, True, None, "boom", "Hello"),
    "12_503_empty": Expected("server", 503, True, None, "503"),
    "13_413": Expected("too_long", 413, told="too large"),
    "14_307_other_host": Expected("redirect", 307, told="127.0.0.2"),
    "15_400_max_tokens": Expected("invalid", 400, True, None, "max_completion_tokens", "Hello"),
    "16_400_context": Expected("too_long", 400, told="4096 tokens, you sent 9000"),
}


def test_every_sample_is_expected() -> None:
    """A new sample in the table fails until somebody says what becomes of it."""
    rows = json.loads((HERE / "MANIFEST.json").read_text("utf-8"))
    names = {row["file"] for row in rows if row["file"].startswith("http/")}
    assert names == {f"http/{name}.json" for name in SAMPLES}


def _seen(url: str) -> list[dict[str, Any]]:
    seen: list[dict[str, Any]] = httpx.get(url.removesuffix("v1"), trust_env=False).json()
    return seen


@pytest.mark.parametrize("name", SAMPLES)
def test_a_failure_is_told_by_its_table(
    name: str, field_samples: Path, endpoint_samples: Any
) -> None:
    """Kind, status, wait and the leave for a second try; one request, and no key in the message."""
    expected = SAMPLES[name]
    with endpoint_samples.serving(field_samples, f"http/{name}.json") as url:
        client = ChatClient(Endpoint(url, "m"), KEY)
        first = endpoint_samples.ask(client)
        requests = _seen(url)
        then = endpoint_samples.ask(client) if expected.then else None
        seen = _seen(url)
    assert (first.end, first.status, first.text) == (expected.kind, expected.status, "")
    assert first.may_retry is expected.may_retry
    if expected.wait_s == DECADES_S:
        assert first.wait_s > DECADES_S
    else:
        assert first.wait_s == expected.wait_s
    assert expected.told in first.told
    assert KEY not in first.told
    assert len(requests) == 1
    assert requests[0]["headers"]["Authorization"] == f"Bearer {KEY}"
    if then is not None:
        assert (then.text, then.end, len(seen)) == (expected.then, "stop", 2)
    for request in seen:  # one name of the limit at a time
        assert ("max_tokens" in request["body"]) != ("max_completion_tokens" in request["body"])
