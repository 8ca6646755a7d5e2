"""The types a model can be converted to, as llama.cpp numbers and mixes them.

A preset names the type of the matrices; `choice.py` says which tensors differ from it.
Source: `enum llama_ftype` (llama.h) and `llama_ftype_get_default_type` (llama-quant.cpp), llama.cpp
0c1e57098.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from edgellm.kernels.ggml import GgmlType


@dataclass(frozen=True, slots=True)
class Preset:
    """One way to store a model.

    Attributes:
        name: what the user asks for.
        type: of the matrices, where no rule says otherwise.
        file_type: number in `general.file_type`.
    """

    name: str
    type: GgmlType
    file_type: int

    @property
    def is_float(self) -> bool:
        """Whether every weight keeps a number of its own."""
        return self.type in FLOATS


FLOATS: Final = frozenset({GgmlType.F32, GgmlType.F16, GgmlType.BF16})
# q4_k and q5_k are llama.cpp's Q4_K_S and Q5_K_S: the purest mixes it has of these types.
PRESETS: Final = {
    preset.name: preset
    for preset in (
        Preset("f32", GgmlType.F32, 0),
        Preset("f16", GgmlType.F16, 1),
        Preset("bf16", GgmlType.BF16, 32),
        Preset("q8_0", GgmlType.Q8_0, 7),
        Preset("q6_k", GgmlType.Q6_K, 18),
        Preset("q5_1", GgmlType.Q5_1, 9),
        Preset("q5_0", GgmlType.Q5_0, 8),
        Preset("q5_k", GgmlType.Q5_K, 16),
        Preset("q4_1", GgmlType.Q4_1, 3),
        Preset("q4_k_m", GgmlType.Q4_K, 15),
        Preset("q4_k", GgmlType.Q4_K, 14),
        Preset("q4_0", GgmlType.Q4_0, 2),
        Preset("iq4_nl", GgmlType.IQ4_NL, 25),
    )
}
