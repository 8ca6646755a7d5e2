"""What a conversion replaces, and what it never does."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from pathlib import Path

import pytest

from edgellm.converters import claim
from edgellm.errors import UsageError
from edgellm.fileio import AtomicWriter
from edgellm.runtime import conversion
from edgellm.runtime.conversion import ConvertOptions, convert

TINY = Path(__file__).resolve().parents[2] / "data" / "checkpoints" / "linear-bf16"


def refused(src: Path, out: Path, message: str, *, overwrite: bool = True) -> str:
    with pytest.raises(UsageError, match=message) as caught:
        convert(ConvertOptions(src, out, "q8_0", overwrite=overwrite, prove=False))
    return str(caught.value)


def test_an_old_file_is_replaced_when_asked(tmp_path: Path) -> None:
    """Without `overwrite` it stays; with it the new one takes the name."""
    out = tmp_path / "m.gguf"
    out.write_bytes(b"old")
    with pytest.raises(UsageError, match="there already; use --force"):
        convert(ConvertOptions(TINY, out, "q8_0"))
    assert out.read_bytes() == b"old"
    convert(ConvertOptions(TINY, out, "q8_0", overwrite=True))
    assert out.read_bytes()[:4] == b"GGUF"


def test_what_is_no_regular_file_is_never_replaced(tmp_path: Path) -> None:
    """A pipe, a device, a folder and links to them stay what they are; nobody is told to force it."""
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(os.devnull)
    for out in (pipe, link):
        assert "--force" not in refused(TINY, out, "not a regular file")
    assert "--force" not in refused(TINY, tmp_path, "is a folder")
    assert pipe.is_fifo()
    assert link.is_symlink()


def test_the_checkpoint_is_never_replaced(tmp_path: Path) -> None:
    """Not by name, nor through a link or a second name of the same file."""
    own = tmp_path / "own"
    shutil.copytree(TINY, own)
    weights = own / "model.safetensors"
    good = weights.read_bytes()
    second, link = tmp_path / "second", tmp_path / "link"
    second.hardlink_to(weights)
    link.symlink_to(weights)
    for out in (weights, own / "config.json", second, link, own / ".." / "own" / weights.name):
        refused(own, out, "a file of the source")
    assert weights.read_bytes() == good


def test_a_gguf_is_never_replaced_by_its_own_conversion(tmp_path: Path) -> None:
    """SRC and OUT must be two files, whatever their names; the source is only read."""
    src = tmp_path / "a.gguf"
    convert(ConvertOptions(TINY, src, "bf16"))
    good = src.read_bytes()
    link, second = tmp_path / "link.gguf", tmp_path / "second.gguf"
    link.symlink_to(src)
    second.hardlink_to(src)
    for out in (src, link, second):
        refused(src, out, "a file of the source")
    convert(ConvertOptions(src, tmp_path / "b.gguf", "q8_0"))
    assert src.read_bytes() == good
    assert sorted(p.name for p in tmp_path.glob("*.gguf*")) == [
        *("a.gguf", "b.gguf", "link.gguf", "second.gguf")
    ]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("is_there", [False, True])
def test_a_source_under_the_partial_name_is_never_removed(
    tmp_path: Path, *, overwrite: bool, is_there: bool
) -> None:
    """Not by name, nor through a link or a second name: what a run would clear is compared too."""
    out, link, second = (tmp_path / name for name in ("m.gguf", "link.gguf", "second.gguf"))
    own = claim.partial_path(out)
    convert(ConvertOptions(TINY, tmp_path / "a.gguf", "bf16", prove=False))
    (tmp_path / "a.gguf").rename(own)
    good = own.read_bytes()
    link.symlink_to(own)
    second.hardlink_to(own)
    if is_there:
        out.write_bytes(b"old")
    for src in (own, link, second):
        refused(src, out, "a file of the source", overwrite=overwrite)
    assert own.read_bytes() == good
    assert out.exists() == is_there


def test_a_checkpoints_file_under_the_partial_name_stays(tmp_path: Path) -> None:
    """Whichever file of the folder it is, and wherever the folder."""
    own, out = tmp_path / "own", tmp_path / "m.gguf"
    shutil.copytree(TINY, own)
    partial = claim.partial_path(out)
    partial.write_bytes(b"GGUF of a shard")
    (own / "extra.gguf").symlink_to(partial)
    refused(own, out, "a file of the source", overwrite=False)
    inside = claim.partial_path(own / "m.gguf")
    inside.write_bytes(b"GGUF left by a dead run")
    convert(ConvertOptions(own, own / "m.gguf", "q8_0", prove=False))
    assert partial.read_bytes() == b"GGUF of a shard"
    assert not inside.exists()


def test_a_file_called_partial_is_the_users(tmp_path: Path) -> None:
    """It may be the source, or stand beside: it is read at most."""
    out, partial = tmp_path / "m.gguf", tmp_path / "m.gguf.partial"
    convert(ConvertOptions(TINY, partial, "bf16", prove=False))
    good = partial.read_bytes()
    for src in (partial, TINY):
        convert(ConvertOptions(src, out, "q8_0", overwrite=True, prove=False))
        assert partial.read_bytes() == good
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf", "m.gguf.partial"]


def test_the_loser_of_a_race_leaves_the_winners_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run takes the name between making and claiming: its file stays."""
    out = tmp_path / "m.gguf"
    partial = claim.partial_path(out)
    real = claim.claim
    winner = contextlib.ExitStack()

    def late(path: Path, final: Path) -> contextlib.AbstractContextManager[None]:
        path.unlink()
        path.write_bytes(b"GGUF of the winner")
        winner.enter_context(real(path, final))
        return real(path, final)

    monkeypatch.setattr(claim, "claim", late)
    with winner:
        refused(TINY, out, "another conversion", overwrite=False)
    assert partial.read_bytes() == b"GGUF of the winner"
    assert list(tmp_path.glob("*.gguf")) == []


def test_the_claim_outlives_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can put another file under the name between verifying and renaming."""
    out = tmp_path / "m.gguf"
    steps: list[str] = []

    def watch(step: str, _: str) -> None:
        steps.append(step)
        if step == "rename":
            with pytest.raises(UsageError, match="another conversion"):
                claim.clear_partial(out)

    monkeypatch.setattr(conversion, "AtomicWriter", functools.partial(AtomicWriter, fault=watch))
    convert(ConvertOptions(TINY, out, "q8_0"))
    assert "rename" in steps


def test_the_result_has_the_plans_warnings(tmp_path: Path) -> None:
    """Who converts need not plan first to know them."""
    options = ConvertOptions(TINY, tmp_path / "m.gguf", "q8_0")
    expected = conversion.plan(options).warnings
    assert expected
    assert convert(options).warnings == expected
