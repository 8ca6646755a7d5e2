"""Runs a test once for every implementation that can run here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edgellm import kernels
from edgellm.kernels import _choice

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=kernels.available_isas())
def native_isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Force one implementation, `numpy` included, for the length of a test."""
    name: str = request.param
    library = _choice.native()
    if name == "numpy":
        monkeypatch.setattr(_choice, "native", lambda: None)
        yield name
    else:
        assert library is not None
        assert library.force_isa(name)
        yield name
        assert library.force_isa("")
