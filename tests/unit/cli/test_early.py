"""Which command lines start a worker before they are read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from edgellm.cli.early import early_worker
from edgellm.runtime.worker.spawning import Spawner


@pytest.mark.parametrize(
    ("line", "starts"),
    [
        ("run model.gguf hi", True),
        ("run model.gguf -p hi -n 4 --stats", True),
        ("chat model.gguf", True),
        ("", False),
        ("--version", False),
        ("info model.gguf", False),
        ("snapshots warm model.gguf", False),
        ("run --help", False),
        ("chat -h", False),
        ("run model.gguf hi --isolation none", False),
        ("run model.gguf hi --isolation=none", False),
    ],
)
def test_only_what_opens_a_model_starts_a_worker(
    monkeypatch: pytest.MonkeyPatch, line: str, starts: bool
) -> None:
    """Help opens none, and with --isolation it may be this process that does."""
    started = []

    @contextmanager
    def early(_: Spawner) -> Iterator[None]:
        started.append(True)
        yield

    monkeypatch.setattr(Spawner, "early", early)
    with early_worker(line.split()):
        assert bool(started) == starts
