"""JSON files that nobody vouches for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edgellm.errors import ModelCorrupt, ModelNotFound
from edgellm.formats.checked_json import read_json_object, unreadable

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'{"a": 1,}', "line 1, column"),
        (b'\xef\xbb\xbf{"a": 1}', "BOM"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": 1, "a": 2}', "'a' twice"),
        (b"[1]", "list where an object"),
        (b'{"a": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", "nested too deeply"),
        (b'{"a": "\xff"}', "UTF-8"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b"", "line 1"),
    ],
)
def test_bad_json_is_one_error(tmp_path: Path, raw: bytes, message: str) -> None:
    """Whatever is wrong, it is one `ModelCorrupt` that says what and where."""
    path = tmp_path / "config.json"
    path.write_bytes(raw)
    with pytest.raises(ModelCorrupt, match=message):
        read_json_object(path)


def test_size_is_bounded_before_reading(tmp_path: Path) -> None:
    """A file over the limit is refused from its size."""
    path = tmp_path / "config.json"
    path.write_bytes(b'{"a": "' + b"x" * 100 + b'"}')
    with pytest.raises(ModelCorrupt, match="at most 50"):
        read_json_object(path, max_bytes=50)


def test_missing_is_not_found(tmp_path: Path) -> None:
    """A file that is not there is named."""
    with pytest.raises(ModelNotFound) as caught:
        read_json_object(tmp_path / "config.json")
    assert str(caught.value.path).endswith("config.json")


def test_a_file_that_may_not_be_read_is_there_all_the_same(tmp_path: Path) -> None:
    """No permission is no missing file: another error, another exit code."""
    denied = unreadable(PermissionError(13, "Permission denied"), tmp_path)
    missing = unreadable(FileNotFoundError(2, "No such file or directory"), tmp_path)
    assert (2, 3) == (denied.exit_code, missing.exit_code)
