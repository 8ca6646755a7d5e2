"""What is said of a context that cannot be had."""

from __future__ import annotations

import re

from edgellm.core import ModelInfo
from edgellm.engines.base import EngineSettings
from edgellm.engines.llamacpp.facts import context_too_big

MODEL = ModelInfo("m.gguf", "llama", "m", 1, 1, 1, 1, 1, 1, 1, 1, {"f16": 1})


class Kv:
    """Keys and values of 64 bytes a token."""

    @staticmethod
    def context_bytes(n_ctx: int, _kind: object) -> int:
        return 64 * n_ctx


def test_a_context_that_failed_is_no_advice() -> None:
    """However much seems to be free: who follows the hint time after time gets to one that fits."""
    n_ctx = 3_000_000
    for have in (1 << 30, 1 << 40):
        error = context_too_big(MODEL, Kv(), n_ctx, EngineSettings(), have, "no buffer")  # type: ignore[arg-type]  # as much of it as is needed
        found = re.search(r"--ctx (\d+)", error.hint)
        assert found is not None
        assert 0 < int(found[1]) <= 0.75 * n_ctx


def test_what_is_halved_is_named() -> None:
    """Keys and values, and not the context."""
    error = context_too_big(MODEL, Kv(), 8192, EngineSettings(), 1 << 20)  # type: ignore[arg-type]  # likewise
    assert "--kv-type q8_0 halves keys and values" in error.hint
