"""The words for places beyond this process: triggers, endpoints, limits, and the leave to send.

A `Clearance` is the only thing for which the cloud room sends a prompt. One function makes them, and
only for a decision that said `cloud`: `policy.route.clear`.
"""

from __future__ import annotations

import enum
import ipaddress
import math
import re
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import urlsplit

from edgellm.errors import UsageError
from edgellm.wire import Wire

Phase = Literal["load", "context", "prefill", "decode", "snapshot"]
"""What a model was doing when memory ran out or its process ended."""

OnFailure = Literal["resume-local", "restart", "continue", "stop"]
"""What becomes of an answer whose beginning was shown when its route fails."""

Continuation = Literal["none", "flags", "trailing"]
"""How an endpoint goes on with an answer that was begun elsewhere.

`flags`: `continue_final_message` with `add_generation_prompt` off, as vLLM takes; `trailing`: a last
message of the assistant is gone on with, as llama-server does; `none`: it cannot.
"""

MAX_USD: Final = 1e6
_MAX_SECONDS: Final = 24 * 3600.0
_LABEL: Final = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST_NAME: Final = re.compile(rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*\.?")
_NUMBER: Final = re.compile(r"(?:^|\.)(?:[0-9]+|0x[0-9a-f]*)\.?$")
_PORTS: Final = {"http": 80, "https": 443}


class Trigger(str, enum.Enum):
    """Why the way an answer was to be made does not do."""

    NO_FIT = "no_fit"  # M1: the plan says it cannot fit
    LOAD_OOM = "load_oom"  # M2
    WORKER_DIED = "worker_died"  # M3: with evidence that memory ran out
    WORKER_KILLED = "worker_killed"  # somebody's kill, or a crash: restarted here, never sent out
    DECODE_FATAL = "decode_fatal"  # M4
    PRESSURE = "pressure"  # M5
    CONTEXT = "context"  # C1: prompt and answer are longer than any context that fits
    DEADLINE = "deadline"  # D1
    UNSUPPORTED = "unsupported"  # U1: no engine, no such model, or one that nobody here can run
    CLOUD_FAILED = "cloud_failed"  # the endpoint was tried first, and failed


@dataclass(frozen=True, slots=True)
class Endpoint(Wire):
    """An OpenAI-compatible server that may be asked, where mode, consent and budget say so.

    Attributes:
        url: its base, with or without `/v1`, or the whole address of its chat completions.
        model: what it calls the model.
        usd_per_mtok_in: price of a million prompt tokens; None is unknown, which no budget allows.
        usd_per_mtok_out: of a million answer tokens.
        continues: how it goes on with an answer that was begun elsewhere.
        ca_file: certificates to trust in place of the system's, or "".
        uses_proxy: whether the proxy variables of the environment count; never for loopback.
        connect_s: the longest wait for a connection.
        first_byte_s: from there to the first byte of the answer.
        idle_s: between two bytes.
    """

    url: str
    model: str
    usd_per_mtok_in: float | None = None
    usd_per_mtok_out: float | None = None
    continues: Continuation = "none"
    ca_file: str = ""
    uses_proxy: bool = False
    connect_s: float = 10.0
    first_byte_s: float = 120.0
    idle_s: float = 60.0

    def __post_init__(self) -> None:
        if not self.url or not self.model:
            raise UsageError("an endpoint needs a URL and the name of a model")
        for name in ("usd_per_mtok_in", "usd_per_mtok_out"):
            price = getattr(self, name)
            if price is not None:
                _check(name, price, MAX_USD)
        for name in ("connect_s", "first_byte_s", "idle_s"):
            _check(name, getattr(self, name), _MAX_SECONDS)


@dataclass(frozen=True, slots=True)
class Budget(Wire):
    """The most that may be spent on endpoints; None is no limit of that kind.

    Attributes:
        usd_per_day: of all programs that share `EDGELLM_HOME`, from midnight UTC.
        usd_per_request: of one answer.
        tokens_per_day: prompts and answers together.
        bytes_per_day: sent out.
        allow_unpriced: whether an endpoint without a known price may be asked.
    """

    usd_per_day: float | None = None
    usd_per_request: float | None = None
    tokens_per_day: int | None = None
    bytes_per_day: int | None = None
    allow_unpriced: bool = False


@dataclass(frozen=True, slots=True)
class Clearance:
    """The leave to send one request to one place.

    Attributes:
        origin: scheme, host and port that it may go to, such as `http://127.0.0.1:8080`.
        model: what may be asked there.
        consent_id: under which consent.
        reservation_id: what was put aside for it in the budget.
        max_bytes: the longest body it may send.
    """

    origin: str
    model: str
    consent_id: str
    reservation_id: str
    max_bytes: int = field(default=1 << 26)


@dataclass(frozen=True, slots=True)
class CloudUse(Wire):
    """What an answer took of an endpoint.

    Attributes:
        origin: scheme, host and port.
        model: that was asked.
        prompt_tokens: by the endpoint's count, or an estimate.
        cached_tokens: of them, found in the endpoint's own prefix cache.
        completion_tokens: of the answer.
        usd: cost at the configured prices; None where they are unknown.
        bytes_out: sent.
        bytes_in: received.
        estimated: whether the counts are guesses, because the endpoint gave none.
    """

    origin: str
    model: str
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    usd: float | None = None
    bytes_out: int = 0
    bytes_in: int = 0
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class ShareOptions:
    """A place where machines share prefix snapshots, and how one of them uses it.

    Attributes:
        url: `redis://`, `rediss://` or `unix://`; it may hold a password and is never shown.
        secret: what all machines that share the place know, at least 16 bytes; never shown.
        trusted: whether this place may see prompts though it is another machine.
        writes_back: put there what this machine makes, too.
        max_bytes: larger snapshots are neither fetched nor sent.
    """

    url: str = field(repr=False)
    secret: bytes = field(repr=False)
    trusted: bool = False
    writes_back: bool = False
    max_bytes: int = 256 << 20


def origin_of(url: str) -> str:
    """Return where a URL leads: scheme, host and port, in one spelling, without the scheme's own port.

    Raises:
        UsageError: it is no `http://` or `https://` address, holds a name or a password, or could
            mean one host here and another elsewhere.
    """
    hint = "write it as `https://host:port/v1`; a name beyond ASCII in its `xn--` form"
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme, parts.hostname or "", parts.port
    except ValueError as err:
        raise UsageError("the endpoint's URL cannot be read", hint=hint) from err
    if scheme not in _PORTS:
        raise UsageError("the endpoint's URL has no scheme http or https", hint=hint)
    if "@" in parts.netloc:  # never shown: it may be a password
        raise UsageError("the endpoint's URL holds a name or password", hint=hint)
    if any(char <= " " or char in "\\\x7f" for char in url) or not _is_host(host) or port == 0:
        raise UsageError("the endpoint's URL names no host, or one that is unclear", hint=hint)
    shown = f"[{ipaddress.ip_address(host)}]" if ":" in host else host
    return f"{scheme}://{shown}" + ("" if port in (None, _PORTS[scheme]) else f":{port}")


def is_loopback_host(host: str) -> bool:
    """Return whether a host can only be this machine.

    Names other than `localhost` are not looked up: what they mean may change after the answer.
    """
    if host == "localhost":
        return True
    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(number, "ipv4_mapped", None)
    return number.is_loopback or (mapped is not None and mapped.is_loopback)


def _is_host(host: str) -> bool:
    try:
        if ":" in host:
            return "%" not in host and ipaddress.ip_address(host).version == 6
        if _NUMBER.search(host):  # `127.1` and `0x7f.1` mean an address to some, a name to others
            return ipaddress.ip_address(host).version == 4
    except ValueError:
        return False
    return _HOST_NAME.fullmatch(host) is not None


def _check(name: str, value: object, high: float) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= float(value) <= high or math.isnan(float(value)):  # type: ignore[arg-type]  # it is one
        raise UsageError(f"{name} must be a number between 0 and {high:g}, not {value!r}")
