"""What the engine says of its tokens, in few calls: a vocabulary has 10^5 of them, and no list to hand out.

Only the engine knows: it makes control tokens and ends of turns of its own, by their text. Every answer
here is one of its answers.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

UNKNOWN: Final = 1 << 0  # llama_token_attr, llama.h
CONTROL: Final = 1 << 3
_MARKED: Final = UNKNOWN | CONTROL
_SPELLED_KINDS: Final = (1, 2, 3, 4)  # LLAMA_VOCAB_TYPE_SPM, _BPE, _WPM, _UGM
_BATCH_TOKENS: Final = 512
_ROLE_ENDS_WITH: Final = b"_token_id"
_VALUE_BYTES: Final = 256


def marked_tokens(lib: Any, vocab: Any, n_tokens: int) -> dict[int, int]:
    """Return the attributes of all control and unknown tokens, by id.

    Nearly every token is neither. As text these two are left out, or written as they are spelled, as
    the caller likes; no other token depends on that. So a batch that is as long both ways has none,
    and only the others are asked token by token; all are, in kinds of vocabularies that can spell a
    token with no byte.

    Source: `llama_vocab::impl::token_to_piece` and `detokenize`, llama-vocab.cpp, llama.cpp 0c1e57098.
    """
    # The first of a batch may lose a blank: the token before stands there, and before 0 another 0.
    ids = np.arange(-1, n_tokens, dtype=np.int32).clip(0)
    is_spelled = int(lib.llama_vocab_type(vocab)) in _SPELLED_KINDS

    def n_bytes(at: int, n: int, *, special: bool) -> int:
        batch = (ctypes.c_int32 * (n + 1)).from_buffer(ids.data, at * ids.itemsize)
        # Without room for the text the answer is the negative of its length.
        return int(lib.llama_detokenize(vocab, batch, n + 1, b"", 0, False, special))

    found: dict[int, int] = {}
    for at in range(0, n_tokens, _BATCH_TOKENS):
        n = min(_BATCH_TOKENS, n_tokens - at)
        if is_spelled and n_bytes(at, n, special=True) == n_bytes(at, n, special=False):
            continue
        said = ((i, int(lib.llama_vocab_get_attr(vocab, i))) for i in range(at, at + n))
        found.update((i, attributes) for i, attributes in said if attributes & _MARKED)
    return found


def end_tokens(
    lib: Any, vocab: Any, model: Any, marked: Collection[int], n_tokens: int
) -> set[int]:
    """Return the ids at which the engine ends a turn.

    An end is a control token, which the engine makes of each one that it knows by its text, or has a
    role: from the file, or as the `eos` that the engine takes where the file names none. So only
    these are asked; `marked` has at least all control tokens.

    Source: `llama_vocab::impl::load`, llama-vocab.cpp, llama.cpp 0c1e57098.
    """
    asked = {*marked, int(lib.llama_vocab_eos(vocab)), *_ids_with_roles(lib, model)}
    return {i for i in asked if 0 <= i < n_tokens and lib.llama_vocab_is_eog(vocab, i)}


def _ids_with_roles(lib: Any, model: Any) -> Iterator[int]:
    """Give the ids that a file's metadata name, whatever for."""
    buffer = ctypes.create_string_buffer(_VALUE_BYTES)
    for i in range(lib.llama_model_meta_count(model)):
        lib.llama_model_meta_key_by_index(model, i, buffer, len(buffer))
        if buffer.value.endswith(_ROLE_ENDS_WITH):
            lib.llama_model_meta_val_str_by_index(model, i, buffer, len(buffer))
            if buffer.value.isdigit():
                yield int(buffer.value)
