"""`edgellm info`: what a model file says of itself, or what is installed here. No engine is loaded."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from edgellm import __version__
from edgellm.errors import UsageError
from edgellm.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

EXAMPLES: Final = """
edgellm info model.gguf
edgellm info ./checkpoint
edgellm info model.gguf --json
edgellm info
"""

ENGINES: Final = (
    ("llama_cpp", "llama-cpp-python", "pip install 'llama-cpp-python>=0.3.36,<0.4'"),
    ("onnxruntime", "onnxruntime", "pip install onnx onnxruntime"),
)
"""Module to look for, distribution that has the version, and how to get it."""

_DRY_TYPES: Final = ("f16", "q8_0", "q4_0")
_BYTES_AS: Final = "bytes_as_"
_SHOWN_CHARS: Final = 120


def info(
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="GGUF file or checkpoint folder.")
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Describe a model from its header; without FILE, what is installed here."""
    from edgellm.cli import render

    if file is None:
        facts = machine_facts()
    elif not file:  # as a path it would be the current folder
        raise UsageError("the name is empty", hint="name a GGUF file or a checkpoint folder")
    else:
        path = Path(file)
        facts = checkpoint_facts(path) if path.is_dir() else model_facts(path)
    if as_json:
        render.json_line({"type": "info", **facts})
    else:
        render.facts([_shown(key, value) for key, value in facts.items()])


def model_facts(path: Path) -> dict[str, Any]:
    """Return what a GGUF header says.

    Raises:
        ModelError: the file is not there, not a GGUF, contradicts itself, or cannot be run here.
    """
    from edgellm.converters.requantize import GENERATION
    from edgellm.formats.gguf_check import checked_model, full_kv_bytes

    header, found = checked_model(path)
    weight_bytes = sum(tensor.n_bytes for tensor in header.tensors)
    generation = header.metadata.get(GENERATION)
    is_known = isinstance(generation, int) and not isinstance(generation, bool)
    return {
        "file": str(path),
        "name": found.name,
        "architecture": found.architecture,
        "parameters": found.n_params,
        "layers": found.n_layers,
        "context_tokens": found.n_ctx_train,
        "vocabulary_tokens": found.n_vocab,
        "embedding": found.n_embd,
        "heads": {"query": found.n_heads, "key_value": found.n_kv_heads},
        "weights": dict(found.weight_types),
        "bits_per_weight": round(8 * weight_bytes / found.n_params, 2) if found.n_params else 0.0,
        **({"generation": generation} if is_known else {}),
        "memory": found.memory,
        "bytes_of_whole_context": full_kv_bytes(header, found) or None,
        "chat_template": found.chat_template is not None,
        "template": found.chat_template,
        "file_bytes": found.file_bytes,
        "warnings": list(found.warnings),
    }


def checkpoint_facts(path: Path) -> dict[str, Any]:
    """Return what a checkpoint folder would become, by planning its conversion.

    Raises:
        EdgeLLMError: it cannot be converted; says why.
    """
    from edgellm.runtime import conversion

    out = path.parent / f"{path.resolve().name}.gguf"
    plans = [
        conversion.plan(conversion.ConvertOptions(src=path, out=out, type=name, overwrite=True))
        for name in _DRY_TYPES
    ]
    return {
        "folder": str(path),
        "architecture": plans[0].architecture,
        "parameters": plans[0].n_params,
        "tensors": len(plans[0].tensors),
        **{f"{_BYTES_AS}{plan.type}": plan.out_bytes for plan in plans},
        "warnings": list(plans[0].warnings),
    }


def machine_facts() -> dict[str, Any]:
    """Return versions, engines, the kernel row, the CPU share and the home folder.

    Raises:
        UsageError: an environment variable has a value that cannot be used.
    """
    from edgellm import kernels, paths
    from edgellm.hw.cpu import cpu_share

    engines = {name: _engine(module, name, get) for module, name, get in ENGINES}
    return {
        "edgellm": __version__,
        "python": f"{platform.python_version()} ({platform.machine()}, {platform.system()})",
        **engines,
        "kernels": kernels.isa(),
        "threads": dataclasses.asdict(cpu_share()),
        "home": str(paths.home_dir()),
    }


def version_of(distribution: str) -> str:
    """Return the version of an installed distribution, or `unknown`."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _engine(module: str, distribution: str, get: str) -> str:
    if importlib.util.find_spec(module) is None:  # looks, imports nothing
        return f"not installed; {get}"
    return version_of(distribution)


def _heads_text(heads: Mapping[str, int]) -> str:
    query, shared = heads["query"], heads["key_value"]
    kind = f"GQA, {query / shared:g} queries a key" if 0 < shared < query else "no GQA"
    return f"{query} query, {shared} key-value ({kind})"


def _threads_text(share: Mapping[str, float | None]) -> str:
    quota = share["quota_cpus"]
    limit = "no quota" if quota is None else f"quota {quota:g}"
    return f"{share['n_threads']} ({share['n_cpus']} CPUs, {limit})"


def _weights_text(weights: Mapping[str, int]) -> str:
    from edgellm.ggml_types import TYPES_BY_NAME

    total = sum(weights.values()) or 1
    parts = []
    for name, n in sorted(weights.items(), key=lambda item: -item[1]):
        kind = TYPES_BY_NAME[name]
        bits = 8 * kind.block_bytes / kind.block_size
        parts.append(f"{name} {100 * n / total:.1f} % at {bits:.2f} bits")
    return ", ".join(parts)


def _generation_text(n: int) -> str:
    times = {1: "once", 2: "twice"}.get(n, f"{n} times")
    return f"{n}: weights went through quantisation {times}"


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN_CHARS else f"{line[:_SHOWN_CHARS]}..."


def _yes_no(value: bool) -> str:
    return "yes" if value else "no"


_FORMAT: Final[Mapping[str, Callable[[Any], str]]] = {
    "parameters": "{:,}".format,
    "heads": _heads_text,
    "weights": _weights_text,
    "threads": _threads_text,
    "bits_per_weight": "{:.2f}".format,
    "generation": _generation_text,
    "bytes_of_whole_context": lambda n: format_bytes(n) if n else "not known from the header",
    "chat_template": _yes_no,
    "template": lambda text: _one_line(text) if text else "none",
    "file_bytes": format_bytes,
    "warnings": lambda texts: "; ".join(texts) or "none",
    **{f"{_BYTES_AS}{name}": format_bytes for name in _DRY_TYPES},
}


def _shown(key: str, value: object) -> tuple[str, str]:
    if key.startswith(_BYTES_AS):
        label = f"size as {key.removeprefix(_BYTES_AS)}"
    else:
        label = key.removesuffix("_tokens").replace("file_bytes", "size").replace("_", " ")
    return label, _FORMAT.get(key, str)(value)
