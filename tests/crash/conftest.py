"""Builders of snapshot states and files, shared by the folders that test the store."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

BUILDERS = Path(__file__).parents[1] / "attacks" / "snapshot_files.py"


@pytest.fixture(scope="session")
def snapshot_files() -> ModuleType:
    """Load the builders: importlib mode has no packages to import them from."""
    spec = importlib.util.spec_from_file_location("snapshot_files", BUILDERS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
