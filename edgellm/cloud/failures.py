"""Failures of endpoints as `EndpointError`: from statuses, error bodies and broken connections.

A message quotes at most a few hundred characters of what the server said, and never the key, what looks
like one, a query, or the part of an answer that repeats the request.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from edgellm.cloud.waiting import asked_wait_s
from edgellm.errors import EndpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgellm.errors import EndpointFailure

MAX_QUOTED_CHARS: Final = 300
_MAX_READ_CHARS: Final = 4096
_FEW_CHARS: Final = 4  # of a key: they give nothing away
_LOOKS_SECRET: Final = re.compile(
    r"(?i)\b(?:sk|pk|rk|gsk|hf|xai|nvapi|key)[-_][\w\-*.]{6,}|\bbearer\s+[^\s\"',]+"
)
_QUOTA: Final = re.compile(
    r"insufficient_quota|insufficient[ _](?:balance|credit|fund)|billing_(?:hard_limit|not_active)"
    r"|exceeded your current quota",
    re.IGNORECASE,
)
_TOO_LONG: Final = re.compile(
    r"context_length_exceeded|exceed_context_size|maximum context length|available context size"
    r"|context[ _]window|input_tokens|prompt is too long|maximum input length",
    re.IGNORECASE,
)
_NO_MODEL: Final = re.compile(
    r"model_not_found|model [^.]{0,80}(?:does not exist|not found)", re.IGNORECASE
)
_RETRIABLE: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})


@dataclass(frozen=True, slots=True)
class Said:
    """What an error body says: its message for people, and all its words for telling kinds apart."""

    message: str
    words: str
    param: str = ""
    status: int | None = None


def said_in(value: object) -> Said:
    """Read an error in one of the forms there are: an object, a text, a `detail`, a list of those."""
    if isinstance(value, dict) and value.get("error"):
        value = value["error"]
    elif isinstance(value, dict) and value.get("detail"):
        value = value["detail"]
    if isinstance(value, list):
        parts = [said_in(item) for item in value[:4]]
        return Said("; ".join(p.message for p in parts), " ".join(p.words for p in parts))
    if not isinstance(value, dict):
        text = value[:_MAX_READ_CHARS] if isinstance(value, str) else ""
        return Said(text, text)
    told = (value.get(name) for name in ("message", "msg"))
    message = next((t[:_MAX_READ_CHARS] for t in told if isinstance(t, str)), "")
    place = value.get("loc")
    if isinstance(place, list):
        message = f"{'.'.join(str(part) for part in place[:6])}: {message}"
    code, param = value.get("code"), value.get("param")
    counted = [f"{n}={value[n]}" for n in ("n_prompt_tokens", "n_ctx") if _is_int(value.get(n))]
    named = [str(value[n])[:100] for n in ("type", "code", "param") if value.get(n)]
    return Said(
        " ".join([message, *(f"({c})" for c in counted if c.split("=")[1] not in message)]),
        " ".join([message, *named, *counted]),
        param if isinstance(param, str) else "",
        code if isinstance(code, int) and 400 <= code <= 599 else None,
    )


def of_status(
    where: str, status: int, headers: Mapping[str, str], body: bytes, key: str = ""
) -> EndpointError:
    """Return the error for an answer whose status is not 200."""
    if 300 <= status < 400:
        return EndpointError(
            f"{where} answers {status} and points to {_place(headers.get('location', ''), where, key)}",
            kind="redirect",
            status=status,
            hint="redirects are not followed; set the endpoint's URL to the address it means",
        )
    said = read_error(headers.get("content-type", ""), body)
    kind, hint = _kind_of(status, said)
    refused = headers.get("x-should-retry", "").lower() == "false"
    wait_s = asked_wait_s(headers)
    told = quoted(said.message, key)
    return EndpointError(
        f"{where} answers {status}"
        + (f": {told}" if told else "")
        + (f"; it asks to come again in {wait_s:,.1f} s" if wait_s else ""),
        kind=kind,
        status=status,
        retry_after_s=wait_s,
        may_retry=kind in {"rate_limit", "server"} and status in _RETRIABLE and not refused,
        hint=hint,
    )


def of_error_object(
    where: str, value: object, *, key: str = "", may_retry: bool = False
) -> EndpointError:
    """Return the error for an error object that came within a stream, or with status 200."""
    said = said_in(value)
    kind, hint = _kind_of(said.status or 500, said)
    told = quoted(said.message, key) or "no message"
    return EndpointError(
        f"{where} failed while it answered: {told}",
        kind=kind,
        status=said.status,
        may_retry=may_retry and kind in {"rate_limit", "server"},
        hint=hint,
    )


def quoted(text: str, key: str = "") -> str:
    """Return a server's words as they may be shown: one line, bounded, no key in them."""
    if key:
        text = _without_end_of(key, text.replace(key, "***"))
    text = _LOOKS_SECRET.sub("***", " ".join(text.split()))
    text = "".join(char if char.isprintable() else "\ufffd" for char in text)
    return text if len(text) <= MAX_QUOTED_CHARS else text[:MAX_QUOTED_CHARS] + "..."


def _without_end_of(key: str, text: str) -> str:
    """Return a text without the beginning of a key at its end, where it may have been cut."""
    ends = (n for n in range(len(key) - 1, _FEW_CHARS, -1) if text.endswith(key[:n]))
    return text[:-n] + "***" if (n := next(ends, 0)) else text


def _kind_of(status: int, said: Said) -> tuple[EndpointFailure, str]:
    """Return the kind of a failure and what to do; the first rule that fits."""
    if status in {401, 403}:
        return "auth", "check the key: EDGELLM_API_KEY or the keyring"
    if status == 402 or _QUOTA.search(said.words):
        return "quota", "the account's quota or money is used up: waiting does not help"
    if status == 429:
        return "rate_limit", ""
    if status == 413 or _TOO_LONG.search(said.words):
        return "too_long", "the request is too large for it: shorten the conversation"
    if status in {404, 405} or _NO_MODEL.search(said.words):
        if said.message and _NO_MODEL.search(said.words):
            return "not_found", "check the endpoint's model name"
        return "not_found", "check the endpoint's URL: does it need /v1 at its end, or none?"
    if status >= 500 or status in {408, 409, 425}:
        return "server", ""
    if status < 400:
        return "protocol", ""
    return "invalid", ""


def read_error(content_type: str, body: bytes) -> Said:
    """Read an error body, which may be JSON, a text, a web page or nothing."""
    text = body.decode("utf-8", "replace").strip()
    if text[:1] in {"{", "[", '"'}:
        try:
            return said_in(json.loads(text))
        except (ValueError, RecursionError):
            pass
    if text.startswith("<") or "html" in content_type:
        return Said(f"a web page ({content_type or 'no content type'})", "")
    return Said(text[:_MAX_READ_CHARS], text[:_MAX_READ_CHARS])


def _place(location: str, where: str, key: str) -> str:
    """Return where a redirect leads, without its query."""
    try:
        parts = urlsplit(location)
    except ValueError:
        return "no address"
    host = parts.netloc.rpartition("@")[2]
    place = f"{parts.scheme}://{host}{parts.path}" if host else parts.path
    return quoted(place, key) or f"nowhere ({where} gives no location)"


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
