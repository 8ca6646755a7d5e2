"""Only mypy reads this: the public API as a user writes it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import edgellm

if TYPE_CHECKING:
    from edgellm.runtime.llm import LLM
    from edgellm.runtime.local import LocalSession
    from edgellm.runtime.session import Session

    def local(session: LocalSession) -> Session:
        """Take the session in this process for a session."""
        return session


def load() -> LLM:
    """Open a model by path or name, with every option."""
    edgellm.load(Path("model.gguf")).close()
    return edgellm.load(
        "model.gguf",
        system="Be brief.",
        n_ctx=None,
        n_batch=256,
        n_threads=4,
        n_gpu_layers=0,
        kv_type="q8_0",
        flash_attention="on",
        chat_template="{{ messages[0].content }}",
        snapshot=edgellm.Tier.OFF,
        snapshot_key=lambda: bytes(32),
        mode="offline",
        endpoint=edgellm.Endpoint("https://api.example.com/v1", "m", usd_per_mtok_in=1),
        endpoint_model="m",
        budget=edgellm.Budget(usd_per_day=0.5),
        api_key=lambda: None,
        isolation="none",
        on_failure="restart",
        deadline_s=2.5,
        force=True,
        app="editor",
    )


def stream(llm: LLM) -> str:
    """Tell events apart by their type; each has its own fields."""
    said = ""
    for event in llm.stream("Why?", max_tokens=5, stop=["\n"]):
        if isinstance(event, edgellm.Token):
            said += event.text
        elif isinstance(event, edgellm.Switch):
            said = said[: event.discard_from_seq]
        elif isinstance(event, edgellm.Warn):
            said += event.message
        elif isinstance(event, edgellm.Failure):
            raise SystemExit(event.exit)
        else:
            n_tokens: int = event.usage.reused_tokens
            ttft_ms: float = event.timings.ttft_ms
            said += f"{n_tokens} {ttft_ms} {event.snapshot.reason} {event.seed}"
            said += "" if event.cloud is None else f"{event.cloud.usd} {event.audit_id}"
    return said


def generate(llm: LLM) -> str:
    """Ask by text, by conversation, and by request."""
    messages = [edgellm.Message("user", "Why?")]
    request = edgellm.Request(tuple(messages), sampling=edgellm.Sampling(temperature=0))
    again = edgellm.Request.from_wire(request.to_wire())
    try:
        with llm as opened:
            opened.cancel()
            done: edgellm.Done = opened.generate(again)
            return done.text + opened.generate(messages).text + opened.generate("a", stop="b").text
    except edgellm.EdgeLLMError as err:
        return f"{err.path} {err.message} {err.hint} {err.exit_code} {err.code}"
