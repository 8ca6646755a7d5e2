"""What the codec's door refuses, before an implementation sees it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgellm import kernels
from edgellm.kernels import Packed

X = np.arange(70 * 96, dtype=np.uint16).reshape(70, 96)
PACKED = kernels.pack_tokens(X, bits=6, group=32)


@pytest.mark.parametrize("bits", [-1, 0, 1, 2, 3, 7, 9, 16])
def test_other_widths_are_refused(bits: int) -> None:
    """Four widths are known, and the message names them."""
    with pytest.raises(ValueError, match="use one of 8, 6, 5, 4"):
        kernels.pack_channels(X, bits=bits, group=32)


@pytest.mark.parametrize("group", [0, -1])
def test_a_group_is_one_or_more(group: int) -> None:
    """A group without members is refused."""
    with pytest.raises(ValueError, match=f"in groups of {group}"):
        kernels.pack_tokens(X, bits=8, group=group)


def test_sizes_are_known_before_there_is_data() -> None:
    """A reader sizes its buffers by these, whatever the counts: Python's integers do not wrap."""
    shapes = kernels.packed_shapes(70, 96, axis="tokens", bits=6, group=32)
    assert (PACKED.codes.shape, PACKED.scale.shape) == (shapes.codes, shapes.scale)
    assert shapes.minimum == shapes.scale
    huge = kernels.packed_shapes(1 << 70, 65, axis="channels", bits=8, group=128)
    assert (huge.codes, huge.scale, huge.minimum) == ((1 << 70, 128), (1 << 63, 65), None)
    with pytest.raises(ValueError, match="axis is 'rows'"):
        kernels.packed_shapes(1, 1, axis="rows", bits=8, group=1)
    with pytest.raises(ValueError, match="-1 tokens"):
        kernels.packed_shapes(-1, 1, axis="tokens", bits=8, group=1)


@pytest.mark.parametrize(
    ("packed", "message"),
    [
        (replace(PACKED, codes=PACKED.codes[:, :-1]), "codes has shape"),
        (replace(PACKED, codes=PACKED.codes[:-1]), "scale has shape"),
        (replace(PACKED, scale=PACKED.scale[:, :-1]), "scale has shape"),
        (replace(PACKED, scale=PACKED.scale.ravel()), "scale must have two dimensions"),
        (replace(PACKED, minimum=PACKED.scale[:-1]), "minimum has shape"),
        (replace(PACKED, minimum=None), "6 bits need a minimum"),
        (replace(PACKED, codes=PACKED.codes.ravel()), "codes must have two dimensions"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(packed: Packed, message: str) -> None:
    """A header that lies about its arrays reads and writes nothing."""
    with pytest.raises(ValueError, match=message):
        kernels.unpack_tokens(packed, 96, bits=6, group=32)


def test_eight_bits_have_no_minimum() -> None:
    """A minimum where none belongs is a mistake, not ignored."""
    packed = kernels.pack_tokens(X, bits=8, group=32)
    with pytest.raises(ValueError, match="8 bits have no minimum"):
        kernels.unpack_tokens(replace(packed, minimum=packed.scale), 96, bits=8, group=32)


@pytest.mark.parametrize("n_channels", [-1, 64, 65 + 64])
def test_another_number_of_channels_is_refused(n_channels: int) -> None:
    """The codes' length bounds the channels."""
    with pytest.raises(ValueError, match=r"channels|shape"):
        kernels.unpack_tokens(PACKED, n_channels, bits=6, group=32)


@pytest.mark.parametrize(
    "change",
    [
        {"codes": PACKED.codes.view(np.int8)},
        {"scale": PACKED.scale.view(np.float16)},
        {"minimum": PACKED.scale.astype(">u2")},
        {"codes": [[1]]},
    ],
)
def test_other_dtypes_are_refused(change: dict[str, Any]) -> None:
    """Codes are bytes, scales are uint16 in this machine's order."""
    with pytest.raises(TypeError, match="must be an array of uint"):
        kernels.unpack_tokens(replace(PACKED, **change), 96, bits=6, group=32)
    with pytest.raises(TypeError, match="x must be an array of uint16"):
        kernels.pack_tokens(X.view(np.float16), bits=6, group=32)


def _read_only() -> np.ndarray:
    out = np.zeros((70, 96), np.uint16)
    out.flags.writeable = False
    return out


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (np.zeros((96, 70), np.uint16), "out has shape"),
        (np.zeros((70, 192), np.uint16)[:, ::2], "out has strides"),
        (np.zeros((70, 96), np.uint16)[::-1], "out has strides"),
        (np.zeros((96, 70), np.uint16)[::-1].T, "out has strides"),
        (_read_only(), "out is read-only"),
    ],
)
def test_an_out_that_does_not_fit_is_refused(out: np.ndarray, message: str) -> None:
    """A wrong shape, steps between elements, rows backwards, a read-only buffer."""
    with pytest.raises(ValueError, match=message):
        kernels.unpack_tokens(PACKED, 96, bits=6, group=32, out=out)


def test_an_out_inside_the_codes_is_refused() -> None:
    """Unpacking over what is unpacked is refused before anything is overwritten."""
    buffer = np.zeros(70 * 96 * 2, np.uint8)
    codes = buffer[: PACKED.codes.size].reshape(PACKED.codes.shape)
    out = buffer.view(np.uint16).reshape(70, 96)
    with pytest.raises(ValueError, match="shares memory"):
        kernels.unpack_tokens(replace(PACKED, codes=codes), 96, bits=6, group=32, out=out)
