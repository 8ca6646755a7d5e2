"""BPE over characters with byte fallback (SentencePiece, as tokenizer.json spells it) for an engine.

Hugging Face joins the pair whose merge has the lowest rank. llama.cpp's `llama` vocabularies join any two
neighbours whose text together is a token, the best score first. The two agree where every such join
has a merge and the merges of one token stand together; its score is then their place. Where they do
not, a `gpt2` vocabulary joins by rank too, if no blank goes before a text. What neither does is refused.
Source: `llm_tokenizer_spm_session`, `llm_tokenizer_bpe_session`, llama-vocab.cpp 0c1e57098.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from edgellm.errors import ConvertError

from .added_tokens import odd_ones
from .blanks import BLANK, blanks_of
from .byte_alphabet import SPLITTER, as_bytes
from .vocabulary import TokenKind, Vocabulary, free_ids, index, lay_out

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from .added_tokens import AddedToken
    from .blanks import Blanks
    from .bpe import Bpe

    Pair = tuple[str, str]

BYTE_TOKENS: Final = tuple(f"<0x{i:02X}>" for i in range(256))
# Splits at newlines and nowhere else, and joins raw characters by rank. Older engines lack it.
BY_RANK: Final = "sarvam-moe"
_FOUND_FIRST: Final = TokenKind.USER_DEFINED
_MAX_CHARS: Final = 128  # of a token: the checks look at every way to cut one
_PREFIXES: Final = {"each_word": "each"}
_PREFIX_WARNINGS: Final = {
    "each_word": "the tokenizer puts no blank before a text that begins with one, engines do",
    "first": "the tokenizer puts a blank before the head of a text only; engines put one after "
    "every special token too, or nowhere",
}


def read_spm(
    value: Mapping[str, Any],
    bpe: Bpe,
    added: Mapping[int, AddedToken],
    n_vocab: int,
    path: Path,
) -> Vocabulary:
    """Make the vocabulary of a tokenizer over characters.

    Args:
        value: tokenizer.json.
        bpe: its model.
        added: its added tokens, by id.
        n_vocab: rows of the embedding.
        path: the file, for messages.

    Raises:
        ConvertError: no engine cuts text as it does; says where they part.
    """
    _check_bytes(bpe, path)
    blanks = blanks_of(value, path)
    texts, kinds = lay_out(bpe.vocab, added, n_vocab, path)
    merges = [pair for pair in bpe.merges if not blanks.cut or BLANK not in (pair[0] + pair[1])[1:]]
    _set_kinds(kinds, bpe, added)
    warnings = odd_ones(added)
    warnings += [_PREFIX_WARNINGS[blanks.prefix]] if blanks.prefix in _PREFIX_WARNINGS else []
    ids = index(texts, path)
    scores, problem = [0.0], "blanks stay blanks"
    if blanks.escaped:
        found_first = [t for t, kind in zip(texts, kinds, strict=True) if kind == _FOUND_FIRST]
        scores, problem = scores_of(merges, texts, found_first, path)
    by_score, other_problem = not problem, _by_rank_problem(blanks, merges)
    by_rank = not by_score and not other_problem
    if not by_score and not by_rank:
        if blanks.escaped:
            raise ConvertError(
                f"no engine joins pieces as this tokenizer does: {problem}, and {other_problem}",
                path=path,
            )
        texts, kinds = as_bytes(texts, kinds, merges, path)
    return Vocabulary(
        model="llama" if by_score else "gpt2",
        texts=texts,
        kinds=kinds,
        merges=[] if by_score else [f"{left} {right}" for left, right in merges],
        pre="default" if by_score else BY_RANK if by_rank else SPLITTER,
        scores=scores if by_score else [],
        prefix=_PREFIXES.get(blanks.prefix, blanks.prefix),
        post_processor=value.get("post_processor"),
        ids=ids,
        warnings=(*warnings, *free_ids(kinds)),
    )


def _check_bytes(bpe: Bpe, path: Path) -> None:
    if not bpe.byte_fallback:
        raise ConvertError(
            "neither byte-level nor with byte fallback: engines fail on characters without a token",
            path=path,
        )
    missing = [text for text in BYTE_TOKENS if text not in bpe.vocab]
    if missing:
        raise ConvertError(
            f"byte fallback is on, and {len(missing)} bytes have no token: "
            f"{', '.join(missing[:4])}; text with them would turn into nothing",
            path=path,
        )
    if bpe.ignore_merges:
        raise ConvertError("ignore_merges is on, which engines do for byte-level BPE", path=path)
    parts = {part for pair in bpe.merges for part in pair}
    if not parts.isdisjoint(BYTE_TOKENS):
        raise ConvertError("a merge joins byte tokens, which engines do not", path=path)


def _set_kinds(kinds: list[int], bpe: Bpe, added: Mapping[int, AddedToken]) -> None:
    """Mark bytes, the unknown token, and tokens that stand for blanks."""
    for text in BYTE_TOKENS:
        kinds[bpe.vocab[text]] = int(TokenKind.BYTE)
    if bpe.unknown is not None:
        kinds[bpe.vocab[bpe.unknown]] = int(TokenKind.UNKNOWN)
    for i, token in added.items():
        # Only an ordinary token's U+2581 is printed as a blank.
        if BLANK in token.text and not token.special and token.text in bpe.vocab:
            kinds[i] = int(TokenKind.NORMAL)


def scores_of(
    merges: Sequence[Pair], texts: Sequence[str], found_first: Sequence[str], path: Path
) -> tuple[list[float], str]:
    """Return a score for each text so that the best score is the lowest rank, and "" or why not.

    Args:
        merges: pairs by rank.
        texts: every token, whatever its kind: engines join neighbours into any of them.
        found_first: tokens that are taken out of a text before anything is joined.
        path: the file, for messages.

    Raises:
        ConvertError: a token is too long to be looked at.
    """
    places: dict[str, int] = {}
    last = ""
    for left, right in merges:
        made = left + right
        if made != last and made in places:
            return [], f"the merges of {made[:60]!r} do not stand together"
        places.setdefault(made, len(places))
        last = made
    stray = _join_without_merge(texts, set(merges), found_first, path)
    if stray:
        left, right = stray
        return [], f"{left[:60]!r} + {right[:60]!r} is a token, and no merge makes it"
    lowest = -float(len(places) + 1)
    return [-float(places[text]) if text in places else lowest for text in texts], ""


def _join_without_merge(
    texts: Iterable[str], merges: set[Pair], found_first: Sequence[str], path: Path
) -> Pair | None:
    """Return two neighbours that an engine would join and the tokenizer would not, if there are any."""
    reached: set[str] = set()
    for text in sorted(texts, key=len):
        if len(text) > _MAX_CHARS:
            if (text[: len(text) // 2], text[len(text) // 2 :]) in merges:
                raise ConvertError(f"a token of {len(text)} characters", path=path)
            continue
        for i in range(1, len(text)):
            left, right = text[:i], text[i:]
            if (i == 1 or left in reached) and (i == len(text) - 1 or right in reached):
                if (left, right) in merges:
                    reached.add(text)
                elif not any(token in text for token in found_first):
                    return left, right
    return None


def _by_rank_problem(blanks: Blanks, merges: Iterable[Pair]) -> str:
    """Return why a vocabulary that joins by rank is not the same either, or ""."""
    if not blanks.escaped:
        return "blanks stay blanks"
    if blanks.prefix != "never":
        return "a blank goes before a text"
    for left, right in merges:
        n_newlines = (left + right).count("\n")
        if n_newlines and n_newlines != len(left) + len(right):
            return "a merge joins newlines to other text"
    return ""
