"""Real engines over tiny models, opened with one thread and closed after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from edgellm.engines.base import EngineSettings
from edgellm.engines.llamacpp import LlamaCppEngine

OpenTiny = Callable[..., LlamaCppEngine]


@pytest.fixture
def open_tiny(tiny_models: Path) -> Iterator[OpenTiny]:
    """Open `tiny-NAME.gguf` with the settings given, ready for 512 tokens."""
    opened = []

    def open_one(name: str, **settings: object) -> LlamaCppEngine:
        wanted = EngineSettings(**{"n_threads": 1, "n_batch": 64, **settings})  # type: ignore[arg-type]
        engine = LlamaCppEngine(tiny_models / f"tiny-{name}.gguf", wanted)
        opened.append(engine)
        engine.reserve(512)
        return engine

    yield open_one
    for engine in opened:
        engine.close()


@pytest.fixture
def tokens() -> Callable[..., list[int]]:
    """Random ordinary tokens of the tiny vocabulary, the same for the same seed."""

    def make(n: int, seed: int = 0) -> list[int]:
        return [int(i) for i in np.random.default_rng(seed).integers(0, 500, n)]

    return make
