"""What was found in a model's file counts for that file as it was, and for no other."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from edgellm.engines.llamacpp import checked
from edgellm.engines.llamacpp.checked import CheckedFile
from edgellm.errors import ModelCorrupt, ModelNotFound


@pytest.fixture
def model(tiny_models: Path, tmp_path: Path) -> Path:
    """A copy of a model, to be changed."""
    return Path(shutil.copy(tiny_models / "tiny-llama.gguf", tmp_path / "m.gguf"))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Give the files that were checked."""
    real, paths = checked.checked_model, []

    def check(path: Path) -> object:
        paths.append(path)
        return real(path)

    monkeypatch.setattr(checked, "checked_model", check)
    return paths


def test_a_file_that_stays_is_read_once(model: Path, reads: list[Path]) -> None:
    """However often it is asked for."""
    file = CheckedFile(model)
    assert file.found(model) is file.found(model)
    assert reads == [model]


def test_a_file_that_was_written_to_is_checked_again(model: Path) -> None:
    """Also where it is as long as before."""
    file = CheckedFile(model)
    with model.open("r+b") as opened:
        opened.write(b"FUGG")
    with pytest.raises(ModelCorrupt):
        file.found(model)


def test_a_file_put_in_its_place_is_checked(model: Path, tiny_models: Path) -> None:
    """Its name is the same, and what it holds is not."""
    file = CheckedFile(model)
    other = shutil.copy(tiny_models / "tiny-gemma3.gguf", model.with_name("other"))
    Path(other).replace(model)
    assert file.found(model)[1].architecture == "gemma3"


def test_a_file_that_is_gone_is_not_found(model: Path) -> None:
    """As where nothing had been found out before."""
    file = CheckedFile(model)
    model.unlink()
    with pytest.raises(ModelNotFound):
        file.found(model)


def test_another_file_is_checked(model: Path, tiny_models: Path, reads: list[Path]) -> None:
    """What is known of one says nothing of another."""
    other = tiny_models / "tiny-gemma3.gguf"
    assert CheckedFile(model).found(other)[1].path == str(other)
    assert reads == [model, other]
