"""Names and seals of the shared tier: only with the secret, and only for the name they were made for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.errors import SnapshotCorrupt, UsageError
from edgellm.store.shared.remote import SEAL_BYTES, Seals

DIGEST = "ab" * 32


def test_what_was_sealed_opens_under_its_name_alone() -> None:
    """With the same secret on another machine; not under another name, not with another secret."""
    here, there, stranger = Seals(b"k" * 16), Seals(b"k" * 16), Seals(b"x" * 16)
    name = here.name(DIGEST, b"\1\0\0\0")
    value = memoryview(b"".join(here.seal(name, b"content")))
    assert name == there.name(DIGEST, b"\1\0\0\0")
    assert bytes(there.open(name, value)) == b"content"
    assert stranger.name(DIGEST, b"\1\0\0\0") != name
    for seals, other in ((stranger, name), (there, here.name(DIGEST, b"\2\0\0\0"))):
        with pytest.raises(SnapshotCorrupt):
            seals.open(other, value)


@given(st.data())
def test_any_change_breaks_the_seal(data: st.DataObject) -> None:
    """Every flipped bit, cut and extension is found."""
    seals = Seals(b"secret of sixteen bytes")
    name = seals.name(DIGEST, b"\1\0\0\0")
    value = bytearray(b"".join(seals.seal(name, b"some content")))
    how = data.draw(st.sampled_from(["flip", "cut", "extend"]))
    if how == "flip":
        bit = data.draw(st.integers(0, len(value) * 8 - 1))
        value[bit // 8] ^= 1 << bit % 8
    elif how == "cut":
        del value[data.draw(st.integers(0, len(value) - 1)) :]
    else:
        value += data.draw(st.binary(min_size=1, max_size=SEAL_BYTES))
    with pytest.raises(SnapshotCorrupt):
        seals.open(name, memoryview(value))


def test_a_short_secret_is_refused() -> None:
    """What can be guessed protects nothing."""
    with pytest.raises(UsageError, match="16 are needed"):
        Seals(b"short")
