"""A worker started before the command line is read: it imports meanwhile what every model needs."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

_OPENING: Final = ("run", "chat")
_OTHERWISE: Final = ("-h", "--help", "--isolation")  # with these there may be nothing to open there


def early_worker(arguments: Sequence[str]) -> AbstractContextManager[None]:
    """Return a block in which the first model opened finds a worker that is on its way already.

    Args:
        arguments: of the command line; where they name no command that opens a model, nothing is
            started. A worker that is not used is ended with the block.
    """
    named = {argument.partition("=")[0] for argument in arguments}
    if not arguments or arguments[0] not in _OPENING or not named.isdisjoint(_OTHERWISE):
        return nullcontext()
    from edgellm.runtime.worker.spawning import SPAWNER

    return SPAWNER.early()
