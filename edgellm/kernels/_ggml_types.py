"""ggml's tensor types by the names of its C enum: numbers, sizes, and what can be done with each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from edgellm.ggml_types import TYPES_BY_ID


class GgmlType(IntEnum):
    """ggml's number for each tensor type that a file may hold."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39
    NVFP4 = 40
    Q1_0 = 41
    Q2_0 = 42


@dataclass(frozen=True, slots=True)
class TypeTraits:
    """How a type is stored: `block_size` elements take `type_bytes` bytes."""

    block_size: int
    type_bytes: int


TRAITS: Final = {
    ggml_type: TypeTraits(TYPES_BY_ID[ggml_type].block_size, TYPES_BY_ID[ggml_type].block_bytes)
    for ggml_type in GgmlType
}

# What `quantize` stores; the others need an importance matrix, or nobody asks for them.
WRITTEN: Final = frozenset(
    GgmlType[name]
    for name in (
        *("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"),
        *("Q4_K", "Q5_K", "Q6_K", "IQ4_NL"),
    )
)
# Stored for arithmetic between two types, or no weights at all.
NO_WAY_BACK: Final = frozenset(
    GgmlType[name] for name in ("Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64")
)
# gguf-py 0.19 does not know them.
ENGINE_ONLY: Final = frozenset({GgmlType.Q1_0, GgmlType.Q2_0})


def traits(ggml_type: GgmlType) -> TypeTraits:
    """Give the block and byte sizes of a type."""
    return TRAITS[ggml_type]


def row_bytes(ggml_type: GgmlType, n: int) -> int:
    """Give the bytes that a row of `n` elements takes.

    Raises:
        ValueError: `n` is negative or not a multiple of the type's block size.
    """
    stored = TRAITS[ggml_type]
    if n < 0 or n % stored.block_size:
        raise ValueError(
            f"{n} elements do not fill blocks of {stored.block_size} ({ggml_type.name})"
        )
    return n // stored.block_size * stored.type_bytes
