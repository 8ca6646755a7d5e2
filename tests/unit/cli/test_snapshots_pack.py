"""`edgellm snapshots export`: what it never writes over."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from edgellm.store.packs.pack_format import MAGIC

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("flags", [[], ["--force"]])
@pytest.mark.parametrize("what", ["model", "key", "folder", "pipe", "device"])
def test_export_replaces_nothing_but_packs(
    cli: Any, tmp_path: Path, what: str, flags: list[str]
) -> None:
    """A model, a key, a folder, a pipe and a device stay what they are, whatever flags are given."""
    model, key, folder, pipe = (tmp_path / name for name in ("model", "key", "folder", "pipe"))
    model.write_bytes(b"GGUF" + bytes(99))
    key.write_bytes(b"-----BEGIN PRIVATE KEY-----\n")
    folder.mkdir()
    os.mkfifo(pipe)
    out = {"model": model, "key": key, "folder": folder, "pipe": pipe, "device": "/dev/null"}[what]
    before = _made(out)
    result = cli("snapshots", "export", "3fa9", "--model", model, "-o", out, *flags)
    assert (result.code, _made(out)) == (2, before)
    assert str(out) in result.err
    assert "name another file" in result.err


def test_export_replaces_a_pack_only_with_force(cli: Any, tmp_path: Path) -> None:
    """Without it the pack stays and the flag is named; with it the command goes on to the keys."""
    pack = tmp_path / "old.ekp"
    pack.write_bytes(MAGIC + bytes(99))
    export = ("snapshots", "export", "3fa9", "--model", tmp_path / "model", "-o", pack)
    refused = cli(*export)
    assert (refused.code, "--force" in refused.err) == (2, True)
    assert "no snapshot starts with '3fa9'" in cli(*export, "--force").err
    assert pack.read_bytes() == MAGIC + bytes(99)


def _made(path: Path | str) -> tuple[int, int, int]:
    """Return what changes when a file is written or replaced."""
    status = os.lstat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns
