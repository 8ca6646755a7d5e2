"""The one door to a GGUF model nobody vouches for: header, numbers, vocabulary and tensors, checked.

`info`, the engine and a conversion ask here, so that all give the same answer about a file.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from edgellm.errors import ModelCorrupt, ModelUnsupported
from edgellm.formats.gguf import read_header
from edgellm.formats.gguf_families import ARCHITECTURES, KNOWN_ENGINE, MAKES_NO_TEXT
from edgellm.formats.gguf_keys import Keys
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
    warnings = check_vocabulary(keys)
    check_types(header)
    try:
        check_tensors(header, keys, model)
    except ModelCorrupt as err:
        kv_bytes = full_kv_bytes(header, model)
        if kv_bytes < _ABSURD_KV_BYTES:
            raise
        wide = f"its {model.n_ctx_train} tokens of context would take {format_bytes(kv_bytes)}"
        raise ModelCorrupt(f"{err.message}; {wide}", path=err.path, hint=err.hint) from err
    if model.n_ctx_train > MAX_PLAUSIBLE_CTX:
        whole = format_bytes(full_kv_bytes(header, model))
        said = (
            f"the file declares a context of {model.n_ctx_train} tokens, which would take {whole}"
        )
        warnings += (f"{said}: only what is needed is used, --ctx asks for more",)
    return header, dataclasses.replace(model, warnings=warnings)


def full_kv_bytes(header: GgufHeader, model: ModelInfo) -> int:
    """Return what the keys and values of the whole declared context take as f16, 0 if unknown."""
    size = kv_size(header, model)
    return size.context_bytes(model.n_ctx_train, TYPES_BY_NAME["f16"]) if size else 0


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
