"""Tokenizers of every kind give, converted, the ids of their own library: 0 of 2,000 texts differ.

300 texts each by default, 2,000 with `--full`.
"""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pytest

from edgellm.converters.splitters import NAMES
from edgellm.engines.llamacpp.vocab_only import VocabOnly
from edgellm.errors import VerifyFailed
from edgellm.formats.gguf import read_header
from edgellm.runtime.conversion import ConvertOptions, convert
from edgellm.runtime.proof import prove
from edgellm.runtime.proof_child import compare_tokens
from edgellm.runtime.reference import open_reference

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType

    Train = Callable[..., dict[str, Any]]
    OnZeros = Callable[..., Path]

BLANK = "\u2581"
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}
PREFIX = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": BLANK}, REPLACE]}
N_TOKENS = 4000
COUNTS = [300, pytest.param(2000, marks=pytest.mark.full)]


def spell(part: tuple[Any, ...]) -> dict[str, Any]:
    """Write one part of a splitter as tokenizer.json has it."""
    kind = part[0]
    if kind == "digits":
        return {"type": "Digits", "individual_digits": part[1]}
    if kind == "bytes":
        fields = {"add_prefix_space": part[1], "trim_offsets": True, "use_regex": part[2]}
        return {"type": "ByteLevel", **fields}
    return {
        "type": "Split",
        "pattern": {"Regex": part[1]},
        "behavior": part[2],
        "invert": part[3],
    }


def splitter(name: str) -> dict[str, Any]:
    """Return a named splitter as tokenizer.json has it."""
    parts = next(parts for (parts, _), found in NAMES.items() if found == name)
    return {"type": "Sequence", "pretokenizers": [spell(part) for part in parts]}


def add(value: dict[str, Any], *contents: str, special: bool) -> None:
    """Append added tokens behind the vocabulary."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    first = len(value["model"]["vocab"]) + len(value["added_tokens"])
    value["added_tokens"] += [
        {"id": first + i, "content": text, "special": special, **flags}
        for i, text in enumerate(contents)
    ]


def byte_level(train: Train, name: str, *, ignore_merges: bool = False) -> dict[str, Any]:
    """Train a byte-level tokenizer with a named splitter."""
    value = train(N_TOKENS, pre=splitter(name))
    value["model"]["ignore_merges"] = ignore_merges
    add(value, "<|end|>", "<|start|>", special=True)
    return value


def llama3(train: Train) -> dict[str, Any]:
    """Add tokens that contain each other, and one that begins with a blank."""
    value = byte_level(train, "llama-bpe", ignore_merges=True)
    add(value, "<|im_start|>", special=True)
    add(value, "Marrow Island", "<Section_5A>", "<Section_5A>B", "🦙", " lead", special=False)
    return value


def characters(train: Train, normalizer: dict[str, Any]) -> dict[str, Any]:
    """Train a tokenizer over characters, with the tokens of all bytes in front."""
    lines = {"type": "Split", "pattern": {"String": "\n"}, "behavior": "Isolated", "invert": False}
    value = train(N_TOKENS, pre=lines, normalizer=normalizer, byte_level=False)
    value["pre_tokenizer"] = None
    head = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    trained = value["model"]["vocab"]
    vocab = {text: i for i, text in enumerate(head)}
    vocab |= {text: i + len(head) for text, i in trained.items() if text not in vocab}
    value["model"] |= {
        "vocab": vocab,
        "byte_fallback": True,
        "unk_token": "<unk>",
        "fuse_unk": True,
    }
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    value["added_tokens"] = [
        {"id": i, "content": text, "special": True, **flags} for i, text in enumerate(head[:3])
    ]
    back = {"type": "Replace", "pattern": {"String": BLANK}, "content": " "}
    value["decoder"] = {
        "type": "Sequence",
        "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}],
    }
    return value


def prefixed(train: Train) -> dict[str, Any]:
    """Give every way to make a token a merge, as a converted SentencePiece model has them."""
    value = characters(train, PREFIX)
    vocab = value["model"]["vocab"]
    made = dict.fromkeys("".join(pair) for pair in value["model"]["merges"])
    value["model"]["merges"] = [
        [text[:i], text[i:]]
        for text in made
        for i in range(len(text) - 1, 0, -1)
        if text[:i] in vocab and text[i:] in vocab
    ]
    bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    one = {"Sequence": {"id": "A", "type_id": 0}}
    value["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [bos, one],
        "pair": [bos, one, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    return value


SYNTHETIC: dict[str, tuple[Callable[[Train], dict[str, Any]], str]] = {
    "gpt-2": (lambda train: byte_level(train, "gpt-2"), "gpt2 gpt-2"),
    "llama3, added tokens": (llama3, "gpt2 llama-bpe"),
    "smollm": (lambda train: byte_level(train, "smollm"), "gpt2 smollm"),
    "qwen2": (lambda train: byte_level(train, "qwen2"), "gpt2 qwen2"),
    "characters, blank in front": (prefixed, "llama default"),
    "characters, merges as trained": (lambda train: characters(train, REPLACE), "gpt2 sarvam-moe"),
}


def files_of(value: dict[str, Any], bos: str = "", eos: str = "<|end|>") -> dict[str, Any]:
    """Return a tokenizer's files."""
    roles = {"bos_token": bos, "eos_token": eos}
    return {
        "tokenizer.json": value,
        "tokenizer_config.json": {role: text for role, text in roles.items() if text},
    }


def written(folder: Path) -> Path:
    """Convert a checkpoint without the proof, which the test makes itself."""
    out = folder.parent / "m.gguf"
    convert(ConvertOptions(folder, out, "q8_0", prove=False))
    return out


@pytest.mark.parametrize("n_strings", COUNTS)
@pytest.mark.parametrize("name", sorted(SYNTHETIC))
def test_a_tokenizer_trained_here(
    tmp_path: Path, trained_bpe: Train, on_zeros: OnZeros, name: str, n_strings: int
) -> None:
    """Each kind gives the same ids through the engine, and is of the kind that was meant."""
    make, kind = SYNTHETIC[name]
    value = make(trained_bpe)
    over_characters = value["model"]["byte_fallback"]
    files = files_of(value, *(("<s>", "</s>") if over_characters else ()))
    folder = on_zeros(tmp_path / "checkpoint", 4500, files)
    out = written(folder)
    metadata = read_header(out).metadata
    assert f"{metadata['tokenizer.ggml.model']} {metadata['tokenizer.ggml.pre']}" == kind
    proof = prove(out, folder, n_strings=n_strings)
    assert proof.strings >= n_strings


TEMPLATE = "{% for m in messages %}<s>{{ m.role }} {{ m.content }}</s>{% endfor %}"


@pytest.mark.parametrize("scheme", ["never", "always", "first", "first, for chats"])
@pytest.mark.parametrize("cut", [False, True])
def test_blanks_put_by_a_pre_tokenizer(
    tmp_path: Path, trained_bpe: Train, on_zeros: OnZeros, scheme: str, *, cut: bool
) -> None:
    """What engines can do is equal, what they cannot is said: where chats are, nothing is lost."""
    value = prefixed(trained_bpe)
    merges = value["model"]["merges"]
    if cut:  # no text gives a piece with a blank inside: then there is none, as in such models
        value["model"]["merges"] = [pair for pair in merges if BLANK not in "".join(pair)[1:]]
        made = {"".join(pair) for pair in merges if BLANK in "".join(pair)[1:]}
        kept = [text for text in value["model"]["vocab"] if text not in made]
        value["model"]["vocab"] = {text: i for i, text in enumerate(kept)}
    value["normalizer"] = None
    value["pre_tokenizer"] = {
        "type": "Metaspace",
        "replacement": BLANK,
        "prepend_scheme": scheme.split(",", maxsplit=1)[0],
        "split": cut,
    }
    files = files_of(value, "<s>", "</s>")
    if "chats" in scheme:
        files["chat_template.jinja"] = TEMPLATE.encode()
    folder = on_zeros(tmp_path / "checkpoint", 4500, files)
    result = convert(ConvertOptions(folder, tmp_path / "m.gguf", "q8_0"))
    assert result.proof.strings >= 300
    assert any("blank" in text for text in result.warnings) is (scheme != "never")
    prefix = read_header(result.path).metadata["tokenizer.ggml.add_space_prefix"]
    assert prefix is (scheme in ("always", "first"))


def test_merges_are_found_again_from_scores(
    tmp_path: Path, trained_bpe: Train, on_zeros: OnZeros, gguf_tokenizer: ModuleType
) -> None:
    """The example's tokenizer.json of a converted file has the merges it was made from."""
    value = prefixed(trained_bpe)
    folder = on_zeros(tmp_path / "checkpoint", 4500, files_of(value, "<s>", "</s>"))
    found = gguf_tokenizer.tokenizer(read_header(written(folder)))
    assert found["model"]["merges"] == value["model"]["merges"]
    assert found["normalizer"] == value["normalizer"]
    assert found["post_processor"] == value["post_processor"]


@pytest.mark.parametrize("n_strings", COUNTS)
@pytest.mark.parametrize("has_prefix", [True, False])
def test_a_sentencepiece_model_alone(
    tmp_path: Path, on_zeros: OnZeros, n_strings: int, *, has_prefix: bool
) -> None:
    """A tokenizer.model without tokenizer.json gives the ids of the sentencepiece library."""
    import sentencepiece  # of the extra [spm], which tests/run.sh installs

    words = [
        "the marrow island is larger than it looks",
        "zażółć gęślą jaźń",
        "for i in range(10):",
    ]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([f"{a} {b} {c}" for a in words for b in words for c in words] * 5),
        model_writer=model,
        model_type="bpe",
        vocab_size=400,
        byte_fallback=True,
        character_coverage=1.0,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=has_prefix,
        user_defined_symbols=["<mark>"],
        minloglevel=2,
    )
    files = {
        "tokenizer.model": model.getvalue(),
        "tokenizer_config.json": {"eos_token": "</s>", "bos_token": "<s>"},
    }
    folder = on_zeros(tmp_path / "checkpoint", 448, files)
    proof = prove(written(folder), folder, n_strings=n_strings * 2)
    assert (
        proof.strings >= n_strings // 4
    )  # the library reads no control tokens: fewer are compared


@pytest.mark.model
@pytest.mark.parametrize("n_strings", COUNTS)
def test_smollm2(
    tmp_path: Path,
    gguf_tokenizer: ModuleType,
    on_zeros: OnZeros,
    smollm2_gguf: Path,
    n_strings: int,
) -> None:
    """SmolLM2's tokenizer, spelled as tokenizer.json and converted again: no text differs."""
    header = read_header(smollm2_gguf)
    files = files_of(gguf_tokenizer.tokenizer(header))
    files["tokenizer_config.json"] = gguf_tokenizer.tokenizer_config(header)
    folder = on_zeros(tmp_path / "checkpoint", 49152, files)
    proof = prove(written(folder), folder, n_strings=n_strings)
    assert proof.strings >= n_strings
    assert_like_the_original(smollm2_gguf, folder, n_strings)


def assert_like_the_original(gguf: Path, folder: Path, n_strings: int) -> None:
    """Hold a rebuilt tokenizer.json against the engine on the file that it was rebuilt from."""
    with VocabOnly(gguf) as engine:
        spelled = engine.describe().spellings
        reference = open_reference(folder, prefixed=False, control=spelled)
        assert compare_tokens(engine, reference, n_strings, 1)[0] >= n_strings


@pytest.mark.model
@pytest.mark.parametrize("n_strings", COUNTS)
def test_gemma(
    tmp_path: Path, gguf_tokenizer: ModuleType, on_zeros: OnZeros, gemma3_gguf: Path, n_strings: int
) -> None:
    """Gemma's too: its merges found again from scores, against the original and the converted file."""
    header = read_header(gemma3_gguf)
    files = files_of(gguf_tokenizer.tokenizer(header))
    files["tokenizer_config.json"] = gguf_tokenizer.tokenizer_config(header)
    folder = on_zeros(tmp_path / "checkpoint", 262144, files)
    out = written(folder)
    proof = prove(out, folder, n_strings=n_strings)
    assert proof.strings >= n_strings
    assert read_header(out).metadata["tokenizer.ggml.model"] == "llama"
    assert_like_the_original(gemma3_gguf, folder, n_strings)


@pytest.mark.parametrize("forgets", ["the source", "the file"])
def test_a_lost_digits_part_is_flagged(
    tmp_path: Path, trained_bpe: Train, on_zeros: OnZeros, forgets: str
) -> None:
    """A file that says `smollm` and a tokenizer.json without Digits, or the reverse, is no match."""
    value = byte_level(trained_bpe, "gpt-2")  # its digits merge, so every lost cut shows
    folders = {
        name: on_zeros(
            tmp_path / name / "checkpoint", 4500, files_of(value | {"pre_tokenizer": pre})
        )
        for name, pre in (("gpt-2", splitter("gpt-2")), ("smollm", splitter("smollm")))
    }
    of_file, of_source = ("smollm", "gpt-2") if forgets == "the source" else ("gpt-2", "smollm")
    out = written(folders[of_file])
    assert read_header(out).metadata["tokenizer.ggml.pre"] == of_file
    with pytest.raises(
        VerifyFailed, match=r"differs from the source's in \d+ of \d+ texts: '"
    ) as found:
        prove(out, folders[of_source])
    assert found.value.message.isascii()
    assert found.value.exit_code == 5


@pytest.mark.parametrize("name", sorted(NAMES.values()))
def test_every_known_splitter_on_merges_that_cross_its_cuts(
    tmp_path: Path, trained_bpe: Train, on_zeros: OnZeros, name: str
) -> None:
    """A vocabulary trained without any splitter shows every cut that is not the source's."""
    raw = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    value = trained_bpe(8000, pre=raw)
    value["pre_tokenizer"] = splitter(name)
    value["model"]["ignore_merges"] = next(key[1] for key, found in NAMES.items() if found == name)
    add(value, "<|end|>", special=True)
    folder = on_zeros(tmp_path / "checkpoint", 8064, files_of(value))
    out = written(folder)
    with VocabOnly(out) as engine:
        reference = open_reference(folder, prefixed=False, control=engine.describe().spellings)
        assert compare_tokens(engine, reference, 300, len(name))[0] >= 300


def test_the_merges_that_cross_cuts_tell_all_splitters_apart(trained_bpe: Train) -> None:
    """The comparison means something: any two rules differ on it."""
    from tokenizers import Tokenizer

    from edgellm.runtime.proof_texts import texts

    raw = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    value = trained_bpe(8000, pre=raw)
    pieces = [text for text in value["model"]["vocab"] if text.isascii()]
    found: dict[Any, list[str]] = {}
    for (_, ignores), name in NAMES.items():
        value["pre_tokenizer"] = splitter(name)
        value["model"]["ignore_merges"] = ignores
        tokenizer = Tokenizer.from_str(json.dumps(value))
        ids = tuple(tuple(tokenizer.encode(text).ids) for text in texts(600, pieces, 5))
        found.setdefault(ids, []).append(name)
    # Every token here is made by merges, so taking words whole makes no difference; and the last
    # pattern is the third one, spelled so that it does not backtrack.
    alike = [names for names in found.values() if len(names) > 1]
    assert alike == [["llama-bpe", "dbrx"], ["qwen2", "bailingmoe"]]
