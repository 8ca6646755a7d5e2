"""The tokenizer of a converted file gives the ids of the `tokenizers` library, on hostile text too."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer

import edgellm
from edgellm.engines.base import EngineSettings
from edgellm.engines.llamacpp import LlamaCppEngine
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
    convert(ConvertOptions(folder, out, "q8_0", overwrite=True, prove=False))
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
