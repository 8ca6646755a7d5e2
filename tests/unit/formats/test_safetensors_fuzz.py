"""Damaged safetensors files: refused with our error, or read with numbers that fit the file."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgellm.errors import ModelCorrupt
from edgellm.formats.safetensors import read_header

TABLE = {
    "__metadata__": {"format": "pt"},
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "BF16", "shape": [5], "data_offsets": [24, 34]},
}
TEXT = json.dumps(TABLE).encode()
GOOD = struct.pack("<Q", len(TEXT)) + TEXT + bytes(34)

edits = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "insert"]),
        st.integers(0, len(GOOD) - 1),
        st.binary(min_size=1, max_size=9),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=edits)
def test_damage_is_an_error_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[str, int, bytes]]
) -> None:
    """Whatever the bytes, the answer is `ModelCorrupt` or tensors that lie inside the file."""
    data = bytearray(GOOD)
    for kind, place, raw in edits:
        if kind == "flip":
            data[place : place + len(raw)] = raw
        elif kind == "cut":
            del data[place : place + raw[0]]
        else:
            data[place:place] = raw
    path = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    path.write_bytes(data)
    try:
        header = read_header(path)
    except ModelCorrupt:
        return
    for tensor in header.tensors:
        assert 8 <= tensor.offset <= tensor.offset + tensor.n_bytes <= len(data)
