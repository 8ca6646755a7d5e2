"""A canary is found in every form that somebody may give it, and nothing else is taken for one."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import zlib
from urllib.parse import quote

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from edgellm.runtime.proving.canary import Canary

CANARY = Canary("CANARY 00112233aabbccdd")
RAW = CANARY.text.encode()


@pytest.mark.parametrize(
    ("data", "form"),
    [
        (RAW, "raw"),
        (json.dumps({"content": CANARY.text}).encode(), "raw"),
        (b"canary-00112233AABBCCDD.example.com", "raw"),
        (quote(CANARY.text, safe="").encode(), "url"),
        (b"q=CANARY+00112233aabbccdd", "url"),
        ("".join(f"%{byte:02x}" for byte in RAW).encode(), "url"),
        (RAW.hex().encode(), "hex"),
        (RAW.hex().upper().encode(), "hex"),
        (CANARY.text.encode("utf-16-le"), "utf-16"),
        (b"head" + gzip.compress(b"x" * 999 + RAW), "packed, raw"),
        (b"head" + zlib.compress(b"x" * 999 + RAW), "packed, raw"),
        (b"head" + zstandard.compress(b"x" * 999 + RAW), "packed, raw"),
        (gzip.compress(base64.b64encode(RAW)), "packed, base64"),
    ],
    ids=map(str, itertools.count()),  # bytes make no names: gzip's hold the time
)
def test_each_form_is_found(data: bytes, form: str) -> None:
    """And named."""
    assert form in CANARY.hits(data)


@given(before=st.binary(max_size=70), after=st.binary(max_size=70))
def test_base64_is_found_wherever_it_begins(before: bytes, after: bytes) -> None:
    """Whatever is encoded before and behind it."""
    assert "base64" in CANARY.hits(base64.b64encode(before + RAW + after))


@given(st.binary(max_size=400))
def test_other_bytes_are_no_canary(data: bytes) -> None:
    """Also where they look like the beginning of something packed."""
    assert CANARY.hits(data) == CANARY.hits(b"\x1f\x8b\x08" + data) == ()


def test_no_two_are_the_same() -> None:
    """What an earlier proof left behind is not taken for this one's."""
    assert Canary.new() != Canary.new()
    assert Canary.new().hits(RAW) == ()


def test_files_and_names_are_searched(tmp_path) -> None:
    """A folder is searched to its bottom; links are not followed."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "log").write_bytes(b"x" * 5000 + RAW)
    (tmp_path / "a" / "00112233aabbccdd").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b" / "log")
    assert CANARY.hits_below(tmp_path) == ("a/00112233aabbccdd: raw", "a/b/log: raw")
