"""llama.cpp's own HTTP server over one model: its address is one JSON line; it ends with its stdin.

Run as `python llama_server.py MODEL.gguf KEY` by a Python that has `xllamacpp`.
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    """Serve until nobody holds stdin any more."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = sys.argv[1]
    params.api_keys = [sys.argv[2]]
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.model_alias = {"smollm2"}
    params.n_ctx, params.n_parallel, params.n_gpu_layers = 2048, 1, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1  # something else computes
    server = xllamacpp.Server(params)
    print(json.dumps({"url": server.listening_address}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
