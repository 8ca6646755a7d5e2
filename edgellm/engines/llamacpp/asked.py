"""What the engine says of its tokens, in few calls: a vocabulary has 10^5 of them, and no list to hand out.

Only the engine knows: it makes control tokens and ends of turns of its own, by their text. Every answer
here is one of its answers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

UNKNOWN: Final = 1 << 0  # llama_token_attr, llama.h
CONTROL: Final = 1 << 3
_MARKED: Final = UNKNOWN | CONTROL
_SPELLED_KINDS: Final = (1, 2, 3, 4)  # LLAMA_VOCAB_TYPE_SPM, _BPE, _WPM, _UGM
_BATCH_TOKENS: Final = 512


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


class EndIds(AbstractSet[int]):
    """The ids that end a turn; the engine is asked for one when it is looked for, for all to count them.

    Args:
        ask: whether the engine ends at an id.
        n_tokens: size of the vocabulary.
        but: ids that are none, whatever the engine says.
    """

    def __init__(self, ask: Callable[[int], bool], n_tokens: int, but: frozenset[int]) -> None:
        self._ask = ask
        self._n_tokens = n_tokens
        self._but = but

    @classmethod
    def _from_iterable(cls, it: Iterable[Any]) -> frozenset[Any]:
        return frozenset(it)

    def __contains__(self, token: object) -> bool:
        """Return whether an id ends a turn."""
        if not isinstance(token, int | np.integer) or not 0 <= token < self._n_tokens:
            return False
        return token not in self._but and self._ask(int(token))

    def __iter__(self) -> Iterator[int]:
        """Give all of them, in order."""
        return (token for token in range(self._n_tokens) if token in self)

    def __len__(self) -> int:
        """Return how many there are."""
        return sum(1 for _ in self)
