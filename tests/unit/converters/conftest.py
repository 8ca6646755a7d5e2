"""Tiny checkpoints to bend: each test gets its own copy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

CHECKPOINTS = Path(__file__).resolve().parents[2] / "data" / "checkpoints"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[..., Path]:
    """Copy a committed checkpoint and change its JSON files.

    Called as `checkpoint("tied-v4-f32", config={"rope_theta": None})`: keys of a file are replaced,
    `...` removes one; a whole file is replaced by bytes, or removed by None.
    """

    def make(name: str = "linear-bf16", **changes: Any) -> Path:
        folder = tmp_path / "checkpoint"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(CHECKPOINTS / name, folder)
        for stem, change in changes.items():
            path = folder / f"{stem}.json"
            if change is None:
                path.unlink()
            elif isinstance(change, bytes):
                path.write_bytes(change)
            else:
                value = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
                value |= change
                value = {key: item for key, item in value.items() if item is not ...}
                path.write_text(json.dumps(value), encoding="utf-8")
        return folder

    return make


@pytest.fixture
def tokenizer_json() -> Callable[..., dict[str, Any]]:
    """Give a committed tokenizer.json as a dict that a test may change."""

    def read(name: str = "linear-bf16") -> dict[str, Any]:
        path = CHECKPOINTS / name / "tokenizer.json"
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return value

    return read
