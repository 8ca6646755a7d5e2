"""Each step of a save fails in turn, until none is left: the store stays right and says why."""

from __future__ import annotations

import errno
import itertools
import os
from typing import TYPE_CHECKING, Any

import pytest

from edgellm.core import Tier
from edgellm.store.disk import files
from edgellm.store.file import filling
from edgellm.store.format import unpacking
from edgellm.store.format.codec import unpack_state
from edgellm.store.snapshots import Hit, Miss, Saved, Skipped, SnapshotStore
from edgellm.store.state import PackedState

if TYPE_CHECKING:
    from pathlib import Path

TOKENS = list(range(12))


class FailAt:
    """A fault hook that raises at the N-th step, or from there on."""

    def __init__(self, n: int, code: int, *, stays: bool) -> None:
        self.left = n
        self.code = code
        self.stays = stays
        self.failed: list[str] = []

    def __call__(self, step: str, path: str) -> None:
        self.left -= 1
        if self.left == 0 or (self.stays and self.left < 0):
            self.failed.append(step)
            raise OSError(self.code, os.strerror(self.code), path)


@pytest.mark.parametrize("tier", [Tier.EXACT, Tier.Q4])
@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES])
def test_a_save_that_fails_anywhere_is_skipped(
    tmp_path: Path, snapshot_files: Any, code: int, stays: bool, tier: Tier
):
    """No step's failure raises, leaves a temporary, or leaves a file that is not right."""
    failed: list[str] = []
    for n in itertools.count(1):
        root = tmp_path / str(n)
        fault = FailAt(n, code, stays=stays)
        state = snapshot_files.state() if tier is Tier.EXACT else snapshot_files.packed(tier)
        expected = unpack_state(state) if isinstance(state, PackedState) else state
        outcome = SnapshotStore(root, fault=fault).save(snapshot_files.FINGERPRINT, TOKENS, state)
        if not fault.failed:
            assert isinstance(outcome, Saved)
            break
        failed += fault.failed[:1]
        assert isinstance(outcome, Skipped)
        assert outcome.reason.startswith(("cannot write: ", "the disk is full"))
        store = SnapshotStore(root)
        assert store.check() == []
        found = store.lookup(snapshot_files.FINGERPRINT, TOKENS, tier)
        assert isinstance(found, Hit) == (failed[-1] == "fsync_dir")
        if isinstance(found, Hit):
            assert snapshot_files.same(expected, found.state)
        else:
            assert isinstance(store.save(snapshot_files.FINGERPRINT, TOKENS, state), Saved)
    assert set(failed) == {"mkdir", "create", "write", "fsync", "rename", "fsync_dir"}


def test_a_read_that_fails_anywhere_is_a_miss(
    tmp_path: Path, snapshot_files: Any, monkeypatch: pytest.MonkeyPatch
):
    """A disk that cannot read, or a file that shrinks meanwhile, is a miss at each read."""
    store = SnapshotStore(tmp_path)
    saved = store.save(snapshot_files.FINGERPRINT, TOKENS, snapshot_files.state())
    assert isinstance(saved, Saved)
    real = files.OpenFile.fill
    monkeypatch.setattr(filling, "filling", lambda _: None)  # every read passes by here
    for error in (OSError(errno.EIO, "Input/output error"), MemoryError()):
        n_misses = 0
        for n in itertools.count(1):
            left = n

            def fill(file: Any, into: Any, error: BaseException = error) -> None:
                nonlocal left
                left -= 1
                if not left:
                    raise error
                real(file, into)

            monkeypatch.setattr(files.OpenFile, "fill", fill)
            found = store.lookup(snapshot_files.FINGERPRINT, TOKENS)
            if isinstance(found, Hit):
                break
            assert isinstance(found, Miss)
            assert found.reason.startswith(("unreadable: Input/output", "not enough memory"))
            n_misses += 1
        assert n_misses == 13  # preamble, header, token ids, 7 sections, 2 paddings, footer
    assert saved.path.exists()


def test_no_memory_to_unpack_is_a_miss(
    tmp_path: Path, snapshot_files: Any, monkeypatch: pytest.MonkeyPatch
):
    """A packed file that was read but cannot be unpacked is left for a better day."""
    store = SnapshotStore(tmp_path)
    saved = store.save(snapshot_files.FINGERPRINT, TOKENS, snapshot_files.packed(Tier.Q4))
    assert isinstance(saved, Saved)

    def full(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(filling, "filling", lambda _: None)
    with monkeypatch.context() as patch:
        patch.setattr(unpacking, "unpack_channels", full)
        found = store.lookup(snapshot_files.FINGERPRINT, TOKENS, Tier.Q4)
    assert found == Miss("not enough memory to read it", "no_memory")
    assert isinstance(store.lookup(snapshot_files.FINGERPRINT, TOKENS, Tier.Q4), Hit)
