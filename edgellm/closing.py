"""Closing: what is closed by itself at the end of a `with` block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from types import TracebackType

Self = TypeVar("Self", bound="Closing")


class Closing(ABC):
    """Something with a `close`, which may be called more than once."""

    @abstractmethod
    def close(self) -> None:
        """Give back what is held."""

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
