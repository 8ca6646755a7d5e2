"""llama.cpp through llama-cpp-python's low-level functions; our own decode loop and state layout."""

from __future__ import annotations

from edgellm.engines.llamacpp.engine import LlamaCppEngine

__all__ = ["LlamaCppEngine"]
