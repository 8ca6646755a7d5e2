"""The tokenizer of a GGUF file in the words of Hugging Face's tokenizer.json.

Used by make_checkpoint.py. Byte-level BPE only, and only splitters that are spelled out here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from edgellm.errors import ModelUnsupported

if TYPE_CHECKING:
    from pathlib import Path

    from edgellm.formats.gguf import GgufHeader

CONTROL, USER_DEFINED, UNUSED = 3, 4, 5  # tokenizer.ggml.token_type

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
    """Return tokenizer.json: byte-level BPE with the file's vocabulary, merges and added tokens."""
    get = header.metadata.get
    pre = get("tokenizer.ggml.pre")
    if get("tokenizer.ggml.model") != "gpt2" or pre not in PRE_TOKENIZERS:
        raise ModelUnsupported(
            f"tokenizer {get('tokenizer.ggml.model')!r} with pre-tokenizer {pre!r}",
            path=header.path,
        )
    tokens = strings(header, "tokenizer.ggml.tokens")
    types = np.asarray(header.metadata["tokenizer.ggml.token_type"]).tolist()
    merges = strings(header, "tokenizer.ggml.merges")
    vocab = {tokens[i]: i for i, kind in enumerate(types) if kind != UNUSED}
    added = [
        {
            "id": i,
            "content": tokens[i],
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
            "special": kind == CONTROL,
        }
        for i, kind in enumerate(types)
        if kind in (CONTROL, USER_DEFINED)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": PRE_TOKENIZERS[str(pre)],
        "post_processor": post_processor(header, tokens),
        "decoder": BYTE_LEVEL | {"add_prefix_space": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre == "llama-bpe",
            "vocab": vocab,
            "merges": [merge.split(" ", 1) for merge in merges],
        },
    }


def post_processor(header: GgufHeader, tokens: list[str]) -> dict[str, Any] | None:
    """Return what puts the begin token before a text, or None where nothing does."""
    bos = token_ids(header).get("bos")
    by_default = header.metadata.get("tokenizer.ggml.pre") == "llama-bpe"  # llama.cpp's rule
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
    made["model_max_length"] = number(header, "llama.context_length")
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
