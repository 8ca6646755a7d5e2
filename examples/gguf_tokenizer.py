"""The tokenizer of a GGUF file in the words of Hugging Face's tokenizer.json.

Used by make_checkpoint.py. Byte-level BPE with a splitter that is spelled out here, and SentencePiece
vocabularies, whose merges are found again from their scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from edgellm.errors import ModelUnsupported

if TYPE_CHECKING:
    from pathlib import Path

    from edgellm.formats.gguf import GgufHeader

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # tokenizer.ggml.token_type
BLANK = "\u2581"  # how SentencePiece writes a blank

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
ISOLATED = {"behavior": "Isolated", "invert": False}
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# What llama.cpp means by tokenizer.ggml.pre, in the words of tokenizer.json. `smollm` cuts every
# digit apart before the usual rule: without that part numbers get other tokens than in training.
PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "smollm": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            BYTE_LEVEL | {"use_regex": True},
        ],
    },
    "gpt-2": BYTE_LEVEL | {"use_regex": True},
    "llama-bpe": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": LLAMA3_SPLIT}} | ISOLATED,
            BYTE_LEVEL | {"use_regex": False},
        ],
    },
}


def strings(header: GgufHeader, key: str) -> list[str]:
    """Return an array of strings of the metadata."""
    value = header.metadata.get(key)
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ModelUnsupported(f"the file has no strings under {key!r}", path=header.path)
    return list(value)


def number(header: GgufHeader, key: str, default: int | None = None) -> int:
    """Return a whole number of the metadata."""
    value = header.metadata.get(key, default)
    if not isinstance(value, int):
        raise ModelUnsupported(f"the file has no number under {key!r}", path=header.path)
    return value


def token_ids(header: GgufHeader) -> dict[str, int]:
    """Return the special token ids the file names, in the words of config.json."""
    keys = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    found = {
        ours: header.metadata.get(f"tokenizer.ggml.{theirs}_token_id")
        for ours, theirs in keys.items()
    }
    return {name: value for name, value in found.items() if isinstance(value, int)}


def tokenizer(header: GgufHeader) -> dict[str, Any]:
    """Return tokenizer.json with the file's vocabulary, merges and added tokens."""
    get = header.metadata.get
    model, pre = get("tokenizer.ggml.model"), get("tokenizer.ggml.pre")
    tokens = strings(header, "tokenizer.ggml.tokens")
    types = np.asarray(header.metadata["tokenizer.ggml.token_type"]).tolist()
    made: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added_tokens(tokens, types),
        "post_processor": post_processor(header, tokens),
    }
    if model == "llama":
        merges = merges_of_scores(header, tokens, types)
        made |= blanks(prefixed=bool(get("tokenizer.ggml.add_space_prefix", True)))
    elif model == "gpt2" and pre in PRE_TOKENIZERS:
        merges = [tuple(m.split(" ", 1)) for m in strings(header, "tokenizer.ggml.merges")]
        made["normalizer"], made["pre_tokenizer"] = None, PRE_TOKENIZERS[str(pre)]
        made["decoder"] = BYTE_LEVEL | {"add_prefix_space": True, "use_regex": True}
    else:
        raise ModelUnsupported(f"tokenizer {model!r} with pre-tokenizer {pre!r}", path=header.path)
    unknown = token_ids(header).get("unk")
    made["model"] = {
        "type": "BPE",
        "dropout": None,
        "unk_token": tokens[unknown] if model == "llama" and unknown is not None else None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": model == "llama",
        "byte_fallback": model == "llama",
        "ignore_merges": pre == "llama-bpe",
        "vocab": {tokens[i]: i for i, kind in enumerate(types) if kind != UNUSED},
        "merges": [list(pair) for pair in merges],
    }
    return made


def added_tokens(tokens: list[str], types: list[int]) -> list[dict[str, Any]]:
    """Return the tokens that are looked for before text is split."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return [
        {"id": i, "content": tokens[i], **flags, "special": kind == CONTROL}
        for i, kind in enumerate(types)
        if kind in (CONTROL, USER_DEFINED)
    ]


def blanks(*, prefixed: bool) -> dict[str, Any]:
    """Return how blanks are written and read, with one before each text or without."""
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}
    back = {"type": "Replace", "pattern": {"String": BLANK}, "content": " "}
    prepend = {"type": "Prepend", "prepend": BLANK}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    decoders = [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *([strip] if prefixed else [])]
    sequence = {"type": "Sequence", "normalizers": [prepend, replace]}
    return {
        "normalizer": sequence if prefixed else replace,
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
    }


def merges_of_scores(
    header: GgufHeader, tokens: list[str], types: list[int]
) -> list[tuple[str, ...]]:
    """Return every pair of tokens that makes a token, the best score first.

    As transformers makes merges of a SentencePiece model: among pairs that make the same token, the
    one with the longer left part first.
    Source: `generate_merges`, convert_slow_tokenizer.py of transformers 5.
    """
    scores = np.asarray(header.metadata["tokenizer.ggml.scores"]).tolist()
    ordinary = {token for token, kind in zip(tokens, types, strict=True) if kind == NORMAL}
    found = [
        (-score, -i, token)
        for token, kind, score in zip(tokens, types, scores, strict=True)
        if kind == NORMAL
        for i in range(1, len(token))
        if token[:i] in ordinary and token[i:] in ordinary
    ]
    return [(token[:-i], token[-i:]) for _, i, token in sorted(found)]  # i is negative


def post_processor(header: GgufHeader, tokens: list[str]) -> dict[str, Any] | None:
    """Return what puts the begin token before a text, or None where nothing does."""
    bos = token_ids(header).get("bos")
    get = header.metadata.get  # what llama.cpp takes where the file says nothing:
    by_default = get("tokenizer.ggml.pre") == "llama-bpe" or get("tokenizer.ggml.model") == "llama"
    if bos is None or not header.metadata.get("tokenizer.ggml.add_bos_token", by_default):
        return None
    text = tokens[bos]
    begin = {"SpecialToken": {"id": text, "type_id": 0}}
    one, two = ({"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB"))
    return {
        "type": "TemplateProcessing",
        "single": [begin, one],
        "pair": [begin, one, two],
        "special_tokens": {text: {"id": text, "ids": [bos], "tokens": [text]}},
    }


def tokenizer_config(header: GgufHeader) -> dict[str, Any]:
    """Return tokenizer_config.json: which tokens have a role."""
    tokens = strings(header, "tokenizer.ggml.tokens")
    made: dict[str, Any] = {f"{name}_token": tokens[i] for name, i in token_ids(header).items()}
    made["clean_up_tokenization_spaces"] = False
    architecture = header.metadata.get("general.architecture")
    made["model_max_length"] = number(header, f"{architecture}.context_length")
    made["tokenizer_class"] = "PreTrainedTokenizerFast"
    return made


def check_tokenizer(path: Path, header: GgufHeader) -> None:
    """Load what was written with the `tokenizers` library and hold it against the GGUF."""
    from tokenizers import Tokenizer

    made = Tokenizer.from_file(str(path))
    for i, text in enumerate(strings(header, "tokenizer.ggml.tokens")):
        if made.id_to_token(i) not in (text, None):
            raise ModelUnsupported(f"token {i} became {made.id_to_token(i)!r}, was {text!r}")
    sample = (
        "In 2024, 1,000 people's code: for (i = 0; i < 10; i++) { x += y; }\n\n\tIt's done.  OK"
    )
    if made.decode(made.encode(sample).ids, skip_special_tokens=True) != sample:
        raise ModelUnsupported("the rebuilt tokenizer does not give back a plain sentence")
