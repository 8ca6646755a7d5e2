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
    mode: str | Mode | None = None,
    endpoint: Endpoint | str | None = None,
    endpoint_model: str | None = None,
    budget: Budget | None = None,
    api_key: str | Callable[[], str | None] | None = None,
    isolation: str | None = None,
    on_failure: str | None = None,
    deadline_s: float | None = None,
    force: bool = False,
    app: str = "edgellm",
) -> LLM:
    """Open a model; use it in a `with` block, or call `close`.

    Read besides the model, as the command line does: `config.toml` below `EDGELLM_HOME`, for what
    the arguments from `mode` to `deadline_s` leave None (`edgellm config list` shows it), and what
    can only make the mode stricter, the administrator's lock and `EDGELLM_OFFLINE`. Where an
    endpoint may be asked: the consents and budgets there, and `EDGELLM_API_KEY` or the keyring.

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
        mode: which routes a request may take; `private` (where nobody says) and `offline` stay on
            this machine, `prefer-local` and `prefer-cloud` may ask the endpoint, given a consent.
        endpoint: the OpenAI-compatible server that may be asked, or its URL.
        endpoint_model: what it calls the model.
        budget: the most to spend there; limits that it leaves open are those of the file.
        api_key: what opens it, or a function that returns it when it is needed; None takes
            `EDGELLM_API_KEY`, or the keyring's entry for the server's origin.
        isolation: where the engine runs: `worker`, a process of its own whose end the program
            survives, or `none`, this process, which then asks no endpoint either.
        on_failure: what becomes of an answer whose beginning was handed out when its route fails:
            `resume-local`, `continue`, `restart` (the `Switch` event discards it) or `stop`.
        deadline_s: seconds to the first token, after which another route is looked for.
        force: try the model although the plan says that it does not fit, or though it rests because
            memory ran out.
        app: the program's name, under which consent is given and spending is booked.

    Raises:
        ModelNotFound, ModelCorrupt, ModelUnsupported: the file is refused.
        EngineUnavailable: no engine is installed; the error names the command.
        UsageError: an option has an unknown value, or `config.toml` has.
        TemplateError: the chat template does not parse.
        DoesNotFit, OutOfMemory: the model does not fit the memory; the hint says what would.
        WorkerDied: the process that was to hold the model ended.
        NoRoute: neither this machine nor an endpoint may answer.
        RecordsDamaged: consents, budgets or the audit log are not what was written.
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
        endpoint=endpoint,
        endpoint_model=endpoint_model,
        budget=budget,
        api_key=api_key,
        isolation=isolation,
        on_failure=on_failure,
        deadline_s=deadline_s,
        force=force,
        app=app,
    )
