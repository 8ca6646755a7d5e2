"""From checkpoints to artifacts. A family is one module holding data; this table names them all.

Only the module that is asked for is imported.
"""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, Final

from edgellm.errors import UnknownArchitecture

if TYPE_CHECKING:
    from .recipe import Recipe

# Architecture in config.json -> module of this folder that holds its RECIPE.
FAMILIES: Final = {
    "LlamaForCausalLM": "llama",
}


def supported() -> tuple[str, ...]:
    """Return the architectures that can be converted."""
    return tuple(FAMILIES)


def recipe_for(architecture: str) -> Recipe:
    """Return the recipe of an architecture; imports one module.

    Raises:
        UnknownArchitecture: no family has it; names those that there are, the nearest first.
    """
    module = FAMILIES.get(architecture)
    if module is None:
        near = difflib.get_close_matches(architecture, FAMILIES, n=1, cutoff=0.8)
        guess = f"did you mean {near[0]}? " if near else ""
        raise UnknownArchitecture(
            f"architecture {architecture[:80]!r} cannot be converted",
            hint=f"{guess}supported: {', '.join(supported())}",
        )
    recipe: Recipe = importlib.import_module(f".{module}", __name__).RECIPE
    return recipe
