"""A session without a model: the "model file" is JSON that says how it answers.

Run as a program it is `edgellm` with this session behind it, for tests that need a real process.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from edgellm.core import (
    Done,
    Failure,
    ModelInfo,
    SnapshotUse,
    Switch,
    Timings,
    Token,
    Usage,
    Warn,
)
from edgellm.errors import EngineFailed, EngineUnavailable, ModelNotFound
from edgellm.routing import CloudUse
from edgellm.runtime.session import SessionFacts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgellm.core import Event, Request
    from edgellm.runtime.session import SessionOptions

FACTS = SessionFacts(
    engine="fake 1.0",
    n_ctx=4096,
    n_batch=512,
    n_threads=2,
    n_gpu_layers=0,
    kv_type="f16",
    flash_attention="off",
    kernels="numpy",
    load_ms=12.0,
)


class FakeSession:
    """Answers with the pieces its file names.

    Keys of the file: `pieces` (texts), `delay_s` (before each), `warn`, `failure` (an exit code),
    `raise` (a message), `endless`, `open` (a way to fail), `finish`, `deaf` (to being cancelled),
    `switch` (fields of the event, behind the first piece, or before it with `early`), `cloud`.
    """

    def __init__(self, path: Path, options: SessionOptions) -> None:
        if not path.exists():
            raise ModelNotFound("there is no such file", path=path)
        self.script: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if self.script.get("open") == "unavailable":
            raise EngineUnavailable("no engine", hint="run `pip install 'edgellm[llama]'`")
        self.options = options
        self.requests: list[Request] = []
        self.closed = False
        self.model = ModelInfo(str(path), "fake", path.stem, 1, 1, 1, 1, 1, 1, 1, 1, {"f16": 1})
        self._cancelled = False

    def facts(self) -> SessionFacts:
        """Return fixed settings."""
        return FACTS

    def stream(self, request: Request) -> Iterator[Event]:
        """Answer as the file says."""
        self.requests.append(request)
        self._cancelled = False
        if "raise" in self.script:
            raise EngineFailed(self.script["raise"], hint="try again")
        if "warn" in self.script:
            yield Warn(self.script["warn"])
        switch = [Switch(**self.script["switch"])] if "switch" in self.script else []
        if self.script.get("early"):
            yield from switch
            switch = []
        said = []
        for seq, piece in enumerate(self._pieces()):
            # No event: Ctrl-C comes on this thread, and would set what it holds the lock of.
            time.sleep(self.script.get("delay_s", 0))
            if self._cancelled:
                break
            said.append(piece)
            yield Token(seq, piece)
            yield from switch
            switch = []
        if "failure" in self.script:
            yield Failure("engine_failed", "it broke", self.script["failure"])
            return
        cancelled = self._cancelled
        yield Done(
            text="".join(said),
            finish_reason="cancelled" if cancelled else self.script.get("finish", "stop"),
            usage=Usage(10, 7, len(said)),
            timings=Timings(load_ms=12, ttft_ms=34, decode_tokens_per_s=56),
            snapshot=SnapshotUse("exact", "3fa9", "hit"),
            seed=99,
            route=self.script.get("route", "local"),
            cloud=CloudUse(**self.script["cloud"]) if "cloud" in self.script else None,
            audit_id="3-ab12",
        )

    def _pieces(self) -> Iterator[str]:
        yield from self.script.get("pieces", ["Hello", " there"])
        while self.script.get("endless"):
            yield "again "

    def generate(self, request: Request) -> Done:
        """Refuse: the command line streams."""
        raise NotImplementedError

    def cancel(self) -> None:
        """End the running answer."""
        if not self.script.get("deaf"):
            self._cancelled = True

    def close(self) -> None:
        """Note that it was closed."""
        self.closed = True

    def __enter__(self) -> FakeSession:  # `Self` needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def fake_runtime(opened: list[FakeSession]) -> ModuleType:
    """Return a module that stands for `edgellm.runtime.opening` and notes what it opens."""

    def open_session(path: Path, options: SessionOptions) -> FakeSession:
        opened.append(FakeSession(path, options))
        return opened[-1]

    module = ModuleType("edgellm.runtime.opening")
    module.open_session = open_session
    return module


if __name__ == "__main__":
    sys.modules["edgellm.runtime.opening"] = fake_runtime([])
    from edgellm.cli.app import main

    sys.exit(main())
