"""`edgellm convert`: a Hugging Face checkpoint, or a GGUF, becomes one GGUF file."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from edgellm.errors import UsageError
from edgellm.units import format_bytes

if TYPE_CHECKING:
    from edgellm.runtime.conversion import ConversionPlan, ConversionResult, ConvertOptions

EXAMPLES: Final = """
edgellm convert ./SmolLM2-135M-Instruct -o smollm2-q8.gguf --bits 8
edgellm convert ./checkpoint -o model.gguf --bits 4 --dry-run
edgellm convert ./checkpoint -o model.gguf --type bf16 --force --json
edgellm convert HuggingFaceTB/SmolLM2-135M-Instruct -o smollm2.gguf --bits 4
edgellm convert model-bf16.gguf -o model-q5_k.gguf --type q5_k
"""


class WeightType(str, enum.Enum):
    """Types that weight matrices can be converted to; `runtime.conversion.TYPES`, for typer."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    Q8_0 = "q8_0"
    Q6_K = "q6_k"
    Q5_1 = "q5_1"
    Q5_0 = "q5_0"
    Q5_K = "q5_k"
    Q4_1 = "q4_1"
    Q4_K_M = "q4_k_m"
    Q4_K = "q4_k"
    Q4_0 = "q4_0"
    IQ4_NL = "iq4_nl"


TYPE_HELP: Final = (
    "Type of the weight matrices, with bits a weight: f32 32, f16 and bf16 16, q8_0 8.5, q6_k 6.6, "
    "q5_1 6, q5_0 and q5_k 5.5, q4_1 5, q4_k_m about 4.9 (a mix), q4_k, q4_0 and iq4_nl 4.5; "
    "a few tensors get more."
)


def convert(
    src: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            help="Checkpoint folder, GGUF file, or model of the Hugging Face hub: org/name, "
            "org/name@revision.",
        ),
    ],
    out: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="GGUF file to make.")],
    weight_type: Annotated[
        WeightType | None,
        typer.Option("--type", metavar="TYPE", case_sensitive=False, help=TYPE_HELP),
    ] = None,
    bits: Annotated[
        int | None, typer.Option("--bits", metavar="4|8", help="4 is q4_k_m, 8 is q8_0.")
    ] = None,
    threads: Annotated[
        int, typer.Option("--threads", metavar="N", min=0, help="Workers; 0: one a CPU.")
    ] = 0,
    *,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it is there.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check all and print the exact size; write nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Convert a Hugging Face checkpoint or a GGUF to GGUF, verified before it gets its name."""
    from edgellm.cli.source import find_source
    from edgellm.runtime.conversion import ConvertOptions

    options = ConvertOptions(
        src=Path(src),
        out=out,
        type=chosen_type(weight_type, bits),
        n_threads=threads,
        overwrite=force,
    )
    options = find_source(src, options, dry_run=dry_run, quiet=as_json)
    (_plan if dry_run else _convert)(options, as_json=as_json)


def _plan(options: ConvertOptions, *, as_json: bool) -> None:
    from edgellm.runtime import conversion

    plan = conversion.plan(options)
    _show_warnings(plan)
    _show_plan(plan, as_json=as_json)


def _convert(options: ConvertOptions, *, as_json: bool) -> None:
    from edgellm.cli.progress import ByteProgress
    from edgellm.runtime import conversion

    progress = ByteProgress("converting", quiet=as_json)
    try:
        result = conversion.convert(options, progress=progress)
    finally:
        progress.close()
    _show_warnings(result)
    _show_result(result, as_json=as_json)


def chosen_type(weight_type: WeightType | None, bits: int | None) -> str:
    """Return the type that `--type` or `--bits` names.

    Raises:
        UsageError: both or neither is given, or the bits are neither 4 nor 8.
    """
    from edgellm.runtime.conversion import TYPE_OF_BITS

    if (weight_type is None) == (bits is None):
        problem = "exclude each other" if bits is not None else "are both missing"
        raise UsageError(f"--type and --bits {problem}", hint="give one, such as `--bits 8`")
    if weight_type is not None:
        return weight_type.value
    if bits not in TYPE_OF_BITS:
        raise UsageError(f"--bits must be 4 or 8, not {bits}")
    return TYPE_OF_BITS[bits]


def _show_warnings(found: ConversionPlan | ConversionResult) -> None:
    from edgellm.cli import render

    for text in found.warnings:
        render.warning(text)


def _show_plan(plan: ConversionPlan, *, as_json: bool) -> None:
    from edgellm.cli import render

    if as_json:
        render.json_line({"type": "plan", **_plain(plan)})
        return
    render.facts(
        [
            ("output", str(plan.out)),
            ("architecture", plan.architecture),
            ("parameters", f"{plan.n_params:,}"),
            ("weights", _weights(plan, len(plan.tensors))),
            ("generation", str(plan.generation)),
            ("size", f"{plan.out_bytes:,} bytes ({format_bytes(plan.out_bytes)})"),
            ("free space", format_bytes(plan.free_bytes)),
            ("peak memory", _memory(plan)),
        ]
    )


def _memory(plan: ConversionPlan) -> str:
    """Say what the conversion takes, and what its proof takes beside it, in a second process."""
    text = f"about {format_bytes(plan.peak_memory_bytes)}"
    more = plan.proof_memory_bytes
    return f"{text}, {format_bytes(more)} more for the proof" if more else text


def _weights(found: ConversionPlan | ConversionResult, n_tensors: int) -> str:
    """Say type, effective bits, and how many tensors are of another type than the mix gives."""
    text = f"{found.type}, {found.bits_per_weight:.2f} bits per weight"
    n_fallbacks = sum(fallback.n_tensors for fallback in found.fallbacks)
    return f"{text} ({n_fallbacks} of {n_tensors} tensors fell back)" if n_fallbacks else text


def _proven(result: ConversionResult) -> str:
    """Say what was held against the source, or why nothing was."""
    proof = result.proof
    if proof.skipped:
        return f"tokenizer not proven: {proof.skipped}"
    text = f"tokenizer proven on {proof.strings} texts"
    return f"{text}, template on {proof.conversations} chats" if proof.conversations else text


def _show_result(result: ConversionResult, *, as_json: bool) -> None:
    from edgellm.cli import render

    # The file is the result and is there: that nobody reads about it is no failure.
    with contextlib.suppress(render.StdoutClosed):
        if as_json:
            render.json_line({"type": "converted", **_plain(result)})
        else:
            render.write_out(
                f"{result.path}: {format_bytes(result.n_bytes)}, "
                f"{_weights(result, result.n_tensors)}, {result.seconds:.1f} s; {_proven(result)}\n"
            )
    if as_json:
        return
    name = render.shell_word(str(result.path))
    render.write_err(f'\nnext: edgellm info {name}\n      edgellm run {name} "Hello"\n')
    render.write_err(f"      edgellm chat {name}\n")


def _plain(value: ConversionPlan | ConversionResult) -> dict[str, Any]:
    """Return the fields for a JSON line, whose own `type` says what the line is."""
    names = {"type": "weight_type"}
    found = {names.get(key, key): item for key, item in dataclasses.asdict(value).items()}
    return {key: str(item) if key in ("path", "out") else item for key, item in found.items()}
