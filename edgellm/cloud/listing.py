"""The list of models that an endpoint keeps, as OpenAI's interface gives it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from edgellm.cloud.address import Address

MAX_BYTES: Final = 4 << 20
MAX_MODELS: Final = 1000


def models_in(body: bytes) -> tuple[str, ...]:
    """Return the names in a list of models; empty where it is none."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return ()
    items = value.get("data") if isinstance(value, dict) else None
    if not isinstance(items, list):
        return ()
    named = (item.get("id") for item in items[:MAX_MODELS] if isinstance(item, dict))
    return tuple(name for name in named if isinstance(name, str))


def shown(address: Address) -> str:
    """Return the address of the list as it may be shown."""
    return address.models_url.partition("?")[0]
