"""The vocabulary of a GGUF file, checked against what the engine's tokenizers take for granted.

A missing byte, two equal tokens or a list that is too short is an assertion, an exception through
C, or an endless loop there, and no caller can catch any of them.
Source: `llama_vocab::impl::load` and the tokenizers in llama-vocab.cpp, llama.cpp 0c1e57098. The
rules were seen to end the process, but for three that come from reading these sources alone: the
endless loop of an RWKV vocabulary without a byte, the form of byte tokens, a gemma4 without BOS.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from edgellm.errors import ModelCorrupt, ModelUnsupported
from edgellm.formats.cursor import StringArray
from edgellm.formats.gguf_keys import CONVERT_AGAIN

if TYPE_CHECKING:
    from edgellm.formats.gguf_keys import Keys

_BYTE_TYPE: Final = 6  # LLAMA_TOKEN_TYPE_BYTE
_BYTE_FORM: Final = re.compile(rb"<0x[0-9A-Fa-f]{2}>")
_TEXT_BYTES: Final = (*range(0xC0), *range(0xC2, 0xF5))
"""Every byte that UTF-8 text can hold."""

# Ids of BOS and EOS that the engine takes when the file names none.
_DEFAULT_IDS: Final[dict[str, tuple[int | None, int | None]]] = {
    "llama": (1, 2),
    "gpt2": (11, 11),
    "hybriddna": (11, 11),
    "gemma4": (None, None),
    "rwkv": (None, None),
    "plamo2": (1, 2),
}
_PREFIX: Final = "tokenizer.ggml."


def check_vocabulary(keys: Keys) -> tuple[str, ...]:
    """Refuse a vocabulary that the engine would die of.

    Returns:
        What the user should know of a vocabulary that works.

    Raises:
        ModelCorrupt: a part is missing, of another length, or cannot be what it is said to be.
        ModelUnsupported: a kind of vocabulary that cannot make text here.
    """
    kind = keys.metadata.get(f"{_PREFIX}model")
    if kind is None:
        raise _corrupt(keys, "model", "is missing: the file has no vocabulary")
    if not isinstance(kind, str) or kind not in _DEFAULT_IDS:
        raise ModelUnsupported(
            f"the vocabulary is of kind {str(kind)[:40]!r}, which cannot make text here",
            path=keys.path,
            hint=f"kinds that can: {', '.join(_DEFAULT_IDS)}",
        )
    if keys.metadata.get(f"{_PREFIX}pre") == "whitespace":  # two blanks are an assertion there
        raise ModelUnsupported(
            "the vocabulary splits at white space only, which ends the engine's process",
            path=keys.path,
            hint="get another conversion of the model",
        )
    tokens = keys.metadata.get(f"{_PREFIX}tokens")
    if not isinstance(tokens, StringArray) or not len(tokens):
        raise _corrupt(keys, "tokens", "must be a list of texts")
    words = _words(tokens)
    known = _unique(keys, words)
    _check_lists(keys, len(words))
    _check_bytes(keys, kind, words, known)
    return _check_ids(keys, kind, len(words))


def _corrupt(keys: Keys, name: str, problem: str) -> ModelCorrupt:
    return ModelCorrupt(
        f"metadata '{_PREFIX}{name}': {problem}", path=keys.path, hint=CONVERT_AGAIN
    )


def _words(tokens: StringArray) -> list[bytes]:
    """Return the tokens as the engine's C strings: cut at a zero byte, named when empty."""
    words = tokens.all_raw()
    if all(words) and b"\0" not in b"".join(words):  # as good as always: 10^5 words in a moment
        return words
    cut = [word.partition(b"\0")[0] for word in words]
    return [word or b"[EMPTY_%d]" % i for i, word in enumerate(cut)]


def _unique(keys: Keys, words: list[bytes]) -> set[bytes]:
    """Return the tokens as a set, which is as large as the list."""
    known = set(words)
    if len(known) == len(words):
        return known
    first: dict[bytes, int] = {}
    twin = next(i for i, word in enumerate(words) if first.setdefault(word, i) != i)
    shown = words[twin][:40].decode("utf-8", "replace")
    raise _corrupt(keys, "tokens", f"ids {first[words[twin]]} and {twin} are both {shown!r}")


def _check_lists(keys: Keys, n_tokens: int) -> None:
    for name, kinds in (("scores", "fi"), ("token_type", "i")):
        values = keys.metadata.get(f"{_PREFIX}{name}")
        if values is None:
            continue
        if not isinstance(values, np.ndarray) or values.dtype.kind not in kinds:
            raise _corrupt(keys, name, "must be a list of numbers")
        if values.size != n_tokens:
            raise _corrupt(keys, name, f"{values.size} values for {n_tokens} tokens")


def _check_bytes(keys: Keys, kind: str, words: list[bytes], known: set[bytes]) -> None:
    types = keys.metadata.get(f"{_PREFIX}token_type")
    if isinstance(types, np.ndarray):
        for i in np.flatnonzero(types == _BYTE_TYPE).tolist():
            if not _BYTE_FORM.fullmatch(words[i]):
                shown = words[i][:40].decode("utf-8", "replace")
                raise _corrupt(keys, "token_type", f"id {i} is a byte, its text is {shown!r}")
    if kind == "llama":
        there = {b for b in range(256) if b"<0x%02X>" % b in known or bytes((b,)) in known}
    elif kind == "rwkv":
        there = {word[0] for word in map(_unescaped, words) if len(word) == 1}
    else:
        return
    missing = [b for b in _TEXT_BYTES if b not in there]
    if missing:
        raise _corrupt(
            keys,
            "tokens",
            f"no token for {len(missing)} of {len(_TEXT_BYTES)} bytes, such as "
            f"<0x{missing[0]:02X}>: text with it could not be split",
        )


def _unescaped(word: bytes) -> bytes:
    r"""Return a token of an RWKV vocabulary, where \n, \t, \r and \xHH stand for bytes."""
    if len(word) > 4 or not word.startswith(b"\\"):  # longer than \xHH
        return word
    if re.fullmatch(rb"\\x[0-9a-f]{2}", word):
        return bytes.fromhex(word[2:].decode())
    plain = {b"n": b"\n", b"t": b"\t", b"r": b"\r"}
    return plain.get(word[1:], word[1:])


def _check_ids(keys: Keys, kind: str, n_tokens: int) -> tuple[str, ...]:
    warnings = []
    for name, default in zip(("bos", "eos"), _DEFAULT_IDS[kind], strict=True):
        value = keys.metadata.get(f"{_PREFIX}{name}_token_id")
        token = default if value is None else value
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < n_tokens
        ):
            raise _corrupt(keys, f"{name}_token_id", f"{value} is no id of {n_tokens} tokens")
        always = (name, kind) == ("bos", "gemma4")  # whatever the file says
        wanted = always or keys.metadata.get(f"{_PREFIX}add_{name}_token", name == "bos")
        lost = not isinstance(token, int) or token >= n_tokens
        if lost and wanted and kind != "rwkv":  # that one adds neither
            raise _corrupt(keys, f"add_{name}_token", "is set, but no such token is named")
    if not any(f"{_PREFIX}{name}_token_id" in keys.metadata for name in ("eos", "eot")):
        warnings.append(
            "the file names no end-of-text token: answers may run on to the token limit"
        )
    return tuple(warnings)
