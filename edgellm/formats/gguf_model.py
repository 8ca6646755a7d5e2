"""What a GGUF header says about the model: sizes, names, and the kind of memory it will need.

The numbers are checked against each other here, so that nobody later loops over a billion layers
or divides by no heads.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from edgellm.core import ModelInfo
from edgellm.errors import ModelUnsupported
from edgellm.formats.gguf_keys import Keys

if TYPE_CHECKING:
    from os import PathLike

    from edgellm.formats.gguf import GgufHeader

MAX_LAYERS: Final = 512  # LLAMA_MAX_LAYERS, llama-hparams.h
_RECURRENT_KEYS: Final = ("ssm.", "wkv.", "shortconv.", "kda.", "token_shift_count")


def model_info(header: GgufHeader, path: str | PathLike[str]) -> ModelInfo:
    """Describe the model in a GGUF file.

    Raises:
        ModelCorrupt: a key is missing, of the wrong type, or contradicts the tensor table.
        ModelUnsupported: the file is one part of several, or an adapter.
    """
    keys = Keys(header, str(path))
    _refuse_other_kinds(keys)
    n_layers = keys.count("block_count", low=1)
    if n_layers > MAX_LAYERS:
        raise keys.corrupt("block_count", f"{n_layers} layers, at most {MAX_LAYERS} are run")
    n_heads = keys.count("attention.head_count", low=0, default=0)
    n_kv_heads = keys.count("attention.head_count_kv", low=0, default=n_heads)
    memory = memory_kind(header, keys.architecture)
    if not n_heads and memory != "recurrent":
        raise keys.corrupt("attention.head_count", "the model has no attention heads")
    weights: dict[str, int] = {}
    for tensor in header.tensors:
        n = math.prod(tensor.shape)
        weights[tensor.type.name] = weights.get(tensor.type.name, 0) + n
    name = header.metadata.get("general.name")
    key = "tokenizer.chat_template"  # of several named ones it is the default
    template = header.metadata.get(key, header.metadata.get(f"{key}.default"))
    return ModelInfo(
        path=str(path),
        architecture=keys.architecture,
        name=name if isinstance(name, str) and name else Path(path).stem,
        file_bytes=header.file_bytes,
        n_params=sum(weights.values()),
        n_layers=n_layers,
        n_ctx_train=keys.count("context_length", low=1),
        n_vocab=_vocabulary(header, keys),
        n_embd=keys.count("embedding_length", low=1),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        weight_types=weights,
        chat_template=template if isinstance(template, str) else None,
        memory=memory,
    )


def memory_kind(header: GgufHeader, architecture: str) -> str:
    """Return the kind of sequence memory that the metadata announces.

    One of `dense`, `window` (sliding-window layers), `mla` (keys only, compressed), `indexer`
    (sparse attention with its own key cache), `recurrent`, or `hybrid` (attention and recurrent).
    The engine has the last word: some announce a window that it does not use.
    """
    prefix = f"{architecture}."
    names = [key.removeprefix(prefix) for key in header.metadata if key.startswith(prefix)]

    def positive(name: str) -> bool:
        value = header.metadata.get(prefix + name, 0)
        if isinstance(value, np.ndarray):
            return bool((value > 0).any())
        return isinstance(value, (int, float)) and value > 0

    if any(name.startswith(_RECURRENT_KEYS) for name in names):
        return "hybrid" if positive("attention.head_count") else "recurrent"
    if any(name.startswith("attention.indexer.") for name in names):
        return "indexer"
    if positive("attention.sliding_window"):
        return "window"
    return "mla" if positive("attention.kv_lora_rank") else "dense"


def _refuse_other_kinds(keys: Keys) -> None:
    kind = keys.metadata.get("general.type", "model")
    if not isinstance(kind, str) or kind != "model":
        raise ModelUnsupported(
            f"the file is of type {str(kind)[:40]!r}, not a model", path=keys.path
        )
    parts = keys.metadata.get("split.count", 1)
    if isinstance(parts, int) and parts > 1:
        raise ModelUnsupported(
            f"the file is one of {parts} parts of a model",
            path=keys.path,
            hint="join them with `llama-gguf-split --merge`",
        )


def _vocabulary(header: GgufHeader, keys: Keys) -> int:
    """Return the number of tokens: of the tokenizer, or of the embedding without one."""
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if tokens is not None and not isinstance(tokens, (bool, int, float, str)):
        return len(tokens)
    for tensor in header.tensors:
        if tensor.name == "token_embd.weight":
            return math.prod(tensor.shape[-1:])
    return keys.count("vocab_size", low=1)
