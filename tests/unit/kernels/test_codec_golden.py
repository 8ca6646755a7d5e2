"""Packed matrices written by the first version of the format: they unpack to the same for ever.

If reading fails, the format has changed: snapshots on users' disks say so too. Give the new one
another name, and keep this one's reader.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgellm import kernels

FOLDER = Path(__file__).parents[2] / "data" / "kernels"
GROUP = 32
OPERATIONS: dict[str, Any] = {
    "channels": (kernels.pack_channels, kernels.unpack_channels),
    "tokens": (kernels.pack_tokens, kernels.unpack_tokens),
}


@pytest.fixture(params=sorted(OPERATIONS))
def axis(request: pytest.FixtureRequest) -> str:
    """Give one axis after the other."""
    name: str = request.param
    return name


@pytest.mark.parametrize("bits", [8, 6, 5, 4])
def test_the_first_files_unpack_to_what_they_did(native_isa: str, axis: str, bits: int) -> None:
    """Every implementation reads the committed codes as they were meant."""
    with np.load(FOLDER / f"{axis}-{bits}.npz") as file:
        golden = dict(file)
    packed = kernels.Packed(golden["codes"], golden["scale"], golden.get("minimum"))
    n_channels = golden["y"].shape[1]
    actual = OPERATIONS[axis][1](packed, n_channels, bits=bits, group=GROUP)
    np.testing.assert_array_equal(golden["y"], actual)


@pytest.mark.parametrize("bits", [8, 6, 5, 4])
def test_packing_still_writes_them(native_isa: str, axis: str, bits: int) -> None:
    """The bytes are the definition's, so two machines pack one prefix alike."""
    with np.load(FOLDER / f"{axis}-{bits}.npz") as file:
        golden = dict(file)
    packed = OPERATIONS[axis][0](golden["x"], bits=bits, group=GROUP)
    np.testing.assert_array_equal(golden["codes"], packed.codes)
    np.testing.assert_array_equal(golden["scale"], packed.scale)
    if bits == 8:
        assert packed.minimum is None
    else:
        np.testing.assert_array_equal(golden["minimum"], packed.minimum)


@pytest.mark.parametrize("bits", [6, 5, 4])
def test_a_block_by_hand(native_isa: str, bits: int) -> None:
    """One block whose codes are 0, 1, 2, ...: each bit lies where the README's layout says."""
    n_codes = 1 << bits
    codes = [column % n_codes for column in range(64)]
    x = np.array([codes], np.float16).view(np.uint16)
    packed = kernels.pack_tokens(x, bits=bits, group=64)
    assert packed.scale.tolist() == [[0x3C00]]
    assert packed.minimum is not None
    assert packed.minimum.tolist() == [[0]]
    expected = [codes[j] & 15 | (codes[j + 32] & 15) << 4 for j in range(32)]
    if bits == 5:
        expected += [sum((codes[p + 8 * i] >> 4) << i for i in range(8)) for p in range(8)]
    if bits == 6:
        expected += [sum((codes[p + 16 * i] >> 4) << 2 * i for i in range(4)) for p in range(16)]
    assert expected == packed.codes[0].tolist()
