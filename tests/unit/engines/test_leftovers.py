"""What a foreign state leaves in the memory: nothing, once it was thrown away."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest


def poisoned(state: Any) -> Any:
    """Return the state with every row full of what is no number."""
    parts = tuple(
        replace(
            part,
            sections=tuple(
                replace(
                    s, rows=np.full_like(s.rows, np.nan if s.rows.dtype.kind == "f" else 0x7E00)
                )
                for s in part.sections
            ),
        )
        for part in state.parts
    )
    return replace(state, parts=parts)


@pytest.mark.parametrize("flash_attention", ["on", "off"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_state_full_of_nan_is_gone_after_it_was_thrown_away(
    open_tiny, tokens, name, flash_attention
):
    """The next cold prompt, shorter than that state, has the bits that it would have had."""
    engine = open_tiny(name, flash_attention=flash_attention)
    prompt = tokens(40, 1)
    expected = engine.decode(prompt).copy()
    engine.truncate(0)
    engine.decode(tokens(150))
    state = engine.capture()
    engine.restore(poisoned(state))
    engine.decode([5])
    assert engine.truncate(0)
    assert np.array_equal(expected, engine.decode(prompt))


@pytest.mark.parametrize("flash_attention", ["on", "off"])
def test_only_what_was_restored_is_wiped(open_tiny, tokens, monkeypatch, flash_attention):
    """Emptying a memory that only this engine filled stays as cheap as it was, and once wiped too."""
    engine = open_tiny("llama", flash_attention=flash_attention)
    context: Any = engine._open()
    wiped: list[bool] = []
    clear = context.clear

    def watched(*, data: bool = True) -> None:
        wiped.append(data)
        clear(data=data)

    monkeypatch.setattr(context, "clear", watched)
    engine.decode(tokens(50))
    state = engine.capture()
    engine.truncate(0)
    assert [False] == wiped
    engine.restore(state)
    for _ in range(2):
        engine.truncate(0)
        engine.decode(tokens(20))
    engine.truncate(0)
    assert [True, False, False] == wiped[-3:]
