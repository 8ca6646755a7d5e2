"""Whether an engine's libraries can be used here, found out in a process that may die of it.

A library built for a newer CPU ends the process that runs it with an illegal instruction, and says
nothing. So what the build takes for granted is held against the CPU's flags, and then a child loads it.
Run as a program, this module is that child.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from edgellm.hw.builds import build_features, engine_folder
from edgellm.hw.flags import cpu_flags, missing_flags

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LIMIT_S: Final = 60.0
_LAST_WORDS: Final = 400


@dataclass(frozen=True, slots=True)
class EngineProbe:
    """What a child found out about an engine.

    Attributes:
        version: of its package, or "".
        features: what the build takes for granted, as ggml names it; empty where it chooses by itself,
            or was not asked.
        missing: flags of them that this CPU lacks, as Linux names them.
        providers: of ONNX Runtime, in the order in which it would take them.
        failure: why it cannot be used, or "".
    """

    version: str = ""
    features: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    providers: tuple[str, ...] = ()
    failure: str = ""


def probe_llama(flags: frozenset[str] | None = None, folder: Path | None = None) -> EngineProbe:
    """Compare the installed llama.cpp with this CPU, then load it in a child.

    Args:
        flags: of the CPU; None reads them.
        folder: of the libraries; None looks for the installed ones.
    """
    features = build_features(folder or engine_folder())
    missing = missing_flags(features, cpu_flags() if flags is None else flags)
    if missing:
        return EngineProbe(features=features, missing=missing, failure=_lacks(missing))
    told, failure = _ask("llama_cpp")
    return EngineProbe(version=told.get("version", ""), features=features, failure=failure)


def probe_onnx() -> EngineProbe:
    """Load the installed ONNX Runtime in a child, and ask for its providers."""
    told, failure = _ask("onnxruntime")
    providers = tuple(map(str, told.get("providers", ())))
    return EngineProbe(version=told.get("version", ""), providers=providers, failure=failure)


def illegal_instruction(returncode: int) -> str:
    """Return why a process that ran the engine died, if it was an instruction this CPU lacks, or "".

    Args:
        returncode: as Python gives it, negative for a signal.
    """
    if os.name == "nt" or returncode != -signal.SIGILL:
        return ""
    found = probe_llama()
    return found.failure or "the engine used an instruction that this CPU does not have"


def _lacks(missing: Sequence[str]) -> str:
    return f"the engine was built for a CPU with {', '.join(missing)}, which this one lacks"


def _ask(module: str) -> tuple[dict[str, Any], str]:
    """Return what the child found, and why it failed, or ""."""
    from edgellm.runtime.worker.environment import worker_environment

    command = [sys.executable, "-m", __name__, module]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=False,
            env=worker_environment(),
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return {}, f"loading it did not end within {LIMIT_S:g} s"
    except OSError as err:
        return {}, f"no process could be started: {err.strerror}"
    try:
        told = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        return {}, _ending(done.returncode, done.stderr)
    return told, str(told.get("failure", ""))


def _ending(returncode: int, stderr: str) -> str:
    """Return in words how the child ended without an answer."""
    if returncode < 0:
        if returncode == -signal.SIGILL:
            return "loading it ends with an illegal instruction: it was built for another CPU"
        return f"loading it ends with signal {-returncode}"
    words = " ".join(stderr.split())[-_LAST_WORDS:]
    return f"loading it ends with code {returncode}" + (f": {words}" if words else "")


def main(module: str) -> int:
    """Be the child: say what was found as one JSON object on stdout."""
    try:
        found = _imported(module)
    except (ImportError, OSError, RuntimeError, AttributeError) as err:
        found = {"failure": " ".join(str(err).split()) or type(err).__name__}
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


def _imported(module: str) -> dict[str, Any]:
    if module == "llama_cpp":
        import llama_cpp

        return {"version": str(llama_cpp.__version__)}
    import onnxruntime

    providers = list(onnxruntime.get_available_providers())
    return {"version": str(onnxruntime.__version__), "providers": providers}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
