from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.cloud.failures import of_error_object, of_status, quoted, read_error

WHERE = "http://h/v1/chat/completions"


def _said(**error: Any) -> bytes:
    return json.dumps({"error": error}).encode()


@pytest.mark.parametrize(
    ("status", "body", "kind", "may_retry"),
    [
        (400, _said(message="bad", code="invalid_request"), "invalid", False),
        (401, b'{"error": "Unauthorized"}', "auth", False),
        (403, b"", "auth", False),
        (402, b"", "quota", False),
        (429, _said(message="slow down", code="rate_limit_exceeded"), "rate_limit", True),
        (429, _said(message="x", type="insufficient_quota"), "quota", False),
        (400, _said(message="Insufficient Balance"), "quota", False),
        (404, _said(message="The model `x` does not exist.", code="model_not_found"), "not_found",
         False),
        (400, _said(message="Model x not found"), "not_found", False),
        (404, b"<html>", "not_found", False),
        (405, b"", "not_found", False),
        (408, b"", "server", True),
        (409, b"", "server", True),
        (413, b"Request Entity Too Large", "too_long", False),
        (400, _said(message="too big", param="input_tokens"), "too_long", False),
        (400, _said(message="x", type="exceed_context_size_error"), "too_long", False),
        (400, _said(message="x", code="context_length_exceeded"), "too_long", False),
        (500, _said(message="maximum context length is 4096"), "too_long", False),
        (422, b'{"detail": [{"loc": ["body", "n"], "msg": "must be 1"}]}', "invalid", False),
        (500, b"boom", "server", True),
        (501, b"", "server", False),
        (502, b"<html>", "server", True),
        (503, b"", "server", True),
        (529, b"", "server", True),
        (307, b"", "redirect", False),
        (204, b"", "protocol", False),
        (418, b"", "invalid", False),
    ],
)  # fmt: skip
def test_statuses_and_bodies_have_kinds(
    status: int, body: bytes, kind: str, may_retry: bool
) -> None:
    """Each failure has the kind by which a router decides, and says whether a second try is safe."""
    err = of_status(WHERE, status, {}, body)
    assert (err.kind, err.may_retry, err.status) == (kind, may_retry, status)
    assert str(err).startswith(f"{WHERE} answers {status}")


def test_both_numbers_of_a_long_prompt_are_shown() -> None:
    """Where they stand beside the message and not in it, they are added."""
    body = _said(message="too long", type="exceed_context_size_error", n_prompt_tokens=9, n_ctx=4)
    assert "n_prompt_tokens=9" in str(of_status(WHERE, 400, {}, body))
    assert "n_ctx=4" in str(of_status(WHERE, 400, {}, body))


def test_a_list_of_details_is_one_line_without_what_was_sent() -> None:
    """Of a validator's findings place and reason are shown; the request they repeat is not."""
    found = {"loc": ["body", "messages", 0], "msg": "not a text", "input": "CANARY"}
    err = of_status(WHERE, 422, {}, json.dumps({"detail": [found]}).encode())
    assert "body.messages.0: not a text" in str(err)
    assert "CANARY" not in str(err)


@pytest.mark.parametrize(
    "text",
    ["Bad key: sk-abcdefghijk", "Bad key: MYKEY", "Authorization: Bearer x.y.z", "gsk_abcdefgh"],
)
def test_a_key_is_never_quoted(text: str) -> None:
    """Neither the one that was sent nor anything that looks like one."""
    told = str(of_status(WHERE, 401, {}, _said(message=text), "MYKEY"))
    assert "***" in told
    for secret in ("abcdefgh", "MYKEY", "x.y.z"):
        assert secret not in told


def test_a_quote_is_one_bounded_line() -> None:
    """Line ends, control characters and length of what a server says are held."""
    told = quoted("a\nb\x1b[31mc\x00" + "d" * 1000)
    assert told.startswith("a b\ufffd[31mc\ufffdd")
    assert len(told) < 320


def test_a_page_is_named_and_not_quoted() -> None:
    """Of a web page the content type is told."""
    err = of_status(WHERE, 502, {"content-type": "text/html"}, b"<html>long</html>")
    assert "a web page (text/html)" in str(err)
    assert "long" not in str(err)


def test_a_redirect_names_its_goal_without_secrets() -> None:
    """Where it leads is shown without its query and without a password."""
    headers = {"location": "http://me:pw@other:9/x?key=SECRET"}
    told = str(of_status(WHERE, 302, headers, b""))
    assert "http://other:9/x" in told
    assert "SECRET" not in told
    assert "pw" not in told
    assert of_status(WHERE, 302, {"location": "http://[::1"}, b"").kind == "redirect"
    assert "nowhere" in str(of_status(WHERE, 302, {}, b""))


def test_a_server_may_forbid_the_second_try() -> None:
    """`x-should-retry: false` is obeyed."""
    assert not of_status(WHERE, 500, {"x-should-retry": "false"}, b"").may_retry


def test_the_wait_is_told() -> None:
    """How long to wait is an attribute, and in the message."""
    err = of_status(WHERE, 429, {"retry-after": "86400"}, b"")
    assert err.retry_after_s == 86400
    assert "86,400" in str(err)


@given(st.binary(max_size=80), st.integers(201, 599), st.sampled_from(["", "text/html"]))
def test_any_error_body_is_an_error(body: bytes, status: int, content_type: str) -> None:
    """Whatever a server sends with a status, it becomes an `EndpointError` of one line."""
    assert "\n" not in str(of_status(WHERE, status, {"content-type": content_type}, body))


@pytest.mark.parametrize("value", [None, 7, [], {}, [7], {"error": 7}, {"error": [1]}, "x"])
def test_any_error_object_is_an_error(value: Any) -> None:
    """An object without a message still fails the stream."""
    assert of_error_object(WHERE, value).kind == "server"


def test_deep_json_is_a_text() -> None:
    """A body that would exhaust the parser is taken for plain text."""
    assert read_error("application/json", b"[" * 60_000).message.startswith("[[[")
