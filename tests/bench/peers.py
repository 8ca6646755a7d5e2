"""Prefix stores side by side: bytes, restore, TTFT, sliding windows, and a model file that changed.

The same model files, prompts, threads, context, chunks, flash attention and f16 keys and values for
edgellm, llama-cpp-python's `LlamaDiskCache`, `llama_state_seq_save_file` in a plain program, and
stillwarm (PyPI) over llama.cpp's server. Each figure is of processes of their own: one asks an earlier
question of a system prompt of about 1,024 tokens, the next ones ask another of the same system prompt,
with the page cache hot; programs take turns, medians are given. "changed model" repeats the warm run
on a copy of the model of which one byte of the largest tensor was changed, and its times set back:
whoever still reuses tokens then answers from another model's memory. stillwarm is told the SHA-256 of
the file, which its user has to compute, and the time for that is not in its figures. The plain program
cuts behind the last control token that two questions share: where a template puts the system prompt into
the first question, as gemma's does, that leaves it one token, and its figures there say no more than that.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from _models import model_or_exit
from _report import Report, bench_parser
from _ttft_programs import PROGRAMS, Task
from ttft import EARLIER_QUESTION, N_RULES, QUESTION, Run, run, shown, system_prompt

from edgellm.formats.gguf import read_header
from edgellm.hw.cpu import available_threads

US, DISK, FILE = PROGRAMS
PEER = "stillwarm"
MODELS = {"smollm2": "dense", "gemma3": "sliding window"}


def changed_copy(model: Path, folder: Path) -> Path:
    """Copy a model, change one byte of its largest tensor, and set its times back."""
    copy = folder / "changed.gguf"
    shutil.copyfile(model, copy)
    header = read_header(copy)
    largest = max(header.tensors, key=lambda tensor: tensor.n_bytes)
    with copy.open("r+b") as file:
        file.seek(header.data_start + largest.offset + largest.n_bytes // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0x10]))
    status = model.stat()
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
    return copy


class Bench:
    """One model, all programs.

    Args:
        report: where the figures go.
        python: of the environment that has stillwarm, "" to leave it out.
        n_pairs: warm runs of each program.
    """

    def __init__(self, report: Report, python: str, n_pairs: int) -> None:
        self._report, self._python, self._n_pairs = report, python, n_pairs
        self._programs = [*PROGRAMS, *([PEER] if python else [])]

    def measure(self, name: str, task: Task) -> None:
        """Measure and report everything of one model."""
        with tempfile.TemporaryDirectory() as scratch:
            root = Path(scratch)
            n_bytes = {program: self._prepare(program, task, root) for program in self._programs}
            cold, warm = self._runs(task, root)
            changed = changed_copy(Path(task.model), root)
            other = replace(task, model=str(changed))
            reused = {
                program: self._once(program, other, root / program, root / "changed" / program)
                for program in self._programs
            }
        for program in self._programs:
            row = f"{name}, {program}"
            mine = program == US
            ttft = statistics.median(one.ttft_ms for one in warm[program])
            restore = statistics.median(one.answer.restore_ms for one in warm[program])
            answer = warm[program][0].answer
            self._report.row(f"{row}, bytes", n_bytes[program], "bytes")
            self._report.row(f"{row}, restore", shown(restore), "ms")
            self._report.row(f"{row}, TTFT cold", shown(cold[program].ttft_ms), "ms")
            self._report.row(f"{row}, TTFT warm", shown(ttft), "ms")
            goal = ("> 0", answer.reused_tokens > 0) if mine else (None, None)
            self._report.row(f"{row}, reused", answer.reused_tokens, "tokens", *goal)
            equal = answer.pieces == cold[program].answer.pieces
            words = "yes" if equal else "no"
            goal = ("yes", equal) if mine else (None, None)
            self._report.row(f"{row}, warm answer is the cold one", words, "", *goal)
            found = not reused[program].answer.reused_tokens
            goal = ("yes", found) if mine else (None, None)
            words = "yes" if found else "no"
            self._report.row(f"{row}, changed model found", words, "", *goal)
        times = {p: statistics.median(one.ttft_ms for one in warm[p]) for p in self._programs}
        for program in self._programs[1:]:
            ratio = times[US] / times[program]
            self._report.row(f"{name}, TTFT warm, {US} / {program}", ratio, "x")
            self._report.row(
                f"{name}, bytes, {US} / {program}", n_bytes[US] / n_bytes[program], "x"
            )

    def _run(self, program: str, task: Task, folder: Path) -> Run:
        if program == PEER:
            script = Path(__file__).with_name("_peer_stillwarm.py")
            return run(program, task, folder, [self._python, str(script)])
        return run(program, task, folder)

    def _prepare(self, program: str, task: Task, root: Path) -> int:
        folder = root / program
        folder.mkdir()
        self._run(program, replace(task, question=EARLIER_QUESTION), folder)
        kept = folder / "snapshots" if program == US else folder
        return sum(p.stat().st_size for p in kept.rglob("*") if p.is_file())

    def _once(self, program: str, task: Task, kept: Path, folder: Path) -> Run:
        """Run in a copy of what an earlier process left."""
        shutil.copytree(kept, folder)
        try:
            return self._run(program, task, folder)
        finally:
            shutil.rmtree(folder)

    def _runs(self, task: Task, root: Path) -> tuple[dict[str, Run], dict[str, list[Run]]]:
        cold: dict[str, Run] = {}
        warm: dict[str, list[Run]] = {program: [] for program in self._programs}
        for pair in range(self._n_pairs):
            for program in self._programs:
                if not pair:
                    (root / "cold" / program).mkdir(parents=True)
                    cold[program] = self._run(program, task, root / "cold" / program)
                warm[program].append(
                    self._once(program, task, root / program, root / "warm" / program)
                )
        return cold, warm


def main() -> int:
    """Measure both real models."""
    parser = bench_parser(__doc__)
    parser.add_argument("--pairs", type=int, default=3, help="warm runs of each program")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0: the CPU quota")
    parser.add_argument(
        "--peer-python",
        metavar="FILE",
        default=sys.executable,
        help="a Python with stillwarm and xllamacpp",
    )
    arguments = parser.parse_args()
    probe = [arguments.peer_python, "-c", "import stillwarm, xllamacpp"]
    has_peer = not subprocess.run(probe, capture_output=True, check=False).returncode
    n_threads = arguments.threads or available_threads()
    report = Report(f"prefix stores, {n_threads} threads, median of {arguments.pairs} warm runs")
    if not has_peer:
        report.row(PEER, "not installed: pip install stillwarm xllamacpp", "")
    bench = Bench(report, arguments.peer_python if has_peer else "", arguments.pairs)
    for name, memory in MODELS.items():
        model = model_or_exit(name).resolve()
        model.read_bytes()  # so that the page cache is hot from the first run on
        report.row(f"{name}", f"{model.name} ({memory})", "")
        task = Task(str(model), "", system_prompt(N_RULES), QUESTION, n_threads)
        bench.measure(name, task)
    return report.finish(arguments.json)


if __name__ == "__main__":
    sys.exit(main())
