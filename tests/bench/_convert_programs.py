"""The programs that `convert.py` compares, each run as a process of its own and measured.

A child's figures are read before it is reaped: what it wrote is known from /proc until then.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from edgellm.converters.presets import PRESETS

ROOT = Path(__file__).resolve().parents[2]
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
    """Convert with the command a user types.

    Memory is that of the larger process, the proof's: the system has no figure for both.
    """
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
