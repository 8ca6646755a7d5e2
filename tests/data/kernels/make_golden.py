"""Make the packed matrices beside this file, with what they unpack to.

    python tests/data/kernels/make_golden.py

They were written once, by the first version of the format. To write them anew is to say that
snapshots packed before can no longer be read.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edgellm import kernels

HERE = Path(__file__).resolve().parent
N_TOKENS, N_CHANNELS = 37, 72
GROUP = 32


def matrix() -> np.ndarray:
    """Give a K-like matrix: channels of many sizes around offsets, and the ends of float16."""
    rng = np.random.default_rng(20_240_507)
    size = 2.0 ** rng.integers(-20, 6, N_CHANNELS)
    x = (rng.standard_normal((N_TOKENS, N_CHANNELS)) + rng.standard_normal(N_CHANNELS)) * size
    x[:, :4] = 0, -1, 65504, -65504
    x[::5, 2:4] = 65472, 65504
    return x.astype(np.float16).view(np.uint16)


def main() -> None:
    """Write one file for each axis and number of bits."""
    x = matrix()
    for axis, pack, unpack in (
        ("channels", kernels.pack_channels, kernels.unpack_channels),
        ("tokens", kernels.pack_tokens, kernels.unpack_tokens),
    ):
        for bits in (8, 6, 5, 4):
            packed = pack(x, bits=bits, group=GROUP)
            arrays = {"x": x, "codes": packed.codes, "scale": packed.scale}
            if packed.minimum is not None:
                arrays["minimum"] = packed.minimum
            y = unpack(packed, N_CHANNELS, bits=bits, group=GROUP)
            np.savez_compressed(HERE / f"{axis}-{bits}.npz", y=y, **arrays)


if __name__ == "__main__":
    main()
