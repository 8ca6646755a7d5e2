"""From a Hugging Face checkpoint, or another GGUF, to a verified GGUF: plan, convert, verify, rename.

`plan` reads headers, configuration and tokenizer and writes nothing; its bytes are exact. `convert`
writes `.OUT.edgellm-partial`, reopens and compares it, and only then renames it to `OUT`.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from edgellm.errors import UsageError, VerifyFailed
from edgellm.fileio import AtomicWriter, no_room, temp_name
from edgellm.hw.cpu import available_threads
from edgellm.runtime import proof
from edgellm.runtime.conversion_out import (
    check_folder,
    check_out,
    check_source,
    check_space,
    free_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from edgellm.converters.layout import Fallback, FilePlan

    Progress = Callable[[int, int], None]

TYPES: Final = (
    *("f32", "f16", "bf16", "q8_0", "q6_k", "q5_1", "q5_0", "q5_k"),
    *("q4_1", "q4_k_m", "q4_k", "q4_0", "iq4_nl"),
)
TYPE_OF_BITS: Final = {8: "q8_0", 4: "q4_k_m"}
_FILE_MODE: Final = 0o666  # less the umask: a model is no secret
_MAX_THREADS: Final = 16
_NOT_PROVEN: Final = proof.Proof(skipped="not asked for")


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """What to convert and how.

    Attributes:
        src: checkpoint folder, or a GGUF file to be stored in another type; only read.
        out: the GGUF file to make.
        type: one of `TYPES`, the type of the weight matrices, or the mix of several.
        n_threads: workers that quantise; 0 means one for each CPU of this process. The bytes
            written do not depend on it.
        overwrite: replace `out` if it is there.
        prove: hold the file's tokenizer and template against the source's, and decode one token,
            before it gets its name.
        origin: the address `src` was fetched from, which the file's metadata then names; or "".
    """

    src: Path
    out: Path
    type: str
    n_threads: int = 0
    overwrite: bool = False
    prove: bool = True
    origin: str = ""


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
        architecture: the source's, such as `LlamaForCausalLM`, or `llama` in a GGUF.
        type: the type asked for.
        out_bytes: exact size of the file.
        n_params: weights in the file, rotary factors left out.
        bits_per_weight: `8 * tensor bytes / n_params`.
        tensors: one row for each tensor, in file order.
        peak_memory_bytes: estimate of the process's peak resident memory.
        proof_memory_bytes: what the process that proves the file takes beside it; 0 without one.
        free_bytes: free space where `out` goes.
        fallbacks: tensors that are of another type because their rows do not fill its blocks.
        generation: 1 for an unquantised source, one more for each quantised file between.
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
    proof_memory_bytes: int
    free_bytes: int
    fallbacks: tuple[Fallback, ...] = ()
    generation: int = 1
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ConversionResult:
    """A file that was written, reopened and found to be what was meant.

    Attributes:
        path: the file.
        type: the type asked for.
        n_bytes: its size.
        sha256: of the whole file, in hex.
        seconds: how long planning, writing and verifying took.
        bits_per_weight: `8 * tensor bytes / n_params`.
        n_tensors: tensors in the file.
        fallbacks, generation: those of the plan.
        proof: what of the tokenizer was held against the source.
        warnings: those of the plan and of the proof.
    """

    path: Path
    type: str
    n_bytes: int
    sha256: str
    seconds: float
    bits_per_weight: float
    n_tensors: int
    fallbacks: tuple[Fallback, ...] = ()
    generation: int = 1
    proof: proof.Proof = _NOT_PROVEN
    warnings: tuple[str, ...] = ()


def plan(options: ConvertOptions) -> ConversionPlan:
    """Check a source whole and say what its conversion would write; nothing is written.

    Raises:
        UsageError: `type` is not one of `TYPES`, the folder of `out` does not exist, or `src` is a
            device, a pipe or a socket.
        ModelNotFound: `src` is no checkpoint folder, or a file of it is missing.
        ModelCorrupt: a file of the checkpoint contradicts itself.
        ModelUnsupported: the checkpoint is quantised already, or is a pickle.
        UnknownArchitecture: no family converts it.
        TensorMismatch: names or shapes differ from the family's recipe.
        ConvertError: configuration or tokenizer cannot be carried over.
        MissingExtra: the type needs the engine's library, and it is not installed.
    """
    return _describe(options, _make_plan(options))


def convert(options: ConvertOptions, *, progress: Progress | None = None) -> ConversionResult:
    """Convert a checkpoint or a GGUF; `options.out` appears whole and verified, or not at all.

    Args:
        options: what to convert and how.
        progress: called with (bytes done, bytes in all) as the file is written.

    Raises:
        UsageError: `out` exists and `overwrite` is off, is no regular file, or is a file of the
            source; or another run is writing it.
        DoesNotFit: the disk is too small.
        VerifyFailed: the file, read again, is not what was meant, or tokenizes otherwise.
        ConvertError: and the others that `plan` raises.
    """
    started_s = time.monotonic()
    check_out(options)
    file_plan = _make_plan(options)
    check_space(options.out, file_plan.n_bytes)
    with _told_of_disk(options.out):
        sha256, proven = _write_and_verify(options, file_plan, progress)
    return ConversionResult(
        path=options.out,
        type=options.type,
        n_bytes=file_plan.n_bytes,
        sha256=sha256,
        seconds=time.monotonic() - started_s,
        bits_per_weight=file_plan.bits_per_weight,
        n_tensors=len(file_plan.tensors),
        fallbacks=file_plan.fallbacks,
        generation=file_plan.generation,
        proof=proven,
        warnings=(*file_plan.warnings, *proven.warnings),
    )


@contextlib.contextmanager
def _told_of_disk(out: Path) -> Iterator[None]:
    """Turn what a disk answers to writing into our errors."""
    try:
        yield
    except FileExistsError as err:  # made by another run since it was cleared
        raise UsageError("another conversion is writing this file", path=out) from err
    except OSError as err:
        problem = no_room(err, out, 0)  # before a byte: the writer has told all others
        if problem is not None:
            raise problem from err
        raise UsageError(f"cannot be written: {err.strerror or err}", path=out) from err


def _make_plan(options: ConvertOptions) -> FilePlan:
    if options.type not in TYPES:
        raise UsageError(f"type {options.type!r} is unknown", hint=f"one of {', '.join(TYPES)}")
    if options.n_threads < 0:
        raise UsageError(f"{options.n_threads} threads")
    check_folder(options.out)
    check_source(options.src)
    if options.src.is_file():
        from edgellm.converters.requantize import plan_requantization

        return plan_requantization(options.src, options.type)
    from edgellm.converters.plan import make_plan

    return make_plan(options.src, options.type, origin=options.origin)


def _write_and_verify(
    options: ConvertOptions, file_plan: FilePlan, progress: Progress | None
) -> tuple[str, proof.Proof]:
    """Write, sync, read back, prove, rename; return the sha256 and the proof."""
    from edgellm.converters.claim import claim, clear_partial, partial_path
    from edgellm.converters.verify import verify_file
    from edgellm.converters.write import write_file

    out, n_threads = options.out, _n_threads(options)
    clear_partial(out)
    partial = partial_path(out)
    writer = AtomicWriter(out, temp=partial, mode=_FILE_MODE)
    # Outermost, so that the claim is let go last: after the rename or the removal.
    with contextlib.ExitStack() as claimed, writer:
        try:
            claimed.enter_context(claim(partial, out))
        except (UsageError, OSError):
            writer.temp = temp_name(out)  # the name is another run's, and so is the file there
            raise
        digests = write_file(file_plan, writer.write, n_threads=n_threads, progress=progress)
        writer.sync()
        sha256 = verify_file(partial, file_plan, digests)
        try:
            return sha256, proof.prove(partial, options.src) if options.prove else _NOT_PROVEN
        except VerifyFailed as err:
            err.path = str(out)
            raise


def _describe(options: ConvertOptions, file_plan: FilePlan) -> ConversionPlan:
    from edgellm.converters.write import peak_memory_bytes

    rows = tuple(
        TensorRow(
            name=tensor.name,
            source=tensor.source.name if tensor.source else "",
            shape=tensor.shape,
            type=tensor.type.name.lower(),
            n_bytes=tensor.n_bytes,
        )
        for tensor in file_plan.tensors
    )
    return ConversionPlan(
        out=options.out,
        architecture=file_plan.architecture,
        type=options.type,
        out_bytes=file_plan.n_bytes,
        n_params=file_plan.n_params,
        bits_per_weight=file_plan.bits_per_weight,
        tensors=rows,
        peak_memory_bytes=peak_memory_bytes(file_plan, _n_threads(options)),
        proof_memory_bytes=_proof_memory_bytes(options, file_plan),
        free_bytes=free_bytes(options.out),
        fallbacks=file_plan.fallbacks,
        generation=file_plan.generation,
        warnings=file_plan.warnings,
    )


def _proof_memory_bytes(options: ConvertOptions, file_plan: FilePlan) -> int:
    if not (options.prove and proof.is_possible()):
        return 0
    return proof.peak_memory_bytes(len(file_plan.head), file_plan.n_bytes)


def _n_threads(options: ConvertOptions) -> int:
    return options.n_threads or min(available_threads(), _MAX_THREADS)
