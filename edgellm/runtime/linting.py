"""How many tokens of a system prompt stay when it changes at a place, by a model's own tokenizer."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from edgellm.runtime.prompting import Prompting

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from edgellm.core import Message
    from edgellm.prompt.boundary import Standing
    from edgellm.runtime.session import SessionOptions


def standing(
    path: Path, options: SessionOptions, message: Message, places: Sequence[int]
) -> Standing:
    """Tokenise a system message with a model's template, and see what stands before places in it.

    The model is opened for its vocabulary alone; nothing is decoded.

    Args:
        path: the model.
        options: how it would be opened; a template of the user's counts.
        message: the system message.
        places: in its content, in characters.

    Raises:
        ModelError, EngineUnavailable, DoesNotFit: the model cannot be opened.
        TemplateError: the template does not parse.
    """
    from edgellm.engines.llamacpp import LlamaCppEngine

    engine = LlamaCppEngine(path, replace(options.engine, repack=False))
    try:
        prompting = Prompting(
            engine, options.chat_template, clock=datetime.now, keeps_prefixes=False
        )
        return prompting.standing(message, places)
    finally:
        engine.close()
