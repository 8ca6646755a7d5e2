"""The vocabulary of a checkpoint, from tokenizer.json or else from tokenizer.model.

Two kinds of tokenizer.json are carried over: byte-level BPE, whose splitter must be one of the
engine's, and BPE over characters with byte fallback (SentencePiece). tokenizer.json decides where
both files are there: it is what ran in training last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgellm.errors import ConvertError
from edgellm.formats.checked_json import read_json_object

from .added_tokens import odd_ones, read_added
from .bpe import read_bpe
from .parts import parts_of
from .pretokenizer import name_of, warnings_of
from .spm import read_spm
from .spm_model import read_model_file
from .vocabulary import Vocabulary, free_ids, index, lay_out

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .added_tokens import AddedToken
    from .bpe import Bpe


def read_vocabulary(folder: Path, n_vocab: int) -> Vocabulary:
    """Read and check the tokenizer of a checkpoint folder.

    Args:
        folder: the checkpoint.
        n_vocab: rows of the embedding; ids beyond the tokenizer's become unused tokens.

    Raises:
        ConvertError: the tokenizer is of another kind, contradicts itself, or exceeds `n_vocab`.
        ModelCorrupt: tokenizer.json is no JSON object, or tokenizer.model is damaged.
        MissingExtra: there is only a tokenizer.model, and no `sentencepiece` to prove it with.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        if (folder / "tokenizer.model").is_file():
            return read_model_file(folder, n_vocab)
        raise ConvertError(
            "no tokenizer: looked for tokenizer.json and tokenizer.model",
            path=folder,
            hint="copy the tokenizer's files from the original model",
        )
    value = read_json_object(path)
    bpe = read_bpe(value, path)
    added = read_added(value, folder, bpe.vocab)
    if _is_byte_level(value):
        return _byte_level(value, bpe, added, n_vocab, path)
    return read_spm(value, bpe, added, n_vocab, path)


def _is_byte_level(value: Mapping[str, Any]) -> bool:
    decoder = value.get("decoder")
    kinds = {kind for kind, *_ in parts_of(value.get("pre_tokenizer"), "pretokenizers")}
    by_decoder = isinstance(decoder, dict) and decoder.get("type") == "ByteLevel"
    return by_decoder or "ByteLevel" in kinds


def _byte_level(
    value: Mapping[str, Any], bpe: Bpe, added: Mapping[int, AddedToken], n_vocab: int, path: Path
) -> Vocabulary:
    pre = name_of(value.get("pre_tokenizer"), path, ignore_merges=bpe.ignore_merges)
    if bpe.byte_fallback:
        raise ConvertError("model.byte_fallback is on in a byte-level tokenizer", path=path)
    decoder = value.get("decoder")
    if not isinstance(decoder, dict) or decoder.get("type") != "ByteLevel":
        raise ConvertError(
            f"a byte-level tokenizer whose decoder is {str(decoder)[:120]}", path=path
        )
    learned = bpe.vocab.keys() - {token.text for token in added.values()}
    warnings = [*_normalizer(value, path), *warnings_of(pre, learned), *odd_ones(added)]
    texts, kinds = lay_out(bpe.vocab, added, n_vocab, path)
    return Vocabulary(
        model="gpt2",
        texts=texts,
        kinds=kinds,
        merges=[f"{left} {right}" for left, right in bpe.merges],
        pre=pre,
        scores=[],
        prefix="never",
        post_processor=value.get("post_processor"),
        ids=index(texts, path),
        warnings=(*warnings, *free_ids(kinds)),
    )


def _normalizer(value: Mapping[str, Any], path: Path) -> list[str]:
    """Engines do not normalise: NFC changes only unusual text, anything else is refused."""
    kinds = [kind for kind, *_ in parts_of(value.get("normalizer"), "normalizers")]
    if not kinds:
        return []
    if set(kinds) == {"NFC"}:
        return ["the tokenizer composes text (NFC), engines do not: decomposed text differs"]
    raise ConvertError(
        f"normalizer {str(value['normalizer'])[:120]} is not done by engines", path=path
    )
