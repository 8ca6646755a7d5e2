"""The text splitters that an engine does exactly as a tokenizer.json may ask for, as data.

Each was held against the `tokenizers` library on a vocabulary whose merges cross every border a splitter
may draw (`tests/e2e/test_tokenizer_fuzz.py`). llama.cpp's `tekken`, `gpt-4o`, `tiny_aya` and `falcon` were too, and
are not here: they tell cases apart in ASCII only, or cut bytes.
Source of the names and their rules: `llm_tokenizer_bpe` and `impl::load`, llama-vocab.cpp 0c1e57098.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .parts import Part

_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
_WORDS: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+|"
_MARKS: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
_BLANKS: Final = r"|\s+(?!\S)|\s+"
_REST: Final = _MARKS + _BLANKS
_BLOOM_WORDS: Final = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"


def _split(regex: str) -> Part:
    return ("split", regex, "Isolated", False)


def _byte_level(*, use_regex: bool) -> Part:
    return ("bytes", False, use_regex)


_RAW: Final = _byte_level(use_regex=False)
_USUAL: Final = _byte_level(use_regex=True)
_DIGITS: Final = ("digits", True)
_LLAMA3: Final = (_split(_CONTRACTIONS + _WORDS + r"\p{N}{1,3}" + _REST), _RAW)
_QWEN2: Final = (_split(_CONTRACTIONS + _WORDS + r"\p{N}" + _REST), _RAW)
_QWEN35: Final = (
    _split(
        _CONTRACTIONS + r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
        r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+" + _BLANKS
    ),
    _RAW,
)
_DEEPSEEK_CODER: Final = (
    _split("[\r\n]"),
    _split(r"\s?\p{L}+"),
    _split(r"\s?\p{P}+"),
    _split("[一-龥ࠀ-一가-퟿]+"),
    _DIGITS,
    _RAW,
)
_DEEPSEEK_V3: Final = (
    _split(r"\p{N}{1,3}"),
    _split("[一-龥\u3040-\u309f\u30a0-\u30ff]+"),
    _split(
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+" + _BLANKS
    ),
    _RAW,
)
_SEED_CODER: Final = (
    _split(
        _CONTRACTIONS + _WORDS + r"\p{N}{1}| ?[^\s\p{L}\p{N}" + "\r\n]+|"
        r"\s*[" + "\r\n]+" + _BLANKS
    ),
    _RAW,
)
_BAILING_MOE: Final = (
    _split(
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]" + _BLANKS
    ),
    _RAW,
)
_EXAONE_MOE: Final = (
    _split(
        _CONTRACTIONS + r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]" + _BLANKS
    ),
    _RAW,
)
_MINICPM5: Final = (
    _split(r"\p{N}{1,3}"),
    _split(_CONTRACTIONS + _WORDS + r"\p{N}+" + _REST),
    _RAW,
)
_JAIS2: Final = (
    _split(
        _CONTRACTIONS
        + _WORDS
        + r"\p{N}{1,3}"
        + _MARKS
        + "".join(
            rf"|\s{{{n}}}(?!\S)" for n in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2")
        )
        + r"|\s{1}"
    ),
    _RAW,
)

# (parts, ignore_merges) -> name. With `ignore_merges` a word that is a token is never cut.
NAMES: Final[dict[tuple[tuple[Part, ...], bool], str]] = {
    (_LLAMA3, True): "llama-bpe",
    (_LLAMA3, False): "dbrx",
    (_QWEN2, False): "qwen2",
    (_QWEN35, False): "qwen35",
    ((_USUAL,), False): "gpt-2",
    ((_DIGITS, _USUAL), False): "smollm",
    (_DEEPSEEK_CODER, False): "deepseek-coder",
    (_DEEPSEEK_V3, False): "deepseek-v3",
    ((_split(_BLOOM_WORDS), _RAW), False): "bloom",
    ((_split(_BLOOM_WORDS), _DIGITS, _RAW), False): "viking",
    (_SEED_CODER, False): "seed-coder",
    (_BAILING_MOE, False): "bailingmoe",
    (_EXAONE_MOE, False): "exaone-moe",
    ((_split(_WORDS + r"\p{N}" + _REST), _RAW), False): "ufakzeka",
    (_MINICPM5, True): "minicpm5",
    (_JAIS2, False): "jais-2",
}
# llama.cpp has code of its own for these. The others go through std::regex, whose stack grows with
# the length of a word: one of 5,000 characters passes, one of 30,000 ends the process.
STEADY: Final = frozenset({"llama-bpe", "dbrx", "qwen2", "qwen35", "gpt-2", "smollm"})
# Each digit becomes a piece of its own, so that no token of a vocabulary trained so joins two.
CUT_DIGITS: Final = frozenset(
    {
        *("smollm", "qwen2", "qwen35", "deepseek-coder", "viking"),
        *("seed-coder", "bailingmoe", "exaone-moe", "ufakzeka"),
    }
)
