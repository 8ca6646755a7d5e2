"""The element types a tensor may have, as ggml numbers, names and packs them.

A literal table: a type that is not in it is refused by whoever reads a file, never guessed at.
Source: `enum ggml_type` (ggml.h), `type_traits` (ggml.c) and the `block_*` structs (ggml-common.h),
llama.cpp 0c1e57098. Numbers that are missing (4, 5, 31 to 33, 36 to 38) were withdrawn by ggml.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class TensorType(NamedTuple):
    """One way to store numbers.

    Attributes:
        id: ggml's number, as it stands in files.
        name: ggml's name, such as `f16` or `q4_K`.
        block_size: elements stored together; a row's length is a multiple of it.
        block_bytes: bytes of one such block.
    """

    id: int
    name: str
    block_size: int
    block_bytes: int

    def row_bytes(self, n_elements: int) -> int:
        """Return the bytes of `n_elements` stored one after the other.

        Raises:
            ValueError: they do not fill whole blocks.
        """
        n_blocks, rest = divmod(n_elements, self.block_size)
        if rest:
            raise ValueError(f"{n_elements} elements are no multiple of {self.block_size}")
        return n_blocks * self.block_bytes


MAX_THREADS: Final = 512
"""That ggml computes with. Source: `GGML_MAX_N_THREADS`, ggml.h."""

_TYPES: Final = (
    TensorType(0, "f32", 1, 4),
    TensorType(1, "f16", 1, 2),
    TensorType(2, "q4_0", 32, 18),
    TensorType(3, "q4_1", 32, 20),
    TensorType(6, "q5_0", 32, 22),
    TensorType(7, "q5_1", 32, 24),
    TensorType(8, "q8_0", 32, 34),
    TensorType(9, "q8_1", 32, 36),
    TensorType(10, "q2_K", 256, 84),
    TensorType(11, "q3_K", 256, 110),
    TensorType(12, "q4_K", 256, 144),
    TensorType(13, "q5_K", 256, 176),
    TensorType(14, "q6_K", 256, 210),
    TensorType(15, "q8_K", 256, 292),
    TensorType(16, "iq2_xxs", 256, 66),
    TensorType(17, "iq2_xs", 256, 74),
    TensorType(18, "iq3_xxs", 256, 98),
    TensorType(19, "iq1_s", 256, 50),
    TensorType(20, "iq4_nl", 32, 18),
    TensorType(21, "iq3_s", 256, 110),
    TensorType(22, "iq2_s", 256, 82),
    TensorType(23, "iq4_xs", 256, 136),
    TensorType(24, "i8", 1, 1),
    TensorType(25, "i16", 1, 2),
    TensorType(26, "i32", 1, 4),
    TensorType(27, "i64", 1, 8),
    TensorType(28, "f64", 1, 8),
    TensorType(29, "iq1_m", 256, 56),
    TensorType(30, "bf16", 1, 2),
    TensorType(34, "tq1_0", 256, 54),
    TensorType(35, "tq2_0", 256, 66),
    TensorType(39, "mxfp4", 32, 17),
    TensorType(40, "nvfp4", 64, 36),
    TensorType(41, "q1_0", 128, 18),
    TensorType(42, "q2_0", 64, 18),
)

TYPES_BY_ID: Final = {entry.id: entry for entry in _TYPES}
TYPES_BY_NAME: Final = {entry.name: entry for entry in _TYPES}
