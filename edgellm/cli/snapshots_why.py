"""`edgellm snapshots why`: whether the next start is warm, and if not, what differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import typer

from edgellm.cli.flags import with_options
from edgellm.cli.options import AnswerOptions
from edgellm.cli.run import ModelArgument  # noqa: TC001  # typer reads the annotations at run time
from edgellm.errors import EXIT_FAILURE, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgellm.core import Message
    from edgellm.runtime.differences import Difference
    from edgellm.runtime.why import Why

EXAMPLES: Final = """
edgellm snapshots why model.gguf --system-file rules.txt
edgellm snapshots why model.gguf --system-file rules.txt --kv-type q8_0 --json
"""
KEY_FLAGS: Final = frozenset(
    {
        *("system", "system_file", "prefix_file", "tools"),
        *("lora", "kv_type", "flash_attn", "gpu_layers", "threads", "batch"),
        *("chat_template", "snapshot", "snapshot_loss", "snapshot_encrypt", "json"),
    }
)
"""The flags of `run` that say which snapshot is looked for, or whether it serves."""


@with_options(AnswerOptions, only=KEY_FLAGS)
def why(model: ModelArgument, *, options: AnswerOptions) -> None:
    """Say whether a run would find its system prompt stored, and if not, why; exits 1 then.

    Give the flags of the run. Nothing is computed: the model is only opened. What is told of both
    texts goes to this terminal and nowhere else.
    """
    from edgellm.cli import render
    from edgellm.cli.answer import Status
    from edgellm.cli.snapshots import open_store
    from edgellm.runtime.why import why as explained

    session_options, messages = options.session_options(), system_messages(options)
    store = open_store(options.snapshot_encrypt)
    status = Status(quiet=options.json)
    status.show(f"looking at {model.name}")
    try:
        found = explained(model, session_options, messages, store, tools=options.tool_list())
    finally:
        status.show("")
    if options.json:
        render.json_line({"type": "why", **plain(found)})
    else:
        for note in found.notes:
            render.warning(note)
        render.facts(list(_facts(found)))
    if found.cause:
        raise typer.Exit(EXIT_FAILURE)


def system_messages(options: AnswerOptions) -> tuple[Message, ...]:
    """Return what stands before the user's words in every run with these flags.

    Raises:
        UsageError: there is no system prompt.
        OSError: a file cannot be read.
    """
    system = options.system_message()
    if system is None:
        raise UsageError("no system prompt", hint="give --system-file FILE or --system TEXT")
    return (system,)


def plain(found: Why) -> dict[str, Any]:
    """Return an explanation as a JSON object."""
    import dataclasses

    return dataclasses.asdict(found)


def _facts(found: Why) -> Iterator[tuple[str, str]]:
    from edgellm.cli.snapshots import day

    yield "result", f"miss ({found.code})" if found.cause else found.code
    yield "what", found.message
    if found.cause:
        yield "cause", found.cause
    for change in found.changes:
        yield change.name, f"stored {change.stored or '-'}, now {change.now or '-'}"
    if found.difference is not None:
        yield from _difference(found.difference)
    if found.created_s:
        which = "nearest" if found.cause else "stored"
        yield which, f"{found.tier}, made {day(found.created_s)}"
    yield "tokens", f"{found.n_usable} of {found.n_tokens} need no reading"
    if found.path:
        yield "looked for" if found.code == "not_stored" else "file", found.path
    if found.fix:
        yield "fix", found.fix


def _difference(found: Difference) -> Iterator[tuple[str, str]]:
    where = f"character {found.offset} of the prompt"
    if found.line is not None:
        where += f", line {found.line}, column {found.column} of the system prompt"
    ids = ["the end" if i is None else str(i) for i in (found.stored_id, found.now_id)]
    yield "token", f"{found.token}: stored {ids[0]}, now {ids[1]}"
    yield "place", where
    yield "stored text", found.stored_text
    yield "text now", found.now_text
