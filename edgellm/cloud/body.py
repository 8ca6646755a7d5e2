"""The body of a request, as bytes: one conversation always begins with the same ones.

What stays from turn to turn comes first (model, tools, messages in their order), what may change comes
behind them, and there is no time and no random name anywhere: a server's own prefix cache can hit.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from edgellm.core import Sampling
from edgellm.errors import EndpointError

if TYPE_CHECKING:
    from edgellm.core import Request
    from edgellm.routing import Endpoint

MAX_STOPS: Final = 4
"""More stop strings some endpoints refuse; whoever receives the text looks for all of them."""

_MAX_SEED: Final = (1 << 63) - 1
_REFUSED: Final = re.compile(
    r"unsupported|not supported|does not support|unknown|unrecognized|unexpected|extra|not permitted",
    re.IGNORECASE,
)
_OLD_LIMIT: Final = "max_tokens"
_NEW_LIMIT: Final = "max_completion_tokens"


@dataclass(frozen=True, slots=True)
class Dialect:
    """What an endpoint was found to want otherwise.

    Attributes:
        limit_name: of the field that bounds the answer; never are both sent.
        without: fields it refuses, and can do without.
    """

    limit_name: str = _OLD_LIMIT
    without: frozenset[str] = frozenset()


def body_of(
    request: Request, endpoint: Endpoint, begun: str = "", dialect: Dialect | None = None
) -> bytes:
    """Return the body to send.

    Args:
        request: the whole conversation.
        endpoint: whose model is asked.
        begun: the beginning of the answer that was shown already, to be gone on with.
        dialect: what the endpoint wants otherwise.

    Raises:
        EndpointError: `begun` is given, and the endpoint does not go on with answers.
    """
    dialect = dialect or Dialect()
    body: dict[str, Any] = {"model": endpoint.model}
    if request.tools:
        body["tools"] = request.tools
    body["messages"] = [{"role": m.role, "content": m.content} for m in request.messages]
    body |= _continuation(endpoint, body["messages"], begun)
    body |= {n: v for n, v in _settings(request, dialect).items() if n not in dialect.without}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def learned(dialect: Dialect, request: Request, words: str, param: str) -> Dialect | None:
    """Return what a refusal (400 or 422) teaches of an endpoint, or None.

    Only what a request can do without is left out: a value that was set by hand is not.

    Args:
        dialect: the one that was refused.
        request: what was asked.
        words: all that the error body says.
        param: the field it names, or "".
    """
    if dialect.limit_name == _OLD_LIMIT and request.max_tokens and _NEW_LIMIT in words:
        return replace(dialect, limit_name=_NEW_LIMIT)
    if not (param or _REFUSED.search(words)):
        return None
    for name in _dispensable(request) - dialect.without:
        if param.partition(".")[0] == name or re.search(rf"\b{name}\b", words):
            return replace(dialect, without=dialect.without | {name})
    return None


def _dispensable(request: Request) -> frozenset[str]:
    names = {"stream_options"}
    for name in ("temperature", "top_p"):
        if getattr(request.sampling, name) == getattr(Sampling(), name):
            names.add(name)
    return frozenset(names)


def _continuation(endpoint: Endpoint, messages: list[dict[str, str]], begun: str) -> dict[str, Any]:
    """Add the answer's beginning to the messages; return the fields that say what it is."""
    if not begun:
        return {}
    if endpoint.continues == "none":
        raise EndpointError(
            "the endpoint is not known to go on with an answer that was begun elsewhere",
            kind="invalid",
            hint="set its `continues` to flags or trailing if it can",
        )
    # White space at its end would change the tokens that follow; the joint puts it right again.
    if begun.rstrip():
        messages.append({"role": "assistant", "content": begun.rstrip()})
        if endpoint.continues == "flags":
            return {"add_generation_prompt": False, "continue_final_message": True}
    return {}


def _settings(request: Request, dialect: Dialect) -> dict[str, Any]:
    sampling = request.sampling
    fields: dict[str, Any] = {}
    if request.max_tokens is not None:
        fields[dialect.limit_name] = request.max_tokens
    fields |= {"temperature": sampling.temperature, "top_p": sampling.top_p}
    if stops := [text for text in request.stop if _can_occur(text)]:
        fields["stop"] = stops[:MAX_STOPS]
    if sampling.seed is not None:
        fields["seed"] = sampling.seed & _MAX_SEED
    return fields | {"stream": True, "stream_options": {"include_usage": True}}


def _can_occur(text: str) -> bool:
    """Return whether a text can be sent, and so be in an answer: half a surrogate cannot."""
    return not any("\ud800" <= char <= "\udfff" for char in text)
