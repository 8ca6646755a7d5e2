"""The model's vocabulary as llama.cpp reads it: pieces, control tokens, end-of-turn ids, splitting."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from edgellm.engines.base import Vocab
from edgellm.engines.llamacpp.asked import CONTROL, end_tokens, marked_tokens
from edgellm.engines.llamacpp.splitting import tokenize_safely
from edgellm.errors import EngineFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgellm.engines.llamacpp.library import Library

_NO_TOKEN = -1
_PIECE_BYTES = 64
_BPE = 2  # LLAMA_VOCAB_TYPE_BPE: the one kind that splits text by regexes
_VALUE_BYTES = 256


class Vocabulary:
    """Reads one model's vocabulary; valid as long as the model is loaded."""

    def __init__(self, library: Library, model: Any) -> None:
        self._lib = library.lib
        self._model = model
        self._vocab = self._lib.llama_model_get_vocab(model)
        self._is_bpe = int(self._lib.llama_vocab_type(self._vocab)) == _BPE
        self._splitter = self._value("tokenizer.ggml.pre") if self._is_bpe else ""
        self.n_tokens = int(self._lib.llama_vocab_n_tokens(self._vocab))
        self._pieces: dict[int, bytes] = {}
        self._bos = self._named("bos", self._lib.llama_vocab_bos)
        self._eos = self._named("eos", self._lib.llama_vocab_eos)
        self._described: Vocab | None = None  # asked for with every answer

    def describe(self) -> Vocab:
        """Return what the decode loop and the prompt room need; the pieces are read on demand."""
        if self._described is None:
            self._described = self._describe()
        return self._described

    def _describe(self) -> Vocab:
        marked = marked_tokens(self._lib, self._vocab, self.n_tokens)
        ends = end_tokens(self._lib, self._vocab, self._model, marked, self.n_tokens)
        return Vocab(
            n_tokens=self.n_tokens,
            piece=self.piece,
            end_ids=frozenset(ends) - self._guessed(),
            special_ids=frozenset(i for i, attributes in marked.items() if attributes & CONTROL),
            bos_id=None if self._bos == _NO_TOKEN else self._bos,
            add_bos=self._adds_bos(),
            bos_text=self._text(self._bos),
            eos_text=self._text(self._eos),
            spellings=frozenset(filter(None, map(self._spelling, marked))),
        )

    def _named(self, role: str, ask: Callable[[Any], int]) -> int:
        """Return the token of a role, or `_NO_TOKEN`.

        For a file that names none the library takes a fixed id, 11 in byte-level BPE, whatever
        that is: a comma. It is believed where it is a control token, as in SentencePiece models.
        """
        token = int(ask(self._vocab))
        if token == _NO_TOKEN or self._value(f"tokenizer.ggml.{role}_token_id"):
            return token
        if token >= self.n_tokens:
            return _NO_TOKEN
        is_control = int(self._lib.llama_vocab_get_attr(self._vocab, token)) & CONTROL
        return token if is_control else _NO_TOKEN

    def _guessed(self) -> frozenset[int]:
        """Return the end token that only the library believes in, if there is one."""
        token = int(self._lib.llama_vocab_eos(self._vocab))
        ends = (self._value(f"tokenizer.ggml.{role}_token_id") for role in ("eot", "eom"))
        return frozenset() if token == self._eos or str(token) in ends else frozenset((token,))

    def _adds_bos(self) -> bool:
        return self._bos != _NO_TOKEN and bool(self._lib.llama_vocab_get_add_bos(self._vocab))

    def _value(self, key: str) -> str:
        """Return a value of the file's metadata as text, "" without it."""
        buffer = ctypes.create_string_buffer(_VALUE_BYTES)
        n = self._lib.llama_model_meta_val_str(self._model, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") if n >= 0 else ""

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
        """Split text into token ids; lone surrogates become the replacement character.

        Raises:
            PromptTooLong: a run without a cut is longer than the library can be trusted with.
            DoesNotFit: there is no memory for the stack that a long run needs.
            EngineFailed: the library failed.
        """
        seen = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
        data = seen.encode("utf-8")
        with_bos = add_bos and (self._bos != _NO_TOKEN or not self._is_bpe)

        def call() -> list[int]:
            return self._tokenize(data, special=special, add_bos=with_bos)

        return tokenize_safely(self._splitter, seen, call) if self._is_bpe else call()

    def _tokenize(self, data: bytes, *, special: bool, add_bos: bool) -> list[int]:
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
