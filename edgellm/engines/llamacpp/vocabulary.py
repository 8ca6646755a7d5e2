"""The model's vocabulary as llama.cpp reads it: pieces, control tokens, end-of-turn ids, splitting."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from edgellm.engines.base import Vocab
from edgellm.errors import EngineFailed

if TYPE_CHECKING:
    from edgellm.engines.llamacpp.library import Library

_NO_TOKEN = -1
_PIECE_BYTES = 64
_UNKNOWN, _CONTROL = 1 << 0, 1 << 3  # llama_token_attr, llama.h


class Vocabulary:
    """Reads one model's vocabulary; valid as long as the model is loaded."""

    def __init__(self, library: Library, model: Any) -> None:
        self._lib = library.lib
        self._vocab = self._lib.llama_model_get_vocab(model)
        self.n_tokens = int(self._lib.llama_vocab_n_tokens(self._vocab))
        self._pieces: dict[int, bytes] = {}
        self._described: Vocab | None = None  # a walk over all tokens, asked for with every answer

    def describe(self) -> Vocab:
        """Return what the decode loop and the prompt room need; the pieces are read on demand."""
        if self._described is None:
            self._described = self._describe()
        return self._described

    def _describe(self) -> Vocab:
        lib, vocab = self._lib, self._vocab
        ids = range(self.n_tokens)
        bos, eos = int(lib.llama_vocab_bos(vocab)), int(lib.llama_vocab_eos(vocab))
        attributes = [int(lib.llama_vocab_get_attr(vocab, i)) for i in ids]
        spelled = (i for i in ids if attributes[i] & (_UNKNOWN | _CONTROL))
        return Vocab(
            n_tokens=self.n_tokens,
            piece=self.piece,
            end_ids=frozenset(i for i in ids if lib.llama_vocab_is_eog(vocab, i)),
            special_ids=frozenset(i for i in ids if attributes[i] & _CONTROL),
            bos_id=None if bos == _NO_TOKEN else bos,
            add_bos=bool(lib.llama_vocab_get_add_bos(vocab)),
            bos_text=self._text(bos),
            eos_text=self._text(eos),
            spellings=frozenset(filter(None, map(self._spelling, spelled))),
        )

    def _text(self, token: int) -> str:
        if token == _NO_TOKEN:
            return ""
        return str(self._lib.llama_vocab_get_text(self._vocab, token).decode("utf-8", "replace"))

    def _spelling(self, token: int) -> str:
        """Return how a token is written, "" for bytes that no text can hold."""
        try:
            return str(self._lib.llama_vocab_get_text(self._vocab, token).decode("utf-8"))
        except UnicodeDecodeError:
            return ""

    def piece(self, token: int) -> bytes:
        """Return the bytes of a token; control tokens have none."""
        known = self._pieces.get(token)
        if known is None:
            if not 0 <= token < self.n_tokens:
                raise ValueError(f"token {token} is outside the vocabulary of {self.n_tokens}")
            known = self._pieces[token] = self._read_piece(token)
        return known

    def _read_piece(self, token: int) -> bytes:
        buffer = ctypes.create_string_buffer(_PIECE_BYTES)
        n = self._lib.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, False)
        if n < 0:  # the negative of the bytes needed
            buffer = ctypes.create_string_buffer(-n)
            n = self._lib.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, False)
        return buffer.raw[: max(n, 0)]

    def tokenize(self, text: str, *, special: bool, add_bos: bool) -> list[int]:
        """Split text into token ids; lone surrogates become the replacement character."""
        data = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace").encode("utf-8")
        room = len(data) + 8
        while True:
            buffer = (ctypes.c_int32 * room)()
            n = self._lib.llama_tokenize(
                self._vocab, data, len(data), buffer, room, add_bos, special
            )
            if n >= 0:
                return list(buffer[:n])
            if -n <= room:
                raise EngineFailed(f"the tokenizer failed on a text of {len(data)} bytes")
            room = -n
