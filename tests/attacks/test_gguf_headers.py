"""GGUF headers that lie: each is refused at once, by name or number, with no memory taken for it."""

from __future__ import annotations

import struct
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from edgellm.errors import ModelCorrupt, ModelError, ModelUnsupported
from edgellm.formats.gguf import read_header

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MAX_PEAK_BYTES = 4 << 20
U8, U32, STRING, ARRAY, U64 = 0, 4, 8, 9, 10


def string(text: bytes, length: int | None = None) -> bytes:
    """Return a string with its length, or with a false one."""
    return struct.pack("<Q", len(text) if length is None else length) + text


def pair(key: bytes, kind: int, payload: bytes) -> bytes:
    """Return one metadata pair."""
    return string(key) + struct.pack("<I", kind) + payload


def array(kind: int, n: int, payload: bytes = b"") -> bytes:
    """Return an array that claims `n` elements."""
    return struct.pack("<IQ", kind, n) + payload


def tensor(
    name: bytes = b"t",
    dims: tuple[int, ...] = (8, 4),
    kind: int = 0,
    offset: int = 0,
    n_dims: int | None = None,
) -> bytes:
    """Return one row of the tensor table."""
    count = len(dims) if n_dims is None else n_dims
    shape = struct.pack(f"<{len(dims)}Q", *dims)
    return string(name) + struct.pack("<I", count) + shape + struct.pack("<IQ", kind, offset)


def gguf(
    pairs: tuple[bytes, ...] = (),
    tensors: tuple[bytes, ...] = (),
    *,
    version: int = 3,
    n_pairs: int | None = None,
    n_tensors: int | None = None,
    data_bytes: int = 256,
) -> bytes:
    """Return a file of these rows, padding and zeros for weights; counts may be false."""
    head = struct.pack(
        "<4sIQQ",
        b"GGUF",
        version,
        len(tensors) if n_tensors is None else n_tensors,
        len(pairs) if n_pairs is None else n_pairs,
    )
    body = head + b"".join(pairs) + b"".join(tensors)
    return body + bytes(-len(body) % 32) + bytes(data_bytes)


ARCH = pair(b"general.architecture", STRING, string(b"llama"))

REFUSED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file is empty"),
    "magic_only": (b"GGUF", "needs 8 bytes, the file has 4"),
    "web_page": (b"<!DOCTYPE html><html>", "web page"),
    "page_after_space": (b"\r\n <HTML><body>", "web page"),
    "lfs_pointer": (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    "old_ggml": (b"tjgg" + bytes(60), "old GGML file"),
    "safetensors": (struct.pack("<Q", 90) + b'{"a":' + bytes(90), "safetensors"),
    "zip": (b"PK\x03\x04" + bytes(60), "zip archive"),
    "noise": (b"\x80\x02}q\x00" * 10, "starts with"),
    "version_1": (gguf(version=1), "GGUF version 1"),
    "version_99": (gguf(version=99), "GGUF version 99; .*upgrade"),
    "big_endian": (gguf(version=3 << 24), "big-endian"),
    "n_tensors_2p63": (gguf((ARCH,), n_tensors=1 << 63), "9223372036854775808 tensors"),
    "n_tensors_2p40": (gguf((ARCH,), n_tensors=1 << 40), "cannot be in"),
    "n_pairs_2p64m1": (gguf(n_pairs=(1 << 64) - 1), "cannot be in"),
    "key_2p64m1": (
        gguf((string(b"k" * 20, (1 << 64) - 1),)),
        "a string of 18446744073709551615 bytes",
    ),
    "key_empty": (gguf((pair(b"", U8, b"\0"),)), "empty name"),
    "key_not_utf8": (gguf((pair(b"a\xff", U8, b"\0"),)), "not UTF-8"),
    "key_twice": (gguf((ARCH, ARCH)), "'general.architecture' is there twice"),
    "value_type_77": (gguf((pair(b"a.b", 77, bytes(8)),)), "'a.b': unknown value type 77"),
    "value_string_1gib": (gguf((pair(b"a", STRING, string(b"x", 1 << 30)),)), "1073741824 bytes"),
    "strings_2p63": (gguf((pair(b"a", ARRAY, array(STRING, 1 << 63)),)), "an array of 9223"),
    "strings_past_end": (
        gguf((pair(b"a", ARRAY, array(STRING, 3, string(b"x", 1 << 62) + bytes(64))),)),
        "the file has",
    ),
    "bytes_2p63": (gguf((pair(b"a", ARRAY, array(U8, 1 << 63)),)), "an array of 9223"),
    "u64s_whose_size_wraps": (gguf((pair(b"a", ARRAY, array(U64, 1 << 61)),)), "an array of 2305"),
    "u64s_past_end": (gguf((pair(b"a", ARRAY, array(U64, 100)),)), "the file has"),
    "array_of_arrays": (gguf((pair(b"a", ARRAY, array(ARRAY, 2)),)), "element type 9"),
    "alignment_0": (gguf((pair(b"general.alignment", U32, bytes(4)),)), "no power of two"),
    "alignment_text": (
        gguf((pair(b"general.alignment", STRING, string(b"32")),)),
        "must be a whole number",
    ),
    "five_dims": (gguf(tensors=(tensor(dims=(2,) * 5),)), "5 dimensions"),
    "dims_2p32": (gguf(tensors=(tensor(n_dims=(1 << 32) - 1),)), "4294967295 dimensions"),
    "dims_wrap": (gguf(tensors=(tensor(dims=(1 << 32, 1 << 32)),)), "bytes are missing"),
    "dims_negative": (gguf(tensors=(tensor(dims=((1 << 64) - 1, 4)),)), "bytes are missing"),
    "dims_bytes_wrap": (gguf(tensors=(tensor(dims=(1 << 62,)),)), "bytes are missing"),
    "dims_zero": (gguf(tensors=(tensor(dims=(0, 4)),)), "zero"),
    "type_9999": (gguf(tensors=(tensor(kind=9999),)), "unknown weight type 9999"),
    "type_withdrawn": (gguf(tensors=(tensor(kind=4),)), "unknown weight type 4"),
    "row_of_33": (gguf(tensors=(tensor(dims=(33, 4), kind=2),)), "33 elements are no multiple"),
    "offset_past_end": (gguf(tensors=(tensor(offset=1 << 40),)), "leaves a gap"),
    "offset_wraps": (gguf(tensors=(tensor(offset=(1 << 64) - 32),)), "leaves a gap"),
    "offset_odd": (gguf(tensors=(tensor(offset=4),)), "no multiple of 32"),
    "overlap": (gguf(tensors=(tensor(b"a"), tensor(b"b", offset=32))), "overlaps"),
    "name_twice": (gguf(tensors=(tensor(), tensor(offset=128))), "'t': its name is there twice"),
    "name_5000": (gguf(tensors=(tensor(b"n" * 5000),)), "a string of 5000 bytes"),
    "data_cut": (gguf(tensors=(tensor(dims=(8, 8)),), data_bytes=200), "56 bytes are missing"),
    "table_cut": (gguf(tensors=(tensor(b"a" * 60),))[:90], "cannot be in|the file has"),
}


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], Path]:
    """Write bytes as a model file."""

    def put(content: bytes) -> Path:
        path = tmp_path / "model.gguf"
        path.write_bytes(content)
        return path

    return put


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_a_lying_header_is_refused_with_the_number_that_lies(
    case: str, write: Callable[[bytes], Path]
):
    """Each fault gives one error that names it, and no more memory than a read-ahead."""
    content, message = REFUSED[case]
    path = write(content)
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match=message) as caught:
            read_header(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert str(path) in str(caught.value)
    assert caught.value.exit_code == 2
    assert caught.value.hint
    assert peak < MAX_PEAK_BYTES


def test_the_builders_make_a_file_that_is_accepted(write: Callable[[bytes], Path]):
    """The control: without a fault the same builders pass."""
    header = read_header(write(gguf((ARCH,), (tensor(), tensor(b"b", offset=128)))))
    assert header.metadata == {"general.architecture": "llama"}
    assert [t.name for t in header.tensors] == ["t", "b"]


def test_every_cut_of_a_whole_file_is_refused(write: Callable[[bytes], Path]):
    """No prefix of a file, to the byte, is taken for the file."""
    words = pair(b"w", ARRAY, array(STRING, 2, string(b"ab") + string(b"c")))
    whole = gguf((ARCH, words), (tensor(),), data_bytes=128)
    assert read_header(write(whole))
    for n_bytes in range(len(whole)):
        with pytest.raises(ModelCorrupt):
            read_header(write(whole[:n_bytes]))


def test_every_flipped_bit_is_refused_or_read(write: Callable[[bytes], Path]):
    """A flipped bit never gives another exception than a model error."""
    words = pair(b"w", ARRAY, array(STRING, 2, string(b"ab") + string(b"c")))
    whole = gguf((ARCH, words), (tensor(),), data_bytes=128)
    for bit in range((len(whole) - 128) * 8):
        hostile = bytearray(whole)
        hostile[bit // 8] ^= 1 << bit % 8
        try:
            read_header(write(bytes(hostile)))
        except (ModelCorrupt, ModelUnsupported):
            continue
