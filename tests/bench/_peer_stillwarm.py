"""What `peers.py` times of stillwarm (PyPI), used as its own words show it: a session per document.

Run as `python _peer_stillwarm.py` by a Python that has `stillwarm` and `xllamacpp`, llama.cpp's own
server; a `Task` of `_ttft_programs.py` as JSON on stdin, one `Answer` as JSON is the last line on
stdout. Nothing of edgellm is imported. The time of an answer is the restore, where there is one, and
a completion of one token; the server does not stream here, and loopback HTTP is in all of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

SESSION = "house"


def serve(task: dict[str, Any]) -> tuple[Any, str]:
    """Start llama.cpp's server over the task's model; return it and its address."""
    import xllamacpp

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    params = xllamacpp.CommonParams()
    params.model.path = task["model"]
    params.hostnames, params.port = ["127.0.0.1"], port
    params.n_ctx, params.n_parallel, params.n_gpu_layers = task["n_ctx"], 1, 0
    params.n_batch = params.n_ubatch = task["n_batch"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = task["n_threads"]
    params.slot_save_path = task["folder"] + "/"
    return xllamacpp.Server(params), f"http://127.0.0.1:{port}"


def rendered(url: str, task: dict[str, Any]) -> str:
    """Let the server write the conversation in the model's template."""
    messages = [
        {"role": "system", "content": task["system"]},
        {"role": "user", "content": task["question"]},
    ]
    request = urllib.request.Request(  # noqa: S310  # a server of our own on loopback
        f"{url}/apply-template",
        data=json.dumps({"messages": messages}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:  # noqa: S310
        return str(json.load(answer)["prompt"])


def main() -> None:
    """Answer one question and leave the session on disk."""
    from stillwarm.compat import ServerProfile
    from stillwarm.server import LlamaServer
    from stillwarm.session import RefusedRestore, Session

    task = json.load(sys.stdin)
    server, url = serve(task)
    content = hashlib.sha256(Path(task["model"]).read_bytes()).hexdigest()
    profile = ServerProfile(content, "on", "f16", "f16", swa_full=False, ctx_size=task["n_ctx"])
    api = LlamaServer(url)
    session = Session(api, profile, task["folder"])
    prompt = rendered(url, task)
    is_cold = not Path(task["folder"], f"{SESSION}.bin").exists()
    asked_s, restore_ms = time.monotonic(), 0.0
    if not is_cold:
        with contextlib.suppress(RefusedRestore):
            session.restore(SESSION)
            restore_ms = (time.monotonic() - asked_s) * 1000
    first = api.completion(prompt, 1)
    first_s = time.monotonic()
    text = api.completion(prompt, task["answer_tokens"])["content"]
    if is_cold:
        session.ask(SESSION, prompt, task["answer_tokens"])
    timings = first["timings"]
    answer = {
        "asked_s": asked_s,
        "first_s": first_s,
        "pieces": [text],
        "prompt_tokens": timings["cache_n"] + timings["prompt_n"],
        "reused_tokens": timings["cache_n"],
        "prefix_tokens": 0,
        "restore_ms": restore_ms,
        "decode_ms": timings["prompt_ms"],
    }
    print(json.dumps(answer), flush=True)
    del server


if __name__ == "__main__":
    main()
