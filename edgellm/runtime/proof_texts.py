"""Texts on which two tokenizers show that they differ: the same for the same seed, NUL and halves left out.

Every class of characters a splitter knows, whatever joins over a seam, pieces of the vocabulary put
together at random, and added tokens with neighbours on both sides.
"""

from __future__ import annotations

import random
import unicodedata
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_ATOMS: Final = (
    *("the", "Marrow", " island", "It's", "we'LL", "they've", "don't", "x'S", "'", "''s", "I'm"),
    *("0", "7", "42", "123", "1234567", "3.14", "1,000", "0x1F", "٣٤", "½", "Ⅷ", "²", "१२३"),
    *(" ", "  ", "   ", "       ", "\t", "\t\t", "\n", "\n\n", "\n\n\n", "\r\n", "\r", " \n "),
    *("\u00a0", "\u3000", "\u200b", "\u2028", "\u0085", "\x0b", "\x0c", "\u2581", "\u2581\u2581"),
    *("!", "...", "?!", "--", "(", ")", "[]", "{};", "</p>", "a=b", "//", "#", "$", "€", "_", "\\"),
    *("é", "e\u0301", "Ž", "ß", "İ", "ﬁ", "ŉ", "ﬀ", "Ǆ", "\u02bc", "ñ", "n\u0303", "\u0301"),
    *("한국어", "값", "\u1112\u1161\u11ab", "ㄱ", "日本", "中文\uff0c", "。", "ひらカナ", "々"),
    *("שלום", "مرحبا", "हिन्दी", "ไทย", "ქართული", "Ελλά", "русский", "Ωmega", "ꦗꦮ"),
    *(
        "👋",
        "👨‍👩‍👧",
        "🇵🇱",
        "🏽",
        "☕️",
        "\U0001d518",
        "\U000e0041",
        "\ufeff",
        "�",
        "\x01",
        "\x1b",
        "\x7f",
    ),
    *("<0x41>", "<s>", "</s>", "<unk>", "[PAD1]", "<|im_end|>", "Ġ", "Ċ", "«»", "“x”", "—"),
)
_CODE: Final = (
    "def f(x):\n    return [i ** 2 for i in range(x) if i % 2 == 0]\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * 0.5f; }\r\n",
    '{"key": [1, 2.50, -3e-7, null], "text": "a\\nb"}\n',
    "SELECT * FROM t WHERE id IN (1,22,333,4444) -- why?\n",
    "\t\tif err != nil {\n\t\t\treturn nil, err\n\t\t}\n",
    "https://example.org/a/b?c=d&e=%20f#g user@example.org 192.168.0.1",
    "<div class='x'>&nbsp;&amp;</div>\n\n\n\n<!-- -->",
    "Zażółć gęślą jaźń. Größe, naïve, façade; Ünïcödé!",
)
_MAX_CODE_POINT: Final = 0x32000  # planes 3 and up hold rare ideographs and nothing else


def texts(n: int, pieces: Sequence[str], seed: int = 0) -> Iterator[str]:
    """Yield `n` texts.

    Args:
        n: how many.
        pieces: what single tokens stand for.
        seed: another one gives other texts.
    """
    rng = random.Random(seed)  # noqa: S311  # the same texts each time is the point
    makers = (_mixed, _mixed, _any_characters, _glued, _glued, _overlapping, _long, _code)
    for i in range(n):
        yield makers[i % len(makers)](rng, pieces)


def around_added(added: Sequence[str], seed: int = 0, n_single: int = 200) -> Iterator[str]:
    """Yield texts with added tokens: many in a row, and some beside words, blanks and each other."""
    rng = random.Random(seed)  # noqa: S311  # the same texts each time is the point
    for first in range(0, len(added), 64):
        yield "".join(added[first : first + 64])
    for text in added if len(added) <= n_single else rng.sample(list(added), n_single):
        other = rng.choice(added)
        yield f"{rng.choice(_ATOMS)}{text}{rng.choice(_ATOMS)}{other}"
        yield f"a{text} b {text}{text}\n{text[:-1]}"


def around_merges(
    merges: Sequence[tuple[str, str]],
    pieces: Sequence[str],
    read: Callable[[str], str],
    seed: int = 0,
    n: int = 300,
) -> Iterator[str]:
    """Yield texts where merges meet: each with the nearest in rank that wants the same part.

    Args:
        merges: pairs by rank.
        read: gives the characters of parts.
        pieces: what single tokens stand for.
        seed: another one gives other texts.
        n: merges taken.
    """
    rng = random.Random(seed)  # noqa: S311  # the same texts each time is the point
    ranks = sorted(rng.sample(range(len(merges)), min(n, len(merges))))
    behind: dict[str, list[int]] = {merges[rank][1]: [] for rank in ranks}
    for rank, (left, _) in enumerate(merges):
        if left in behind:
            behind[left].append(rank)
    for rank in ranks:
        left, right = merges[rank]
        made = left + right
        rivals = [other for other in behind[right] if other != rank]
        if rivals:
            made += merges[min(rivals, key=lambda other: abs(other - rank))][1]
        yield f"{rng.choice(pieces)}{read(made)}{rng.choice(pieces)}"


def _mixed(rng: random.Random, pieces: Sequence[str]) -> str:
    del pieces
    return "".join(rng.choice(_ATOMS) for _ in range(rng.randint(1, 24)))


def _any_characters(rng: random.Random, pieces: Sequence[str]) -> str:
    del pieces
    made: list[str] = []
    while len(made) < rng.randint(1, 12):
        char = chr(rng.randrange(1, _MAX_CODE_POINT))
        if unicodedata.category(char) not in ("Cs", "Cn"):
            made += [char] * rng.choice((1, 1, 1, 2)) + rng.choice(([], [" "], ["a"]))
    return "".join(made)


def _glued(rng: random.Random, pieces: Sequence[str]) -> str:
    return "".join(rng.choice(pieces) for _ in range(rng.randint(2, 16)))


def _overlapping(rng: random.Random, pieces: Sequence[str]) -> str:
    """Repeat a piece and cut it: where equal joins overlap, their order shows."""
    piece = rng.choice(pieces)
    cut = rng.randint(0, len(piece))
    return rng.choice((piece * 3, piece + piece[:cut], piece[cut:] + piece * 2)) + rng.choice(
        _ATOMS
    )


def _long(rng: random.Random, pieces: Sequence[str]) -> str:
    kind = rng.randrange(4)
    if kind == 0:
        return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(200))
    if kind == 1:
        return rng.choice((" ", "\n", "\t", "\r\n", "0", "=", "a", "é", "中")) * rng.randint(20, 90)
    if kind == 2:
        return "".join(rng.choice("0123456789") for _ in range(60))
    return _glued(rng, pieces).title() + _glued(rng, pieces).upper()


def _code(rng: random.Random, pieces: Sequence[str]) -> str:
    return rng.choice(_CODE) + rng.choice(_ATOMS) + rng.choice(pieces) + rng.choice(_CODE)
