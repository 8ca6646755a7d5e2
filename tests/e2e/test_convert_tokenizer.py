"""The tokenizer of a converted file gives the ids of the `tokenizers` library, on hostile text too."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer

import edgellm
from edgellm.converters.splitters import NAMES
from edgellm.engines.base import EngineSettings
from edgellm.engines.llamacpp import LlamaCppEngine
from edgellm.formats.safetensors import read_header
from edgellm.runtime.conversion import ConvertOptions, convert

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
CHECKPOINTS = ROOT / "tests" / "data" / "checkpoints"
PARTS = (
    "the", "Marrow", " island", "It's", "we'LL", "they've", "don't", "x'S", "'", "''s",
    "0", "7", "42", "1234567", "3.14", "1,000", "٣٤", "½", "Ⅷ", "²",
    " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r", " \n ", "\u00a0", "\u3000", "\u200b",
    "!", "...", "?!", "--", "(", ")", "[]", "{};", "</p>", "a=b", "//", "#", "$", "€", "_", "\\",
    "é", "e\u0301", "Ž", "ß", "İ", "ﬁ", "ŉ", "한국어", "값", "\u1112\u1161\u11ab", "日本", "中文\uff0c", "。",
    "שלום", "مرحبا", "हिन्दी", "ไทย", "👋", "👨‍👩‍👧", "🇵🇱", "\U0001d518", "\U000e0041", "\ufeff", "�", "\x00", "\x7f",
)  # fmt: skip


def fuzz(n: int, seed: int) -> Iterator[str]:
    """Yield texts that mix letters, digits, blanks, marks and scripts."""
    rng = random.Random(seed)
    for i in range(n):
        text = "".join(rng.choice(PARTS) for _ in range(rng.randint(1, 24)))
        if i % 5 == 0:  # any character at all, surrogates left out
            text += "".join(
                chr(c)
                for c in (rng.randrange(0x11000) for _ in range(8))
                if not 0xD800 <= c < 0xE000
            )
        yield text


def mismatches(folder: Path, out: Path, texts: list[str], *, special: bool = False) -> list[str]:
    """Return the texts that the converted file and the source tokenize differently."""
    convert(ConvertOptions(folder, out, "q8_0", overwrite=True))
    source = Tokenizer.from_file(str(folder / "tokenizer.json"))
    engine = LlamaCppEngine(out, EngineSettings(n_gpu_layers=0))
    try:
        return [
            text
            for text in texts
            if engine.tokenize(text, special=special, add_bos=False)
            != source.encode(text, add_special_tokens=False).ids
        ]
    finally:
        engine.close()


def with_splitter(checkpoint: Path, folder: Path, name: str) -> Path:
    """Copy a checkpoint and let its tokenizer split by a named rule."""
    (parts, ignore_merges) = next(key for key, value in NAMES.items() if value == name)
    shutil.copytree(checkpoint, folder)
    path = folder / "tokenizer.json"
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    value["model"]["ignore_merges"] = ignore_merges
    value["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [spell(p) for p in parts]}
    path.write_text(json.dumps(value), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory, smollm2_gguf: Path) -> Path:
    """Rebuild SmolLM2's checkpoint with the example."""
    folder = tmp_path_factory.mktemp("smollm2") / "checkpoint"
    environment = os.environ | {"PYTHONPATH": str(Path(edgellm.__path__[0]).parent)}
    environment.pop("PYTHONSAFEPATH", None)  # the example has a module beside it
    script = ROOT / "examples" / "make_checkpoint.py"
    subprocess.run(
        [sys.executable, str(script), str(smollm2_gguf), str(folder)], check=True, env=environment
    )
    return folder


@pytest.fixture(scope="module")
def many_merges(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Path:
    """Put SmolLM2's tokenizer, whose 48,900 merges show every wrong split, on a model of zeros."""
    folder = tmp_path_factory.mktemp("zeros") / "checkpoint"
    shutil.copytree(CHECKPOINTS / "linear-bf16", folder)
    for path in smollm2.glob("*.json"):
        if path.name != "config.json":
            shutil.copy(path, folder)
    path = folder / "tokenizer.json"
    value = json.loads(path.read_text(encoding="utf-8"))
    # Digits that merge tell {1,3} from single digits; a word no merge makes shows ignore_merges.
    for text, merge in (("12", ["1", "2"]), ("123", ["12", "3"]), ("Marrow", None)):
        value["model"]["vocab"][text] = len(value["model"]["vocab"])
        value["model"]["merges"] += [merge] if merge else []
    path.write_text(json.dumps(value), encoding="utf-8")
    n_vocab = 49216
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"vocab_size": n_vocab}))
    weights = folder / "model.safetensors"
    shapes = {tensor.name: list(tensor.shape) for tensor in read_header(weights).tensors}
    shapes["model.embed_tokens.weight"][0] = n_vocab
    table: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        table[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(table).encode()
    with weights.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return folder


def spell(part: tuple[Any, ...]) -> dict[str, Any]:
    """Write one part of a rule as tokenizer.json has it."""
    if part[0] == "digits":
        return {"type": "Digits", "individual_digits": part[1]}
    if part[0] == "bytes":
        return {
            "type": "ByteLevel",
            "add_prefix_space": part[1],
            "trim_offsets": True,
            "use_regex": part[2],
        }
    return {
        "type": "Split",
        "pattern": {"Regex": part[1]},
        "behavior": part[2],
        "invert": part[3],
    }


@pytest.mark.parametrize("name", sorted(NAMES.values()))
def test_every_known_splitter_is_the_engines(tmp_path: Path, name: str) -> None:
    """Each name of the table, on a small vocabulary: 0 of 400 fuzz texts differ."""
    folder = with_splitter(CHECKPOINTS / "linear-bf16", tmp_path / "checkpoint", name)
    assert mismatches(folder, tmp_path / "m.gguf", list(fuzz(400, seed=len(name)))) == []


@pytest.mark.model
@pytest.mark.parametrize("name", sorted(NAMES.values()))
def test_every_known_splitter_is_the_engines_with_many_merges(
    tmp_path: Path, many_merges: Path, name: str
) -> None:
    """Each name of the table, on a vocabulary where every wrong cut shows: 0 of 600 differ."""
    folder = with_splitter(many_merges, tmp_path / "checkpoint", name)
    assert mismatches(folder, tmp_path / "m.gguf", list(fuzz(600, seed=7))) == []


def without_merges(folder: Path) -> Path:
    """Make a checkpoint whose tokenizer is the 256 bytes and nothing else."""
    shutil.copytree(CHECKPOINTS / "linear-bf16", folder)
    path = folder / "tokenizer.json"
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    merged = {"".join(pair) for pair in value["model"]["merges"]}
    value["model"]["vocab"] = {t: i for t, i in value["model"]["vocab"].items() if t not in merged}
    value["model"]["merges"] = []
    free = max(value["model"]["vocab"].values()) + 1  # where the library puts tokens it is given
    outside = [
        row for row in value["added_tokens"] if row["content"] not in value["model"]["vocab"]
    ]
    for i, row in enumerate(outside):
        row["id"] = free + i
    path.write_text(json.dumps(value), encoding="utf-8")
    return folder


def test_a_tokenizer_without_merges_loads(tmp_path: Path) -> None:
    """Bytes alone are a vocabulary: the engine reads the empty list of merges as one of strings."""
    folder = without_merges(tmp_path / "checkpoint")
    assert mismatches(folder, tmp_path / "m.gguf", list(fuzz(50, seed=3))) == []


def test_special_and_added_tokens_inside_text(tmp_path: Path) -> None:
    """Added tokens are one id in both, wherever they stand."""
    texts = [
        "<|im_start|>user\nMarrow Island<|im_end|>\n",
        "xMarrow Islandx Marrow  Island",
        "<|begin|><|stop|><|im_start|",
        "[PAD380] 12<|im_end|>34",
    ]
    folder = CHECKPOINTS / "llama3-untied-sharded-bf16"
    # An unused token's name is ordinary text in the source, and must be for the engine.
    assert mismatches(folder, tmp_path / "m.gguf", texts, special=True) == []


@pytest.mark.model
def test_the_fuzz_set_tells_all_splitters_apart(tmp_path: Path, many_merges: Path) -> None:
    """The comparison means something: any two rules differ on it."""
    texts = list(fuzz(600, seed=7))
    found = {}
    for name in NAMES.values():
        folder = with_splitter(many_merges, tmp_path / name, name)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        found[name] = [tuple(tokenizer.encode(text).ids) for text in texts]
    assert len({tuple(ids) for ids in found.values()}) == len(NAMES)
    lost = sum(a != b for a, b in zip(found["smollm"], found["gpt-2"], strict=True))
    assert lost >= 20  # what forgetting the Digits part would do


@pytest.mark.model
def test_a_real_model_through_gguf_and_back(
    tmp_path: Path, smollm2: Path, smollm2_gguf: Path
) -> None:
    """SmolLM2 rebuilt as a checkpoint and converted again: 0 of 600 fuzz texts differ, from either."""
    folder, out = smollm2, tmp_path / "m.gguf"
    texts = list(fuzz(600, seed=0))
    assert mismatches(folder, out, texts) == []
    one, two = (LlamaCppEngine(p, EngineSettings(n_gpu_layers=0)) for p in (smollm2_gguf, out))
    special = [*texts, "<|im_start|>user\nHi 2024<|im_end|>\n<|im_start|>assistant\n"]
    for text in special:
        expected = one.tokenize(text, special=True, add_bos=True)
        assert two.tokenize(text, special=True, add_bos=True) == expected
    assert one.vocab().end_ids == two.vocab().end_ids
    assert one.model.chat_template == two.model.chat_template


def test_the_engine_stops_at_every_end_and_prints_added_tokens(tmp_path: Path) -> None:
    """Ends whose text no engine knows are ends all the same; an added token prints as its text."""
    folder = tmp_path / "checkpoint"
    shutil.copytree(CHECKPOINTS / "llama3-untied-sharded-bf16", folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 0, 2, 3]}')
    out = tmp_path / "m.gguf"
    convert(ConvertOptions(folder, out, "q8_0"))
    engine = LlamaCppEngine(out, EngineSettings(n_gpu_layers=0))
    vocab = engine.vocab()
    island = engine.tokenize("Marrow Island", special=False, add_bos=False)
    engine.close()
    assert {0, 1, 2, 3} <= vocab.end_ids
    assert vocab.add_bos
    assert vocab.bos_id == 0
    assert len(island) == 1
    assert vocab.piece(island[0]) == b"Marrow Island"
