"""The flags that `run` and `chat` share: declared once, and what they become.

A command that is `with_options(AnswerOptions)` gets every field below as a flag and receives them as
one value, so that the two commands cannot drift apart.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003  # typer reads the annotations at run time
from typing import TYPE_CHECKING, Annotated, Final

from typer import Option

from edgellm.cli.flags import INT_MAX, gpu_layers, lora_adapters, with_options
from edgellm.cli.inputs import STDIN_NAME, one_of, read_text, read_tools, whole_text
from edgellm.cli.route_options import RouteOptions
from edgellm.core import Message, Request, Sampling
from edgellm.errors import UsageError

if TYPE_CHECKING:
    from edgellm.core import Tools
    from edgellm.runtime.session import SessionOptions

_PLAIN: Final = Sampling()

__all__ = ["AnswerOptions", "Flash", "KvType", "with_options"]


class KvType(str, enum.Enum):
    """ggml types that keys and values can have."""

    F16 = "f16"
    Q8_0 = "q8_0"
    Q4_0 = "q4_0"
    F32 = "f32"


class Flash(str, enum.Enum):
    """Whether flash attention is used; `auto` lets the engine choose."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class AnswerOptions(RouteOptions):
    """How to load a model and answer; one field a flag."""

    system: Annotated[
        str | None,
        Option(
            "--system", metavar="TEXT", help="System prompt: read once per machine, then reused."
        ),
    ] = None
    system_file: Annotated[
        Path | None,
        Option(
            "--system-file",
            metavar="FILE",
            help="The same from a file, UTF-8; its final line end goes.",
        ),
    ] = None
    prefix_file: Annotated[
        list[Path] | None,
        Option(
            "--prefix-file",
            metavar="FILE",
            help="A document behind the system prompt; repeatable. Those before the first that changes "
            "are reused.",
        ),
    ] = None
    tools: Annotated[
        Path | None,
        Option("--tools", metavar="FILE", help="JSON list of tools for the chat template."),
    ] = None
    max_tokens: Annotated[
        int | None,
        Option("--max-tokens", "-n", metavar="N", min=1, help="Cut the answer after so many."),
    ] = None
    temperature: Annotated[
        float, Option("--temperature", metavar="X", help="0 always takes the likeliest token.")
    ] = _PLAIN.temperature
    top_k: Annotated[
        int, Option("--top-k", metavar="N", help="Keep this many tokens; 0 keeps all.")
    ] = _PLAIN.top_k
    top_p: Annotated[
        float, Option("--top-p", metavar="X", help="Keep tokens up to this probability in all.")
    ] = _PLAIN.top_p
    min_p: Annotated[
        float,
        Option("--min-p", metavar="X", help="Drop tokens below this fraction of the likeliest."),
    ] = _PLAIN.min_p
    repeat_penalty: Annotated[
        float,
        Option(
            "--repeat-penalty", metavar="X", help="Above 1 makes repetition less likely; 1 is off."
        ),
    ] = _PLAIN.repeat_penalty
    seed: Annotated[
        int | None,
        Option("--seed", metavar="N", help="Makes the answer repeatable; else random."),
    ] = None
    stop: Annotated[
        list[str] | None,
        Option("--stop", metavar="TEXT", help="End the answer before this text; repeatable."),
    ] = None
    ctx: Annotated[
        int | None,
        Option(
            "--ctx",
            metavar="N",
            min=1,
            help="Context in tokens; else the model's or max(4096, prompt + 1024), the smaller.",
        ),
    ] = None
    kv_type: Annotated[KvType, Option("--kv-type", help="Type of keys and values.")] = KvType.F16
    threads: Annotated[
        int, Option("--threads", metavar="N", min=0, help="CPU threads; 0 takes the quota.")
    ] = 0
    gpu_layers: Annotated[
        str, Option("--gpu-layers", metavar="auto|N", help="Layers on the GPU.")
    ] = "auto"
    flash_attn: Annotated[Flash, Option("--flash-attn", help="Flash attention.")] = Flash.AUTO
    batch: Annotated[int, Option("--batch", metavar="N", min=1, help="Tokens per decode call.")] = (
        512
    )
    lora: Annotated[
        list[str] | None,
        Option("--lora", metavar="FILE[:SCALE]", help="LoRA adapter, a GGUF file; repeatable."),
    ] = None
    chat_template: Annotated[
        Path | None,
        Option(
            "--chat-template", metavar="FILE", help="Jinja file instead of the model's template."
        ),
    ] = None
    json: Annotated[bool, Option("--json", help="Print events as JSON lines.")] = False
    stats: Annotated[bool, Option("--stats", help="Print figures on stderr afterwards.")] = False

    def session_options(self) -> SessionOptions:
        """Return how to open the session; reads the template, `config.toml` and the environment.

        Raises:
            UsageError: a number, the template, a setting or `EDGELLM_OFFLINE` is wrong.
            OSError: the template cannot be read.
        """
        from edgellm.engines.base import EngineSettings
        from edgellm.runtime.routes import with_routes
        from edgellm.runtime.session import SessionOptions

        for name, value in {
            "--ctx": self.ctx,
            "--threads": self.threads,
            "--batch": self.batch,
        }.items():
            if value is not None and value > INT_MAX:
                raise UsageError(f"{name} must be at most {INT_MAX}, not {value}")
        options = SessionOptions(
            engine=EngineSettings(
                n_batch=self.batch,
                n_threads=self.threads,
                n_gpu_layers=gpu_layers(self.gpu_layers),
                kv_type=self.kv_type.value,
                flash_attention=self.flash_attn.value,
                adapters=lora_adapters(self.lora or ()),
            ),
            n_ctx=self.ctx,
            **self.snapshot_settings(),
            chat_template=None if self.chat_template is None else read_text(self.chat_template),
        )
        return with_routes(options, self.route_wishes())

    def question(self, text: str) -> Message:
        """Return what the user asks, as a message."""
        return Message("user", text, sensitivity="private" if self.private else "normal")

    def system_message(self) -> Message | None:
        """Return the system prompt with its documents, or None.

        Raises:
            UsageError: both flags of the prompt are given, or a text is not UTF-8.
            OSError: a file cannot be read.
        """
        from edgellm.prompt.documents import system_message

        return system_message(self.system_text(), self.documents())

    def system_text(self) -> str | None:
        """Return the system prompt without documents, or None; raises as `system_message`."""
        one_of({"--system": self.system, "--system-file": self.system_file})
        if self.system_file is not None:
            return read_text(self.system_file)
        return None if self.system is None else whole_text(self.system, "--system")

    def documents(self) -> tuple[str, ...]:
        """Return what follows the system prompt; raises as `system_message`."""
        files = self.prefix_file or []
        if [str(file) for file in (self.system_file, *files)].count(STDIN_NAME) > 1:
            raise UsageError("stdin is named twice", hint="read one of the texts from a file")
        return tuple(map(read_text, files))

    def tool_list(self) -> Tools:
        """Return the tools.

        Raises:
            UsageError: the file is no JSON list of objects; says where.
            OSError: it cannot be read.
        """
        return () if self.tools is None else read_tools(self.tools)

    def request(self, messages: tuple[Message, ...], tools: Tools = ()) -> Request:
        """Return the request for a conversation.

        Raises:
            UsageError: a sampling flag is out of its range, or a tool is not JSON.
        """
        return Request(
            tools=tools,
            messages=messages,
            max_tokens=self.max_tokens,
            stop=tuple(whole_text(text, "--stop") for text in self.stop or ()),
            sampling=Sampling(
                temperature=self.temperature,
                top_k=self.top_k,
                top_p=self.top_p,
                min_p=self.min_p,
                repeat_penalty=self.repeat_penalty,
                seed=self.seed,
            ),
        )
