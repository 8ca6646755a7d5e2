"""edgellm: convert, quantise and run language models on your own machine, and start warm.

import edgellm

with edgellm.load("model.gguf", system="You answer in one sentence.") as llm:
    for event in llm.stream("Why is the sky blue?"):
        if isinstance(event, edgellm.Token):
            print(event.text, end="", flush=True)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgellm.core import (
    Done,
    Event,
    Failure,
    Message,
    Mode,
    ModelInfo,
    Request,
    Sampling,
    SnapshotUse,
    Switch,
    Tier,
    Timings,
    Token,
    Usage,
    Warn,
)
from edgellm.errors import EdgeLLMError
from edgellm.routing import Budget, CloudUse, Endpoint, ShareOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from os import PathLike

    from edgellm.runtime.llm import LLM

__version__ = "0.1.0"

__all__ = [
    "Budget",
    "CloudUse",
    "Done",
    "EdgeLLMError",
    "Endpoint",
    "Event",
    "Failure",
    "Message",
    "Mode",
    "ModelInfo",
    "Request",
    "Sampling",
    "ShareOptions",
    "SnapshotUse",
    "Switch",
    "Tier",
    "Timings",
    "Token",
    "Usage",
    "Warn",
    "__version__",
    "load",
]


def load(
    path: str | PathLike[str],
    *,
    system: str | None = None,
    documents: Sequence[str] = (),
    n_ctx: int | None = None,
    n_batch: int = 512,
    n_threads: int = 0,
    n_gpu_layers: int | None = None,
    kv_type: str = "f16",
    flash_attention: str = "auto",
    lora: Sequence[str | PathLike[str] | tuple[str | PathLike[str], float]] = (),
    chat_template: str | None = None,
    snapshot: str | Tier = Tier.AUTO,
    snapshot_loss: float = 0.0,
    snapshot_turns: bool = False,
    snapshot_cap_bytes: int | None = None,
    snapshot_key: str | bytes | Callable[[], bytes] | None = None,
    snapshot_share: ShareOptions | None = None,
    mode: str | Mode = Mode.PRIVATE,
    isolation: str = "none",
) -> LLM:
    """Open a model; use it in a `with` block, or call `close`.

    Args:
        path: a GGUF file.
        system: the system prompt of every request that brings none of its own.
        documents: texts that follow it, in an order that should stay: when one changes, the state of
            all before it is still found on disk.
        n_ctx: context in tokens; None takes min(the model's, max(4096, prompt + 1024)).
        n_batch: tokens per decode call.
        n_threads: CPU threads; 0 takes the CPU quota.
        n_gpu_layers: layers on the GPU; None puts there what fits.
        kv_type: type of keys and values, such as `f16` or `q8_0`.
        flash_attention: `auto`, `on` or `off`.
        lora: LoRA adapters (GGUF files), or each with its scale: `("style.gguf", 0.5)`.
        chat_template: Jinja source that replaces the model's own.
        snapshot: how the state of the system prompt is kept on disk: `exact`, rounded in fewer bytes
            (`q8`, `q6`, `q5`, `q4`), `off`, not at all, or `auto`, as suits model and disk without
            changing the answer.
        snapshot_loss: mean KL divergence in nats that `auto` may cost; it takes the fewest bytes
            whose loss, measured once on this model, is no more.
        snapshot_turns: keep the state after each answer too, for conversations taken up again later.
        snapshot_cap_bytes: what all snapshots may take; None takes `EDGELLM_SNAPSHOTS_MAX`, 10 GiB,
            or a tenth of the disk.
        snapshot_key: encrypts those files: 32 bytes, a function that returns them, `keyring` (the
            system's) or `file:PATH`; None leaves it to `EDGELLM_SNAPSHOT_ENCRYPT`.
        snapshot_share: a Redis server where machines share snapshots; only in a mode that lets prompts
            leave this process.
        mode: which routes a request may take; `private` and `offline` stay on this machine.
        isolation: where the engine runs; `none` is this process.

    Raises:
        ModelNotFound, ModelCorrupt, ModelUnsupported: the file is refused.
        EngineUnavailable: no engine is installed; the error names the command.
        UsageError: an option has an unknown value.
        TemplateError: the chat template does not parse.
        DoesNotFit: the model does not fit the memory.
        KeyUnavailable, MissingExtra: snapshots are to be encrypted, and cannot be.
    """
    from edgellm.runtime.llm import open_llm

    return open_llm(
        path,
        system=system,
        documents=documents,
        n_ctx=n_ctx,
        n_batch=n_batch,
        n_threads=n_threads,
        n_gpu_layers=n_gpu_layers,
        kv_type=kv_type,
        flash_attention=flash_attention,
        lora=lora,
        chat_template=chat_template,
        snapshot=snapshot,
        snapshot_loss=snapshot_loss,
        snapshot_turns=snapshot_turns,
        snapshot_cap_bytes=snapshot_cap_bytes,
        snapshot_key=snapshot_key,
        snapshot_share=snapshot_share,
        mode=mode,
        isolation=isolation,
    )
