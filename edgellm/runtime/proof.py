"""Proof that a written file tokenizes as its source does, and that the engine runs it.

The work is done by `proof_child.py` in a process of its own. An engine that aborts on the file, or a
pattern that never ends, is then an error here and not the death of the caller.
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

if TYPE_CHECKING:
    from pathlib import Path

N_STRINGS: Final = 600
_TIME_LIMIT_S: Final = 120.0
_BYTES_PER_S: Final = 20 << 20  # a slow disk: the whole file is read to decode one token
_SHOWN_CHARS: Final = 300
# The parent's own search path: `-m` would put the working directory, a stranger's, before it.
_START: Final = (
    "import sys; sys.path[:] = sys.argv[1].split('\\n'); "
    "from edgellm.runtime.proof_child import main; sys.exit(main(sys.argv[2]))"
)


@dataclass(frozen=True, slots=True)
class Proof:
    """What was held against the source.

    Attributes:
        strings: texts that gave the same ids in both tokenizers.
        mismatches: texts that did not; 0, because one is an error.
        conversations: rendered to the same text by both chat templates.
        skipped: why nothing was proven, or "".
        warnings: what the user should know, one sentence each.
    """

    strings: int = 0
    mismatches: int = 0
    conversations: int = 0
    skipped: str = ""
    warnings: tuple[str, ...] = ()


def prove(
    gguf: Path,
    source: Path,
    *,
    n_strings: int = N_STRINGS,
    seed: int = 0,
    time_limit_s: float | None = None,
) -> Proof:
    """Hold a written GGUF against the checkpoint folder, or the GGUF, that it was made from.

    Args:
        gguf: the file; only read.
        source: the checkpoint folder or file; only read.
        n_strings: texts to compare, those around added tokens not counted.
        seed: another one gives other texts.
        time_limit_s: for everything; None allows for the size of the file.

    Raises:
        VerifyFailed: tokens or templates differ, the engine fails or dies, or time is up.
    """
    if importlib.util.find_spec("llama_cpp") is None:
        return _skipped("the llama.cpp engine is not installed")
    task = {"gguf": str(gguf), "source": str(source), "n": n_strings, "seed": seed}
    limit_s = time_limit_s or _TIME_LIMIT_S + gguf.stat().st_size / _BYTES_PER_S
    command = [sys.executable, "-c", _START, "\n".join(sys.path), json.dumps(task)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as err:
        stage = _lines(err.stdout)[-1].get("stage", "starting")
        raise VerifyFailed(f"{stage} did not end within {limit_s:.0f} s", path=gguf) from err
    except OSError as err:
        return _skipped(f"no process for it could be started: {err.strerror or err}")
    lines = _lines(done.stdout)
    found = lines[-1]
    if done.returncode != 0 or "stage" in found:
        stage = found.get("stage", "starting")
        raise VerifyFailed(f"{stage}: {_death(done)}", path=gguf)
    if "failed" in found:
        raise VerifyFailed(str(found["failed"]), path=gguf)
    if "skipped" in found:
        return _skipped(str(found["skipped"]))
    return Proof(
        strings=int(found["strings"]),
        conversations=int(found["conversations"]),
        warnings=tuple(map(str, found["warnings"])),
    )


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
