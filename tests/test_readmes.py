"""Each room's README names each of the room's modules, and no module that is not there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = (
    *sorted(f"edgellm/{path.name}" for path in (ROOT / "edgellm").iterdir() if path.is_dir()),
    "tests/attacks",
    "tests/field",
)
NO_ROOMS = ("edgellm/__pycache__",)
IMPLIED = ("__init__.py", "conftest.py")


@pytest.mark.parametrize("room", [room for room in ROOMS if room not in NO_ROOMS])
def test_a_readme_names_every_module(room: str) -> None:
    """By its file's name, as code; files below the room by their own name, or with their folder."""
    folder = ROOT / room
    there = {path.name for path in folder.rglob("*.py")} - set(IMPLIED)
    text = (folder / "README.md").read_text(encoding="utf-8")
    named = {Path(name).name for name in re.findall(r"`([\w/]+\.py)`", text)}
    assert sorted(there - named) == []


@pytest.mark.parametrize("room", [room for room in ROOMS if room not in NO_ROOMS])
def test_a_readme_names_no_module_that_is_gone(room: str) -> None:
    """A name with or without its folder, of the room or of the repository, is a file."""
    folder = ROOT / room
    text = (folder / "README.md").read_text(encoding="utf-8")
    for name in re.findall(r"`([\w/]+\.py)`", text):
        assert any((base / name).is_file() for base in (folder, ROOT, ROOT / "edgellm")) or any(
            folder.rglob(name)
        )
