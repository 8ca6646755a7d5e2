"""Proof that a written file tokenizes as its source does, and that the engine runs it.

The work is done by `proof_child.py` in a process of its own. An engine that aborts on the file, or a
pattern that never ends, is then an error here and not the death of the caller; and what ends the
caller ends that process too.
"""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from edgellm.errors import VerifyFailed
from edgellm.hw.memory import available_bytes
from edgellm.runtime.tether import tether
from edgellm.units import format_bytes

if TYPE_CHECKING:
    from pathlib import Path

N_STRINGS: Final = 600
DECODING: Final = "decoding one token"  # the child's last stage, the one that loads the weights
# The child maps the file and repacks nothing: its pages are all that the weights take, and the kernel
# may drop them. The rest is for the decoding, and for what others take while the file is read.
DECODE_ROOM: Final = 1.3
_CHILD_BYTES: Final = 70_000_000
_HEAD_FACTOR: Final = 20  # vocabularies of the engine, of the source's library, and ours
_TIME_LIMIT_S: Final = 120.0
_BYTES_PER_S: Final = 20 << 20  # a slow disk: the whole file is read to decode one token
_SHOWN_CHARS: Final = 300
_CHILDS_GRACE_S: Final = 10.0  # its own limit is for an orphan: a parent has the better message
# The parent's own search path: `-m` would put the working directory, a stranger's, before it.
_TIE: Final = (
    "import sys; sys.path[:] = sys.argv[1].split('\\n'); "
    "from edgellm.runtime.tether import tie; tie(float(sys.argv[3])); "
)
_START: Final = f"{_TIE}from edgellm.runtime.proof_child import main; sys.exit(main(sys.argv[2]))"


@dataclass(frozen=True, slots=True)
class Proof:
    """What was held against the source.

    Attributes:
        strings: texts that gave the same ids in both tokenizers; one that does not is an error.
        conversations: rendered to the same text by both chat templates.
        decoded: whether the engine loaded the whole file and decoded a token.
        skipped: why nothing was proven, or "".
        warnings: what the user should know, one sentence each.
    """

    strings: int = 0
    conversations: int = 0
    decoded: bool = False
    skipped: str = ""
    warnings: tuple[str, ...] = ()


def is_possible() -> bool:
    """Say whether the engine is installed that a file is held against."""
    return importlib.util.find_spec("llama_cpp") is not None


def peak_memory_bytes(head_bytes: int, file_bytes: int) -> int:
    """Estimate the peak resident memory of the process that proves a file.

    The file's pages are mapped, and the system may take them back. Fitted to SmolLM2 (a checkpoint
    and a GGUF, q4_0 to f32) and gemma-3-270m: 3 % too low to 12 % too high there.

    Args:
        head_bytes: what stands before the weights.
        file_bytes: of the whole file.
    """
    weights_bytes = file_bytes if _room_problem(file_bytes) == "" else 0
    return _CHILD_BYTES + _HEAD_FACTOR * head_bytes + weights_bytes


def prove(
    gguf: Path,
    source: Path,
    *,
    n_strings: int = N_STRINGS,
    seed: int = 0,
    time_limit_s: float | None = None,
) -> Proof:
    """Hold a written GGUF against the checkpoint folder, or the GGUF, that it was made from.

    Where memory is short, or its lack ends the process, a warning says that no token was decoded:
    that is no fault of the file.

    Args:
        gguf: the file; only read.
        source: the checkpoint folder or file; only read.
        n_strings: texts to compare, those around added tokens not counted.
        seed: another one gives other texts.
        time_limit_s: for everything; None allows for the size of the file.

    Raises:
        VerifyFailed: tokens or templates differ, the engine fails or dies, or time is up.
    """
    if not is_possible():
        return _skipped("the llama.cpp engine is not installed")
    file_bytes = gguf.stat().st_size
    problem = _room_problem(file_bytes)
    task = {"gguf": str(gguf), "source": str(source), "n": n_strings, "seed": seed}
    task["decode"] = not problem
    try:
        done = _run(task, time_limit_s or _TIME_LIMIT_S + file_bytes / _BYTES_PER_S)
    except OSError as err:
        return _skipped(f"no process for it could be started: {err.strerror or err}")
    found = _outcome(done, gguf)
    if "skipped" in found:
        return _skipped(str(found["skipped"]))
    warnings = tuple(map(str, found["warnings"]))
    return Proof(
        strings=int(found["strings"]),
        conversations=int(found["conversations"]),
        decoded=bool(found["decoded"]),
        warnings=(*warnings, not_decoded(problem)) if problem else warnings,
    )


def not_decoded(why: str) -> str:
    """Return the warning that the tokenizer is proven, and the weights are not."""
    return f"not proven that the engine runs the file: {why}"


def _room_problem(file_bytes: int) -> str:
    """Return why a file of this size had better not be loaded now, or ""."""
    need, have = int(DECODE_ROOM * file_bytes), available_bytes()
    if need <= have:
        return ""
    return f"{format_bytes(need)} of memory should be free for it, {format_bytes(have)} are"


def _run(task: dict[str, Any], limit_s: float) -> subprocess.CompletedProcess[bytes]:
    childs_s = str(limit_s + _CHILDS_GRACE_S)
    command = [sys.executable, "-c", _START, "\n".join(sys.path), json.dumps(task), childs_s]
    try:
        with tether() as end:
            return subprocess.run(
                command, stdin=end, capture_output=True, timeout=limit_s, check=False
            )
    except subprocess.TimeoutExpired as err:
        stage = _lines(err.stdout)[-1].get("stage", "starting")
        message = f"{stage} did not end within {limit_s:.0f} s"
        raise VerifyFailed(message, path=task["gguf"]) from err


def _outcome(done: subprocess.CompletedProcess[bytes], gguf: Path) -> dict[str, Any]:
    """Return what the child found: the counts, or why it proved nothing.

    Raises:
        VerifyFailed: it found a difference, or ended before it was done.
    """
    found = _lines(done.stdout)[-1]
    if done.returncode != 0 or "stage" in found:
        stage = found.get("stage", "starting")
        if stage != DECODING or not _lacked_memory(done):
            raise VerifyFailed(f"{stage}: {_death(done)}", path=gguf)
        # All that comes before the weights was compared by then, and this line has the counts.
        why = f"{_death(done)}, as processes do that take the last of the memory"
        return {**found, "warnings": [*found["warnings"], not_decoded(why)]}
    if "failed" in found:
        raise VerifyFailed(str(found["failed"]), path=gguf)
    return found


def _lacked_memory(done: subprocess.CompletedProcess[bytes]) -> bool:
    """Tell the kernel's kill and a refused allocation from an engine that fails on the file."""
    from edgellm.engines.llamacpp.facts import is_memory_error

    said = done.stderr.decode("utf-8", "replace")
    was_killed = done.returncode == -getattr(signal, "SIGKILL", 0) != 0
    return was_killed or is_memory_error(said) or "MemoryError" in said


def _skipped(why: str) -> Proof:
    return Proof(skipped=why, warnings=(f"tokenizer not proven: {why}",))


def _lines(output: bytes | None) -> list[dict[str, Any]]:
    """Return what the child said; an object at least, whatever a dying library left there."""
    found: list[dict[str, Any]] = [{}]
    for line in (output or b"").splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def _death(done: subprocess.CompletedProcess[bytes]) -> str:
    """Return how the child ended, with the last line of what it said about it."""
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    last = f": {said[-1][:_SHOWN_CHARS]}" if said else ""
    if done.returncode >= 0:
        return f"the process ended with {done.returncode}{last}"
    try:
        name = signal.Signals(-done.returncode).name
    except ValueError:
        name = f"signal {-done.returncode}"
    return f"the engine died of {name}{last}"
