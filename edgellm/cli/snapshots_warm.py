"""`edgellm snapshots warm`: read the system prompt now, so that the next start does not."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Annotated, Final

import typer

from edgellm.cli.flags import with_options
from edgellm.cli.options import AnswerOptions
from edgellm.cli.run import ModelArgument  # noqa: TC001  # typer reads the annotations at run time
from edgellm.cli.snapshots_why import KEY_FLAGS
from edgellm.errors import EXIT_FAILURE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgellm.core import Message, SnapshotUse, Tools
    from edgellm.runtime.session import Session

EXAMPLES: Final = """
edgellm snapshots warm model.gguf --system-file rules.txt
edgellm snapshots warm model.gguf --system-file rules.txt --kv-type q8_0 --normal-priority
"""
_NICE: Final = 10


@with_options(AnswerOptions, only=KEY_FLAGS | {"ctx", "snapshot_cap"})
def warm(
    model: ModelArgument,
    *,
    normal_priority: Annotated[
        bool, typer.Option("--normal-priority", help="Do not stand back for other programs.")
    ] = False,
    options: AnswerOptions,
) -> None:
    """Make the snapshot of a system prompt now, standing back for other programs.

    Give the flags of the runs to come. Says what was made, or that it was there already; exits 1
    if nothing could be kept.
    """
    from edgellm.cli import render
    from edgellm.cli.answer import Status, open_model
    from edgellm.cli.snapshots_why import system_messages

    messages = system_messages(options)
    if not normal_priority:
        stand_back()
    status = Status(quiet=options.json)
    with open_model(model, options.session_options(), status) as session:
        if not options.json:
            render.write_err("reading the system prompt\n")
        use = _warmed(session, messages, options.tool_list())
    if options.json:
        render.json_line({"type": "warmed", **use.to_wire()})
    else:
        render.facts(_facts(use))
    if not is_kept(use):
        raise typer.Exit(EXIT_FAILURE)


def _warmed(session: Session, messages: Sequence[Message], tools: Tools) -> SnapshotUse:
    """Read the prompt; a signal ends that in order."""
    from edgellm.cli.interrupts import interrupts
    from edgellm.errors import Cancelled

    with interrupts(session.cancel) as asked:
        try:
            return session.warm(messages, tools)
        except Cancelled:
            raise asked.error() from None


def is_kept(use: SnapshotUse) -> bool:
    """Return whether the next start will find a snapshot."""
    return bool(use.key) and use.code in {"hit", "stored"}


def stand_back() -> None:
    """Lower this process's priority for the processor and, where there is such a thing, the disk."""
    import psutil

    process = psutil.Process()
    with contextlib.suppress(OSError, AttributeError, psutil.Error):
        if os.name == "nt":
            process.nice(getattr(psutil, "BELOW_NORMAL_PRIORITY_CLASS", None))
        else:
            os.nice(_NICE)
    with contextlib.suppress(OSError, AttributeError, ValueError, psutil.Error):
        process.ionice(getattr(psutil, "IOPRIO_CLASS_IDLE", None))


def _facts(use: SnapshotUse) -> list[tuple[str, str]]:
    made = {"hit": "already stored", "stored": "stored"}.get(use.code, use.reason)
    pairs = [("result", made)]
    if use.key:
        pairs += [("key", use.key), ("tier", use.tier)]
    return pairs
