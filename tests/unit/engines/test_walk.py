"""A memory after any decodes, restores and cuts is one that only ever made the calls that are left."""

from __future__ import annotations

import random

import pytest

from edgellm.engines.base import Engine

N_STEPS, N_MOST = 14, 440
LENGTHS = (1, 1, 3, 9, 30, 64, 100)


class Walk:
    """Calls made on an engine's memory: the ids of a decode, or None for a copy out and back."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine = engine
        self.rng = random.Random(seed)
        self.calls: list[list[int] | None] = []
        self.n_cuts = 0
        engine.truncate(0)

    def ids(self, n: int) -> list[int]:
        """Random ordinary tokens."""
        return [self.rng.randrange(500) for _ in range(n)]

    def step(self) -> None:
        """Decode, copy out and back, or cut back to where a call ended."""
        chance = self.rng.random()
        if chance < 0.6:
            n = self.rng.choice(LENGTHS)
            if self.engine.position + n <= N_MOST:
                self.calls.append(self.ids(n))
                self.engine.decode(self.calls[-1])
        elif chance < 0.72 and self.calls:
            self.calls.append(None)
            self.engine.restore(self.engine.capture())
        elif self.calls:
            self._cut()

    def _cut(self) -> None:
        n_left = self.rng.randrange(len(self.calls)) + 1
        position = sum(len(call or ()) for call in self.calls[:n_left])
        while n_left < len(self.calls) and self.calls[n_left] is None:
            n_left += 1  # what was done at this very position stays done
        if position and self.engine.truncate(position):
            self.n_cuts += n_left < len(self.calls)
            self.calls = self.calls[:n_left]

    def again(self, engine: Engine) -> None:
        """Make the calls that are left on another engine."""
        engine.truncate(0)
        for call in self.calls:
            if call is None:
                engine.restore(engine.capture())
            else:
                engine.decode(call)


@pytest.mark.parametrize("flash_attention", ["on", "off"])
@pytest.mark.parametrize(
    "name", ["llama", "gemma3", "dots3note", "minimax-m3", "deepseek32", "qwen4exp", "deepseek4"]
)
def test_any_walk_ends_where_the_calls_that_are_left_end(open_tiny, name, flash_attention):
    """The logits are equal to the last bit, and what can be cut was cut."""
    engine, other = (open_tiny(name, flash_attention=flash_attention) for _ in range(2))
    n_cuts = 0
    for seed in range(4):
        walk = Walk(engine, seed)
        for _ in range(N_STEPS):
            walk.step()
        walk.again(other)
        ids = walk.ids(17)
        assert (engine.decode(ids, "all") == other.decode(ids, "all")).all(), walk.calls
        n_cuts += walk.n_cuts
    assert bool(n_cuts) == (name not in ("qwen4exp", "deepseek4"))
