"""What a worker is told first."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from edgellm.core import Tier
from edgellm.runtime.session import SessionOptions
from edgellm.runtime.worker.frames import HEADER
from edgellm.runtime.worker.opening import orders_for


def test_whatever_a_program_puts_into_its_path_can_be_sent(monkeypatch, tmp_path):
    """Of a `sys.path` with things that are no texts, and no UTF-8, the texts go, in full."""
    odd = str(tmp_path / "\udcff")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", Path("/a"), b"/b", None, "rel", odd])
    (frame,) = orders_for(Path("m.gguf"), SessionOptions(snapshot=Tier.OFF)).frames
    order = json.loads(frame[HEADER.size :].decode("utf-8", "surrogatepass"))
    assert [str(tmp_path / "rel"), odd] == order["sys_path"]
