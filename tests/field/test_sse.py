"""Every sample of sse/ as the endpoint: what the client makes of it, by the table of the samples."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edgellm.cloud.client import ChatClient
from edgellm.routing import Endpoint

HERE = Path(__file__).resolve().parent
INCOMPLETE, PROTOCOL, TIMEOUT = "incomplete", "protocol", "timeout"


@dataclass(frozen=True)
class Expected:
    """How an answer ends, and what came of it; an error's name stands where it is one."""

    text: str = "Hello"
    end: str = "stop"
    reasoning: str = ""
    counts: tuple[int | None, int | None] = (None, None)
    calls: tuple[str, ...] = ()
    may_retry: bool = False
    told: str = ""


GOOD = Expected()
SAMPLES = {
    "00_ok_control": GOOD,
    "01_comments": GOOD,
    "02_meta_only_events": GOOD,
    "03_empty_data": GOOD,
    "04_crlf": GOOD,
    "05_cr_only": GOOD,
    "06_no_space_after_colon": GOOD,
    "07_multi_line_data": GOOD,
    "08_bom": GOOD,
    "09_one_byte_at_a_time": Expected("안녕 👋"),
    "10_usage_chunk_empty_choices": Expected(counts=(3, 2)),
    "11_azure_first_chunk": GOOD,
    "12_choices_missing": GOOD,
    "13_null_content": GOOD,
    "14_reasoning_content": Expected(reasoning="Let me think. OK."),
    "15_reasoning_field": Expected(reasoning="hm"),
    "16_only_reasoning": Expected("", "length", reasoning="thinking...", told="reasoning"),
    "17_eof_no_end_marker": Expected("Hel", INCOMPLETE),
    "18_abrupt_mid_json": Expected("Hel", INCOMPLETE),
    "19_abrupt_before_first_token": Expected("", INCOMPLETE, may_retry=True),
    "20_abrupt_after_text": Expected("Hello", INCOMPLETE),
    "21_hang_after_text": Expected("Hel", TIMEOUT, told="phase: idle"),
    "22_slow_but_alive": GOOD,
    "23_bad_json_chunk": Expected("Hel", PROTOCOL),
    "24_html_200": Expected("", PROTOCOL, told="text/event-stream"),
    "25_json_not_stream": GOOD,
    "26_tool_two_parallel": Expected("", "tool_calls", calls=('{"p":1}', '{"p":2}')),
    "27_tool_no_index": Expected("", "tool_calls", calls=('{"p":1}', '{"p":2}')),
    "28_two_choices": Expected("A"),
    "29_after_done": GOOD,
    "30_done_then_hang": GOOD,
    "31_content_filter": Expected("Hel", "content_filter"),
    "32_ninety_kb_line": Expected("x" * 60_000),
}
IDLE_S = 0.3


def test_every_sample_is_expected() -> None:
    """A new sample in the table fails until somebody says what becomes of it."""
    rows = json.loads((HERE / "MANIFEST.json").read_text("utf-8"))
    names = {row["file"] for row in rows if row["file"].startswith("sse/")}
    assert names == {f"sse/{name}.json" for name in SAMPLES}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_stream_is_read_by_its_table(
    name: str, field_samples: Path, endpoint_samples: Any
) -> None:
    """Text, thoughts, calls, counts and end are the sample's; a failure keeps what came before."""
    expected = SAMPLES[name]
    with endpoint_samples.serving(field_samples, f"sse/{name}.json") as url:
        began_s = time.monotonic()
        answer = endpoint_samples.ask(ChatClient(Endpoint(url, "m", idle_s=IDLE_S)))
        took_s = time.monotonic() - began_s
    assert answer.text == expected.text
    assert answer.reasoning == expected.reasoning
    assert answer.end == expected.end
    assert answer.counts == expected.counts
    assert [call.arguments for call in answer.calls] == list(expected.calls)
    assert all(call.name == "f" for call in answer.calls)
    assert answer.may_retry is expected.may_retry
    assert expected.told in answer.told
    assert name == "22_slow_but_alive" or took_s < IDLE_S + 2  # 30 is over at its marker
