"""Notices: what the user is told beside an answer, each once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgellm.core import Tier, Warn
from edgellm.runtime.session import Step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgellm.core import ModelInfo
    from edgellm.runtime.prompting import Prompting
    from edgellm.runtime.session import SessionOptions
    from edgellm.runtime.storing import Storing


class Notices:
    """What gathers while answers are made.

    Args:
        prompting: notes what prompts cannot be.
        storing: notes what cannot be kept, or None.
        warnings: what there is to tell from the beginning.
    """

    def __init__(self, prompting: Prompting, storing: Storing | None, warnings: list[str]) -> None:
        self._prompting = prompting
        self._storing = storing
        self._warnings = warnings
        self._said_lost = False

    def told(self) -> Iterator[Step]:
        """Give what there is to warn of, also that a snapshot could not be written, once."""
        storing = self._storing
        if storing is not None and storing.writer.failure and not self._said_lost:
            self._said_lost = True
            self._warnings.append(f"the prefix snapshot was not kept: {storing.writer.failure}")
        notes = storing.notes if storing is not None else []
        for said in (self._prompting.notes, notes, self._warnings):
            while said:
                yield Step(Warn(said.pop(0)), phase="prefill")


def opening_warnings(
    model: ModelInfo, options: SessionOptions, block: str, trouble: str
) -> list[str]:
    """Return what is said once, with the first answer.

    Args:
        model: as its file says.
        options: of the session.
        block: why no snapshots are kept although they may be, or "".
        trouble: of the store, or "".
    """
    said = list(model.warnings)
    if block and options.snapshot is not Tier.OFF:
        said.append(f"prefix snapshots are off: {block}")
    if trouble:
        said.append(trouble)
    if options.n_ctx and options.n_ctx > model.n_ctx_train:
        said.append(
            f"a context of {options.n_ctx} tokens is longer than the {model.n_ctx_train} the model "
            "was trained with: answers may lose their thread there"
        )
    return said
