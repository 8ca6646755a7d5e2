"""A hub's answers over HTTP, none of which is believed: bodies, redirects and time have an end.

The library reads a body whole, however long it gets, and httpx does so with that of a redirect.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from edgellm.errors import FetchError, ModelCorrupt, ModelNotFound, UsageError
from edgellm.formats.checked_json import parse_object
from edgellm.threads import Started

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

TIMEOUT_S: Final = 30.0  # to connect, and from one piece of an answer to the next
LIMIT_S: Final = 120.0  # for the whole of an answer of the API
LOGIN: Final = "run `hf auth login` with an account that may read it"
_MAX_BODY_BYTES: Final = 32 << 20  # 100,000 files with their hashes
_MAX_REDIRECTS: Final = 20
_FOUND, _UNAUTHORIZED, _FORBIDDEN = 200, 401, 403
_BAD_TOKEN: Final = "Invalid credentials in Authorization header"  # noqa: S105  # what the hub says
_NO_HUB: Final = "what does HF_ENDPOINT name? is there a proxy that asks for a login?"


@dataclass(frozen=True, slots=True)
class _Answer:
    """What came: the status, the hub's own words for an error, and the body if there is none."""

    status: int
    error_code: str
    error_message: str
    body: bytes


def open_client(headers: dict[str, str]) -> httpx.Client:
    """Return a client that asks for bodies as they are: what is counted is no compressed form.

    Args:
        headers: sent to the first server only, not where it redirects to.

    Raises:
        FetchError: the settings for a proxy in the environment cannot be used.
    """
    import httpx

    try:
        return httpx.Client(headers={**headers, "accept-encoding": "identity"}, timeout=TIMEOUT_S)
    except (ImportError, ValueError, httpx.InvalidURL) as err:
        raise FetchError(
            f"no connection can be made ({err})", hint="check HTTPS_PROXY and ALL_PROXY"
        ) from err


@contextlib.contextmanager
def answered(
    client: httpx.Client, url: str, headers: dict[str, str] | None = None
) -> Iterator[httpx.Response]:
    """Ask for a URL and give the answer, its body unread; bodies of redirects never are.

    Raises:
        httpx.HTTPError: no answer came.
        FetchError: it redirects without end.
    """
    request = client.build_request("GET", url, headers=headers)
    history: list[httpx.Response] = []
    while len(history) <= _MAX_REDIRECTS:
        response = client.send(request, stream=True, follow_redirects=False)
        with contextlib.closing(response):
            if response.next_request is None:
                response.history = history
                yield response
                return
            request = response.next_request
        history.append(response)
    raise FetchError(f"the server redirects more than {_MAX_REDIRECTS} times", hint=_NO_HUB)


def ask_object(url: str, headers: dict[str, str], name: str) -> dict[str, Any]:
    """Ask the hub's API for a JSON object.

    Args:
        url: what to ask for.
        headers: with the user's token, if there is one.
        name: of the repository, for messages.

    Raises:
        ModelNotFound: the hub has no such repository or revision.
        UsageError: it is gated or private, or the token is refused.
        FetchError: no answer, one too long or too slow, or none of a hub.
    """
    answer = _ask_in_time(url, headers, name)
    _check_status(answer, name, has_token="authorization" in headers)
    try:
        return parse_object(answer.body, Path(name))
    except ModelCorrupt as err:
        raise FetchError(f"{name}: what answers is no hub: {err.message}", hint=_NO_HUB) from err


def _ask_in_time(url: str, headers: dict[str, str], name: str) -> _Answer:
    """Ask in a thread that can be left: looking a name up, and a header that drips, have no end."""
    import httpx

    came: list[_Answer | Exception] = []

    def ask() -> None:
        try:
            came.append(_ask(url, headers))
        except (FetchError, httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as err:
            came.append(err)

    try:
        Started(ask, "edgellm-hub").join(LIMIT_S)
    except RuntimeError as err:  # "can't start new thread"
        raise FetchError(f"{name}: no thread could be started to ask the hub ({err})") from err
    if not came:
        raise FetchError(
            f"{name}: the hub has not answered within {LIMIT_S:g} seconds",
            hint="try it again later; HF_HUB_OFFLINE=1 uses what was fetched before",
        )
    [answer] = came
    if isinstance(answer, FetchError):
        raise answer
    if isinstance(answer, Exception):
        raise FetchError(
            f"{name}: the hub cannot be reached ({type(answer).__name__})",
            hint="is there a network? HF_HUB_OFFLINE=1 uses what was fetched before",
        ) from answer
    return answer


def _ask(url: str, headers: dict[str, str]) -> _Answer:
    with open_client(headers) as client, answered(client, url) as response:
        told = response.headers.get
        body = _read(response) if response.status_code == _FOUND else b""
        return _Answer(
            response.status_code, told("x-error-code", ""), told("x-error-message", ""), body
        )


def _read(response: httpx.Response) -> bytes:
    form = response.headers.get("content-encoding", "identity")
    if form.lower() not in ("", "identity"):
        raise FetchError(
            f"the hub answers in {form[:20]!r} form, which was not asked for", hint=_NO_HUB
        )
    body = bytearray()
    for chunk in response.iter_raw():
        body += chunk
        if len(body) > _MAX_BODY_BYTES:
            raise FetchError(
                f"the hub's list of files has more than {_MAX_BODY_BYTES >> 20} MB", hint=_NO_HUB
            )
    return bytes(body)


def _check_status(answer: _Answer, name: str, *, has_token: bool) -> None:
    """Raise what a status and the hub's code for it mean; 401 stands for three things."""
    status, code = answer.status, answer.error_code
    if status == _FOUND:
        return
    if code == "GatedRepo":
        raise UsageError(
            f"{name} is gated: its terms must be accepted first",
            hint=f"accept them on the model's page, then {LOGIN}",
        )
    if code == "RevisionNotFound":
        raise ModelNotFound(f"{name}: the repository has no such revision")
    hidden = status == _UNAUTHORIZED and not has_token and answer.error_message != _BAD_TOKEN
    # The hub answers 401 for what is not there too, but only where no valid token was sent.
    if hidden or (code == "RepoNotFound" and status != _UNAUTHORIZED):
        raise ModelNotFound(
            f"{name}: no such folder here, and no such model on the hub, or it is private",
            hint=f"check the spelling, or {LOGIN}",
        )
    if status in (_UNAUTHORIZED, _FORBIDDEN):
        raise UsageError(f"{name}: the hub does not let you have it (HTTP {status})", hint=LOGIN)
    raise FetchError(f"{name}: the hub answers with HTTP {status}", hint="try it again later")
