"""LLM: the friendly face of a session for Python programs: strings in, events or text out."""

from __future__ import annotations

import dataclasses
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

from edgellm.closing import Closing
from edgellm.core import Message, Mode, Request, Sampling, Tier
from edgellm.engines.base import EngineSettings, FlashAttention
from edgellm.errors import UsageError
from edgellm.prompt.documents import system_message
from edgellm.routing import Budget, Endpoint, OnFailure, ShareOptions
from edgellm.runtime.opening import open_session
from edgellm.runtime.routes import RouteWishes, with_routes
from edgellm.runtime.session import Isolation, SessionOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from os import PathLike

    from edgellm.core import Done, Event, ModelInfo, SnapshotUse
    from edgellm.runtime.session import Session, SessionFacts


_MAX_NUMBER: Final = (1 << 31) - 1  # what engines count in
_PAIR: Final = 2


class LLM(Closing):
    """A loaded model. It makes one answer at a time; asking for a second meanwhile is refused.

    Args:
        session: who answers.
        system: the system prompt of every request that brings none of its own.
        documents: texts that follow it; those before the first that changes are read once.
    """

    def __init__(
        self, session: Session, system: str | None = None, documents: Sequence[str] = ()
    ) -> None:
        self._session = session
        self.system = system
        self.documents = tuple(documents)

    @property
    def model(self) -> ModelInfo:
        """Return what the model file says of itself."""
        return self._session.model

    def facts(self) -> SessionFacts:
        """Return the settings as they were resolved."""
        return self._session.facts()

    def stream(
        self,
        prompt: str | Sequence[Message] | Request,
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        sampling: Sampling | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Iterator[Event]:
        """Answer piece by piece; the last event is `Done` or `Failure`.

        Args:
            prompt: a question, a conversation, or a whole `Request`, which then says all the rest.
            max_tokens: stop after this many answer tokens; None answers until the end of turn.
            stop: a text, or texts, that end the answer.
            sampling: how tokens are chosen.
            tools: JSON objects that describe what the model may call, for its chat template.

        Raises:
            UsageError: the prompt or an option is not what it should be.
        """
        return self._session.stream(self._request(prompt, max_tokens, stop, sampling, tools))

    def generate(
        self,
        prompt: str | Sequence[Message] | Request,
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        sampling: Sampling | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Done:
        """Answer whole; the text is in `.text`. Arguments as in `stream`.

        Raises:
            EdgeLLMError: the answer failed.
        """
        return self._session.generate(self._request(prompt, max_tokens, stop, sampling, tools))

    def warm(self) -> SnapshotUse:
        """Read the system prompt now and keep it on disk, so that the next start need not.

        Raises:
            UsageError: there is no system prompt.
            EdgeLLMError: the model failed.
        """
        if self.system is None:
            raise UsageError("there is no system prompt to read", hint="give load(..., system=...)")
        return self._session.warm([Message("system", self.system)])

    def _request(
        self,
        prompt: str | Sequence[Message] | Request,
        max_tokens: int | None,
        stop: str | Sequence[str],
        sampling: Sampling | None,
        tools: Sequence[Mapping[str, Any]],
    ) -> Request:
        if isinstance(prompt, Request):
            if max_tokens is not None or stop or sampling is not None or tools:
                raise UsageError("a Request carries its own max_tokens, stop, sampling and tools")
            return prompt
        messages = [Message("user", prompt)] if isinstance(prompt, str) else prompt
        texts = (stop,) if isinstance(stop, str) else stop
        # Checked as given: what the user got wrong is not to be blamed on the system prompt.
        request = Request(messages, max_tokens, texts, sampling or Sampling(), tools)  # type: ignore[arg-type]  # lists are taken
        system = system_message(self.system, self.documents)
        if system is None or any(m.role == "system" for m in request.messages):
            return request
        return dataclasses.replace(request, messages=(system, *request.messages))

    def cancel(self) -> None:
        """End the running answer soon; callable from any thread."""
        self._session.cancel()

    def close(self) -> None:
        """Free the model; snapshots being written get at most two seconds."""
        self._session.close()


def open_llm(
    path: str | PathLike[str], *, system: str | None, documents: Sequence[str], **options: Any
) -> LLM:
    """Open a model as `edgellm.load` describes, whose arguments these are."""
    _text("system", system)
    if isinstance(documents, str) or any(not isinstance(text, str) for text in documents):
        raise UsageError("documents must be a sequence of texts")
    _text("chat_template", options["chat_template"])
    engine = EngineSettings(
        n_batch=_whole("n_batch", options["n_batch"], 1),
        n_threads=_whole("n_threads", options["n_threads"], 0),
        n_gpu_layers=_whole_or_none("n_gpu_layers", options["n_gpu_layers"], 0),
        kv_type=options["kv_type"],
        flash_attention=_one_of("flash_attention", options["flash_attention"], FlashAttention),
        adapters=_adapters(options["lora"]),
    )
    session_options = SessionOptions(
        engine=engine,
        n_ctx=_whole_or_none("n_ctx", options["n_ctx"], 1),
        snapshot=_member("snapshot", options["snapshot"], Tier),
        snapshot_loss=_amount("snapshot_loss", options["snapshot_loss"]),
        snapshot_turns=bool(options["snapshot_turns"]),
        snapshot_cap_bytes=_bytes_or_none("snapshot_cap_bytes", options["snapshot_cap_bytes"]),
        snapshot_key=options["snapshot_key"],
        snapshot_share=_share(options["snapshot_share"]),
        chat_template=options["chat_template"],
    )
    session_options = with_routes(session_options, _wishes(options))
    return LLM(open_session(Path(path), session_options), system, documents)


def _wishes(options: Mapping[str, Any]) -> RouteWishes:
    """Return what the arguments say of routes, checked by name."""
    mode, isolation, on_failure = (options[name] for name in ("mode", "isolation", "on_failure"))
    endpoint, budget, key = (options[name] for name in ("endpoint", "budget", "api_key"))
    if endpoint is not None and not isinstance(endpoint, (str, Endpoint)):
        raise UsageError(f"endpoint must be Endpoint or a URL, not {type(endpoint).__name__}")
    if budget is not None and not isinstance(budget, Budget):
        raise UsageError(f"budget must be Budget, not {type(budget).__name__}")
    if key is not None and not isinstance(key, str) and not callable(key):
        raise UsageError(f"api_key must be text or a function, not {type(key).__name__}")
    _text("endpoint_model", options["endpoint_model"])
    if not isinstance(options["app"], str):
        raise UsageError(f"app must be text, not {type(options['app']).__name__}")
    return RouteWishes(
        mode=None if mode is None else _member("mode", mode, Mode),
        endpoint=endpoint,
        endpoint_model=options["endpoint_model"],
        budget=budget,
        api_key=key,
        isolation=None if isolation is None else _one_of("isolation", isolation, Isolation),
        on_failure=None if on_failure is None else _one_of("on_failure", on_failure, OnFailure),
        deadline_s=options["deadline_s"],
        force=bool(options["force"]),
        app=options["app"],
    )


def _text(name: str, value: object) -> None:
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{name} must be text, not {type(value).__name__}")


def _share(value: object) -> ShareOptions | None:
    if value is None or isinstance(value, ShareOptions):
        return value
    raise UsageError(f"snapshot_share must be ShareOptions, not {type(value).__name__}")


def _adapters(value: object) -> tuple[tuple[str, float], ...]:
    if not isinstance(value, (list, tuple)):
        raise UsageError(f"lora must be a sequence of adapters, not {type(value).__name__}")
    return tuple(map(_adapter, value))


def _adapter(item: object) -> tuple[str, float]:
    path, scale = item if isinstance(item, tuple) and len(item) == _PAIR else (item, 1.0)
    is_whole = isinstance(scale, int) and not isinstance(scale, bool) and abs(scale) <= _MAX_NUMBER
    is_path = isinstance(path, (str, os.PathLike)) and str(path)
    if not is_path or not (is_whole or isinstance(scale, float)):
        raise UsageError(f"a LoRA adapter is a path or (path, scale), not {item!r}")
    return str(path), float(scale)


def _whole(name: str, value: object, low: int) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= _MAX_NUMBER:
        return value
    raise UsageError(
        f"{name} must be a whole number between {low} and {_MAX_NUMBER}, not {value!r}"
    )


def _whole_or_none(name: str, value: object, low: int) -> int | None:
    return None if value is None else _whole(name, value, low)


def _bytes_or_none(name: str, value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise UsageError(f"{name} must be a number of bytes, not {value!r}")


def _amount(name: str, value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf:
        return float(value)
    raise UsageError(f"{name} must be a number from 0, not {value!r}")


def _one_of(name: str, value: str, literal: Any) -> Any:
    known: Sequence[str] = get_args(literal)
    if value not in known:
        raise UsageError(f"{name} must be one of {', '.join(known)}, not {value!r}")
    return value


def _member(name: str, value: object, kind: type[Any]) -> Any:
    try:
        return kind(value)
    except ValueError as err:
        known = ", ".join(member.value for member in kind)
        raise UsageError(f"{name} must be one of {known}, not {value!r}") from err
