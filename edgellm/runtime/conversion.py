"""From a Hugging Face checkpoint to a verified GGUF: plan, convert, verify, rename.

`plan` reads headers, configuration and tokenizer and writes nothing; its bytes are exact. `convert`
writes `OUT.partial`, reopens and compares it, and only then renames it to `OUT`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Progress = Callable[[int, int], None]

TYPES: Final = ("f32", "f16", "bf16", "q8_0", "q4_0")
TYPE_OF_BITS: Final = {8: "q8_0", 4: "q4_0"}


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """What to convert and how.

    Attributes:
        src: checkpoint folder; only read.
        out: the GGUF file to make.
        type: one of `TYPES`, the type of the weight matrices.
        n_threads: workers that quantise; 0 means one for each CPU of this process. The bytes
            written do not depend on it.
        overwrite: replace `out` if it is there.
    """

    src: Path
    out: Path
    type: str
    n_threads: int = 0
    overwrite: bool = False


@dataclass(frozen=True, slots=True)
class TensorRow:
    """One tensor of a plan: `shape` in checkpoint order (rows first), `type` as ggml spells it."""

    name: str
    source: str
    shape: tuple[int, ...]
    type: str
    n_bytes: int


@dataclass(frozen=True, slots=True)
class ConversionPlan:
    """What a conversion would write, known before the first byte is.

    Attributes:
        out: the file to be made.
        architecture: the checkpoint's architecture, such as `LlamaForCausalLM`.
        type: the type asked for.
        out_bytes: exact size of the file.
        n_params: weights in the file, rotary factors left out.
        bits_per_weight: `8 * tensor bytes / n_params`.
        tensors: one row for each tensor, in file order.
        peak_memory_bytes: estimate of the process's peak resident memory.
        free_bytes: free space where `out` goes.
        warnings: what the user should know, one sentence each.
    """

    out: Path
    architecture: str
    type: str
    out_bytes: int
    n_params: int
    bits_per_weight: float
    tensors: tuple[TensorRow, ...]
    peak_memory_bytes: int
    free_bytes: int
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ConversionResult:
    """A file that was written, reopened and found to be what was meant."""

    path: Path
    type: str
    n_bytes: int
    sha256: str
    seconds: float
    bits_per_weight: float


def plan(options: ConvertOptions) -> ConversionPlan:
    """Check a checkpoint whole and say what its conversion would write; nothing is written.

    Raises:
        UsageError: `type` is not one of `TYPES`.
        ModelNotFound: `src` is no checkpoint folder, or a shard is missing.
        ModelCorrupt: a file of the checkpoint contradicts itself.
        ModelUnsupported: the checkpoint is quantised already, or is a pickle.
        UnknownArchitecture: no family converts it.
        TensorMismatch: names or shapes differ from the family's recipe.
        ConvertError: configuration or tokenizer cannot be carried over.
    """
    raise NotImplementedError


def convert(options: ConvertOptions, *, progress: Progress | None = None) -> ConversionResult:
    """Convert a checkpoint; `options.out` appears whole and verified, or not at all.

    Args:
        options: what to convert and how.
        progress: called with (bytes done, bytes in all) as tensor bytes are written.

    Raises:
        UsageError: `out` exists and `overwrite` is off, or another run is writing it.
        DoesNotFit: the disk is too small.
        VerifyFailed: the file, read again, is not what was meant.
        ConvertError: and the others that `plan` raises.
    """
    raise NotImplementedError
