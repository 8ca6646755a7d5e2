"""The metadata of one architecture as typed questions; every wrong answer is an error that names the key."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from edgellm.errors import ModelCorrupt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgellm.formats.gguf import GgufHeader, Value

CONVERT_AGAIN: Final = "convert the model again"
_MAX_COUNT: Final = (1 << 31) - 1
_MAX_NAME_CHARS: Final = 64


class Keys:
    """A header's metadata, asked by names without the architecture's prefix.

    Attributes:
        architecture: the prefix.
        metadata: all keys, whole.
        path: the file, for messages.
    """

    def __init__(self, header: GgufHeader, path: str) -> None:
        """Find the architecture.

        Raises:
            ModelCorrupt: the file names none.
        """
        self.metadata: Mapping[str, Value] = header.metadata
        self.path = path
        architecture = self.metadata.get("general.architecture")
        if not isinstance(architecture, str) or not 0 < len(architecture) <= _MAX_NAME_CHARS:
            shown = str(architecture)[:_MAX_NAME_CHARS]
            found = "is missing" if architecture is None else f"is {shown!r}, not a name"
            raise ModelCorrupt(
                f"metadata 'general.architecture' {found}", path=path, hint=CONVERT_AGAIN
            )
        self.architecture = architecture

    def get(self, name: str) -> Value | None:
        """Return a raw value, None without one."""
        return self.metadata.get(f"{self.architecture}.{name}")

    def corrupt(self, name: str, problem: str) -> ModelCorrupt:
        """Return the error about one key."""
        key = f"{self.architecture}.{name}"
        return ModelCorrupt(f"metadata {key!r}: {problem}", path=self.path, hint=CONVERT_AGAIN)

    def count(
        self, name: str, *, low: int, high: int = _MAX_COUNT, default: int | None = None
    ) -> int:
        """Return a whole number, the largest one where there is one for every layer."""
        value = self.get(name)
        if value is None:
            value = default
        if value is None:
            raise self.corrupt(name, "is missing")
        if isinstance(value, np.ndarray) and value.size and value.dtype.kind in "iu":
            return max(self._in_range(name, int(item), low, high) for item in value)
        return self._in_range(name, value, low, high)

    def each_layer(self, name: str, n_layers: int, *, default: int | None = None) -> list[int]:
        """Return a whole number for every layer: a list in the file, or one number for all.

        Raises:
            ModelCorrupt: a list of another length.
        """
        value = self.get(name)
        if not isinstance(value, np.ndarray):
            return [self.count(name, low=0, default=default)] * n_layers
        if value.size != n_layers or value.dtype.kind not in "iu":
            raise self.corrupt(name, f"a list of {value.size} for {n_layers} layers")
        return [self._in_range(name, int(item), 0, _MAX_COUNT) for item in value]

    def real(self, name: str) -> float | None:
        """Return a finite number, None without one."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.corrupt(name, "must be a number")
        if not math.isfinite(value):
            raise self.corrupt(name, f"{value} is no number to compute with")
        return float(value)

    def _in_range(self, name: str, value: object, low: int, high: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.corrupt(name, "must be a whole number")
        if not low <= value <= high:
            raise self.corrupt(name, f"{value} is not between {low} and {high}")
        return value


def same_everywhere(values: list[int]) -> bool:
    """Return whether all layers agree."""
    return len(set(values)) <= 1
