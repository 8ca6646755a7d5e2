"""What was written is read again and compared."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest

from edgellm.converters import gguf_head
from edgellm.converters.plan import make_plan
from edgellm.converters.verify import verify_file
from edgellm.converters.write import write_file
from edgellm.errors import VerifyFailed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from edgellm.converters.plan import FilePlan

    Written = tuple[Path, FilePlan, tuple[bytes, ...]]


@pytest.fixture
def written(checkpoint: Callable[..., Path], tmp_path: Path) -> Written:
    """A converted file with its plan and digests."""
    plan = make_plan(checkpoint(), "q8_0")
    path = tmp_path / "m.gguf"
    with path.open("wb") as file:
        digests = write_file(plan, file.write, n_threads=1)
    return path, plan, digests


def test_a_good_file_gives_its_sha256(written: Written) -> None:
    """The digest is that of the whole file."""
    path, plan, digests = written
    assert verify_file(path, plan, digests) == hashlib.sha256(path.read_bytes()).hexdigest()


def test_any_flipped_byte_is_found(written: Written) -> None:
    """In the header, in a tensor, in the padding, at the very end."""
    path, plan, digests = written
    good = path.read_bytes()
    places = [0, 9, 60, len(plan.head) // 2, len(plan.head) - 1, len(plan.head), len(good) - 1]
    places += list(range(len(plan.head), len(good), len(good) // 23))
    for place in places:
        bad = bytearray(good)
        bad[place] ^= 0x10
        path.write_bytes(bad)
        with pytest.raises(VerifyFailed):
            verify_file(path, plan, digests)


def test_a_cut_or_longer_file_is_found(written: Written) -> None:
    """The size is part of the plan."""
    path, plan, digests = written
    good = path.read_bytes()
    for bad in (good[:-1], good[: len(good) // 2], good + b"\0", b""):
        path.write_bytes(bad)
        with pytest.raises(VerifyFailed):
            verify_file(path, plan, digests)


def test_a_list_that_engines_would_refuse_is_found(
    checkpoint: Callable[..., Path],
    tokenizer_json: Callable[..., dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An empty list equals any other; its element type is held against what llama.cpp reads."""
    folder = checkpoint(tokenizer={"model": tokenizer_json()["model"] | {"merges": []}})
    monkeypatch.setitem(gguf_head.LISTS, "tokenizer.ggml.merges", int)
    plan = make_plan(folder, "q8_0")
    path = tmp_path / "m.gguf"
    with path.open("wb") as file:
        digests = write_file(plan, file.write, n_threads=1)
    with pytest.raises(VerifyFailed, match=r"merges.*int32.*string"):
        verify_file(path, plan, digests)
