"""A loopback hub with one small checkpoint, and huggingface_hub pointed at it."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

CHECKPOINTS = Path(__file__).resolve().parents[2] / "data" / "checkpoints"


@pytest.fixture
def empty_hub(loopback: ModuleType) -> Any:
    """A hub without files."""
    hub = loopback.Hub()
    server = loopback.serve(hub)
    yield hub
    hub.released.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def hub(empty_hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A hub with a sharded checkpoint and what no conversion needs; the cache is in `tmp_path`."""
    from huggingface_hub import constants

    empty_hub.add_folder(CHECKPOINTS / "llama3-untied-sharded-bf16")
    empty_hub.files |= {"pytorch_model.bin": b"pickle", "modeling.py": b"raise SystemExit"}
    empty_hub.files |= {"consolidated.safetensors": b"x" * 999, "README.md": b"# tiny\n"}
    monkeypatch.setattr(constants, "ENDPOINT", empty_hub.url)
    template = empty_hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    return empty_hub
