"""Only mypy reads this: what claims to be an engine is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgellm.engines.base import Engine
    from edgellm.engines.scripted import ScriptedEngine
    from edgellm.prompt.template import ChatTemplate, Prompter, RawTemplate

    def scripted(engine: ScriptedEngine) -> Engine:
        """Take the scripted engine for an engine."""
        return engine

    def chat_template(template: ChatTemplate) -> Prompter:
        """Take a chat template for a prompter."""
        return template

    def raw_template(template: RawTemplate) -> Prompter:
        """Take the fallback for a prompter."""
        return template
