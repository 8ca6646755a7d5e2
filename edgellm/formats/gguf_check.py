"""The one door to a GGUF model nobody vouches for: header, numbers, vocabulary and tensors, checked.

`info`, the engine and a conversion ask here, so that all give the same answer about a file.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from edgellm.errors import ModelCorrupt, ModelUnsupported
from edgellm.formats.gguf import read_header
from edgellm.formats.gguf_families import ARCHITECTURES, KNOWN_ENGINE, MAKES_NO_TEXT
from edgellm.formats.gguf_graphs import check_graph
from edgellm.formats.gguf_keys import CONVERT_AGAIN, Keys
from edgellm.formats.gguf_limits import check_limits
from edgellm.formats.gguf_memory import kv_size
from edgellm.formats.gguf_model import model_info
from edgellm.formats.gguf_tensors import check_tensors, check_types, engine_version
from edgellm.formats.gguf_vocab import check_vocabulary
from edgellm.ggml_types import TYPES_BY_NAME
from edgellm.units import format_bytes

if TYPE_CHECKING:
    from os import PathLike

    from edgellm.core import ModelInfo
    from edgellm.formats.gguf import GgufHeader

MAX_PLAUSIBLE_CTX: Final = 1 << 26  # tokens; the longest context anybody trains for is 10 million
_ABSURD_KV_BYTES: Final = 1 << 40


def checked_model(path: str | PathLike[str]) -> tuple[GgufHeader, ModelInfo]:
    """Read a GGUF file's header and refuse what an engine would fail on or die of.

    Returns:
        The header, and the model with what there is to warn of.

    Raises:
        ModelNotFound: there is no such file.
        ModelCorrupt: its numbers contradict each other or its size; says which and where.
        ModelUnsupported: it is whole, and nothing here can run it.
    """
    header = read_header(path)
    model = model_info(header, path)
    keys = Keys(header, str(path))
    _check_architecture(keys)
    check_limits(keys, model.n_layers)
    _check_kv(header, model)
    warnings = check_vocabulary(keys)
    check_types(header)
    check_graph(header, keys)
    check_tensors(header, keys, model)
    kv_bytes = full_kv_bytes(header, model)
    if model.n_ctx_train > MAX_PLAUSIBLE_CTX or kv_bytes >= _ABSURD_KV_BYTES:
        whole = format_bytes(kv_bytes)
        said = (
            f"the file declares a context of {model.n_ctx_train} tokens, which would take {whole}"
        )
        warnings += (f"{said}: only what is needed is used, --ctx asks for more",)
    return header, dataclasses.replace(model, warnings=warnings)


def full_kv_bytes(header: GgufHeader, model: ModelInfo) -> int:
    """Return what the keys and values of the whole declared context take as f16, 0 if unknown."""
    size = kv_size(header, model)
    return size.context_bytes(model.n_ctx_train, TYPES_BY_NAME["f16"]) if size else 0


def _check_kv(header: GgufHeader, model: ModelInfo) -> None:
    """Refuse keys and values wider than the weights in the file could make, with what they would take.

    A value of a key or of a value is the product of a row of `n_embd` weights, and no type has less
    than a bit for a weight.
    """
    size = kv_size(header, model)
    n_values = sum(keys + values for keys, values in size.rows) if size else 0
    need = n_values * model.n_embd // 8
    kv_bytes = full_kv_bytes(header, model)
    if kv_bytes < _ABSURD_KV_BYTES or need <= model.file_bytes:
        return
    raise ModelCorrupt(
        f"the {model.n_ctx_train} tokens of context it declares would take {format_bytes(kv_bytes)} "
        f"of keys and values: {n_values} numbers a token, whose weights need at least "
        f"{format_bytes(need)}, the file has {format_bytes(model.file_bytes)}",
        path=model.path,
        hint=CONVERT_AGAIN,
    )


def _check_architecture(keys: Keys) -> None:
    name = keys.architecture
    if name in MAKES_NO_TEXT:
        raise ModelUnsupported(
            f"architecture {name!r} makes no text by itself",
            path=keys.path,
            hint="get a decoder model, such as one for chat",
        )
    if name not in ARCHITECTURES and engine_version() in ("", KNOWN_ENGINE):
        raise ModelUnsupported(
            f"architecture {name!r} is not known to llama.cpp {KNOWN_ENGINE}",
            path=keys.path,
            hint="a newer llama-cpp-python may know it",
        )
