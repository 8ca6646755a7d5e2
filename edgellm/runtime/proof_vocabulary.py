"""Each token of a written file against the source's: its text, its kind, and the bytes it prints.

Kinds are held first: a token that the file calls a control token is left out of the texts compared, so
what may be one is the source's to say, or the engine's by its rule for certain texts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from edgellm.converters.byte_alphabet import alphabet
from edgellm.converters.special import STOPS_BY_TEXT
from edgellm.converters.vocabulary import TokenKind
from edgellm.errors import VerifyFailed
from edgellm.runtime.source_tokens import BLANK

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from edgellm.engines.base import Vocab
    from edgellm.engines.llamacpp.vocabulary import Vocabulary
    from edgellm.runtime.proof_roles import Roles
    from edgellm.runtime.source_tokens import SourceTokens

N_PRINTED: Final = 20_000  # ids of a large vocabulary whose bytes are looked at
_NORMAL: Final = int(TokenKind.NORMAL)
_SILENT: Final = frozenset((int(TokenKind.UNKNOWN), int(TokenKind.UNUSED)))
_BYTES: Final = {f"<0x{i:02X}>": i for i in range(256)}


def compare_kinds(metadata: Mapping[str, Any], source: SourceTokens, roles: Roles) -> None:
    """Hold texts and kinds of all ids against the source.

    Raises:
        VerifyFailed: one differs; names the first.
    """
    texts, kinds = (list(metadata[f"tokenizer.ggml.{key}"]) for key in ("tokens", "token_type"))
    spelled = alphabet()
    for i, (text, kind) in enumerate(zip(texts, kinds, strict=True)):
        meant = source.text(i)
        if kind == _NORMAL and text == meant and _is_plain(i, text, source, roles):
            continue  # nearly all of them
        if kind not in _kinds(i, meant, source, roles):
            raise VerifyFailed(
                f"token {i}, {meant or text!a:.60}, is of kind {_name(kind)} in the file, which "
                "neither the source nor an engine's rule makes it"
            )
        written = {meant, spelled[_BYTES[meant]]} if meant in _BYTES else {meant}
        if meant is not None and text not in written and text != meant.replace(BLANK, " "):
            raise VerifyFailed(f"token {i} is {meant!a:.60} in the source and {text!a:.60} here")


def _is_plain(i: int, text: str, source: SourceTokens, roles: Roles) -> bool:
    is_trained = i not in source.added and i not in source.special
    return is_trained and i not in roles.ends and not (source.has_bytes and text in _BYTES)


def _kinds(i: int, text: str | None, source: SourceTokens, roles: Roles) -> Iterable[int]:
    """Return what a file may call an id."""
    if i in roles.ends:
        return (TokenKind.CONTROL,)
    if text is None:
        return (TokenKind.UNUSED,)
    made: set[int] = set()
    if i in source.special:
        made = {TokenKind.CONTROL}
    elif i in source.added:
        made = {TokenKind.USER_DEFINED}
        # Only an ordinary token's U+2581 is printed as a blank.
        made |= {TokenKind.NORMAL} if BLANK in text and i in source.trained else set()
        made |= {TokenKind.CONTROL} if i in roles.named.values() else set()
    elif source.is_pieces:
        made = {TokenKind.NORMAL, TokenKind.USER_DEFINED}
    else:
        made = {_NORMAL}
    made |= {TokenKind.CONTROL} if text in STOPS_BY_TEXT else set()
    if source.has_bytes and text in _BYTES:
        made = {TokenKind.BYTE, TokenKind.NORMAL}
    return made | {TokenKind.UNKNOWN} if text == source.unknown else made


def _name(kind: int) -> str:
    return TokenKind(kind).name if kind in TokenKind.__members__.values() else str(kind)


def compare_pieces(
    engine: Vocabulary, vocab: Vocab, source: SourceTokens, kinds: list[int]
) -> None:
    """Hold the bytes that the engine prints against the source's texts.

    Raises:
        VerifyFailed: a token prints otherwise; names the first.
    """
    step = max(1, engine.n_tokens // N_PRINTED)
    of_char = {char: byte for byte, char in enumerate(alphabet())}
    for i in {*range(0, engine.n_tokens, step), *source.added}:
        found = engine.piece(i)
        silent = i in vocab.special_ids or kinds[i] in _SILENT
        if found not in ((b"",) if silent else _printed(i, source, of_char, kinds[i])):
            raise VerifyFailed(
                f"token {i}, {source.text(i)!a:.60}, prints {found[:40]!r} from the written file"
            )


def _printed(
    i: int, source: SourceTokens, of_char: Mapping[str, int], kind: int
) -> tuple[bytes, ...]:
    """Return the bytes that an ordinary token may print."""
    text = source.text(i) or ""
    if source.has_bytes and text in _BYTES:
        # A byte that keeps its name in a byte-level vocabulary is never made from text.
        return (bytes([_BYTES[text]]), *((b"",) if kind == TokenKind.BYTE else ()))
    as_it_is = text.encode("utf-8", "surrogatepass")
    if i not in source.added and source.is_byte_level and all(char in of_char for char in text):
        return (bytes(of_char[char] for char in text),)
    return as_it_is, text.replace(BLANK, " ").encode("utf-8", "surrogatepass")


def compare_engines(engine: Vocabulary, source: Vocabulary) -> None:
    """Hold a file against the GGUF it was made from, whose vocabulary it has.

    Raises:
        VerifyFailed: tokens, ends or control tokens differ.
    """
    ours, theirs = engine.describe(), source.describe()
    for name in ("n_tokens", "end_ids", "special_ids", "bos_id", "add_bos", "spellings"):
        if getattr(ours, name) != getattr(theirs, name):
            raise VerifyFailed(f"{name} of the written tokenizer are not the source's")
    for i in range(0, engine.n_tokens, max(1, engine.n_tokens // N_PRINTED)):
        if engine.piece(i) != source.piece(i):
            raise VerifyFailed(
                f"token {i} prints {source.piece(i)[:40]!r} from the source and "
                f"{engine.piece(i)[:40]!r} from the written file"
            )
