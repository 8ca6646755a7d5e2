"""Tokenizers to put on a model of zeros, from real files or trained here, and an engine that records."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import math
import random
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edgellm.engines.base import EngineSettings
from edgellm.engines.llamacpp import LlamaCppEngine
from edgellm.runtime.proof_texts import texts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
HIDDEN, HEADS, INNER = 32, 2, 32
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
_WORDS = (
    "the quick marrow island they've we'll don't IT'S Zażółć gęślą jaźń naïve façade größe Ünïcödé "
    "русский ЯЗЫК Ελλάδα 한국어 값 日本 中文 हिन्दी שלום مرحبا 👋 👨‍👩‍👧 e\u0301 n\u0303 12 123 2024 1,000 3.14 0x1F "
    "for(i=0;i<n;++i) {a[i]+=b[i]*2;} return x if y else [] // != == -> => ... ?! -- (ok) \"q\" 'r' "
    "CamelCase snake_case HTTPServer iPhone ÉCOLE éÀb straße"
)
WORDS = _WORDS.split(" ")
LETTERS = (
    *"aAbBzZéÀñÑßŽžиИв\u0412λΛώ한값日カअाש12 ",
    "e\u0301",
    "'s",
    "'LL",
    "\n",
    "  ",
    "٢",
    "Ⅷ",
    "½",
    "!",
    "_",
)


@functools.cache
def training_text() -> list[str]:
    """Return a few thousand lines, the same each time, in which any two kinds of characters meet."""
    rng = random.Random(3)
    lines = [" ".join(rng.choices(WORDS, k=12)) for _ in range(3000)]
    lines += ["".join(rng.choices(LETTERS, k=24)) for _ in range(3000)]
    return lines + [text for text in texts(2000, WORDS, 77) if "<" not in text]


class Recorder(LlamaCppEngine):
    """The real engine, keeping a digest of every row of logits that a caller gets to see."""

    def __init__(self, path: Path, settings: EngineSettings) -> None:
        super().__init__(path, settings)
        self.digests: list[str] = []

    def decode(self, tokens: Sequence[int], logits="last"):
        """Decode, and note what came out."""
        rows = super().decode(tokens, logits)
        self.digests.append(hashlib.sha256(rows.tobytes()).hexdigest())
        return rows


@pytest.fixture
def recorder() -> type[Recorder]:
    """Give the class: importlib mode has no packages to import it from."""
    return Recorder


@pytest.fixture(scope="session")
def gguf_tokenizer() -> ModuleType:
    """Give the example that spells a GGUF's tokenizer as tokenizer.json."""
    path = ROOT / "examples" / "gguf_tokenizer.py"
    spec = importlib.util.spec_from_file_location("gguf_tokenizer", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gguf_tokenizer"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def trained_bpe() -> Callable[..., dict[str, Any]]:
    """Give a function that trains a BPE tokenizer and returns its tokenizer.json.

    `pre` and `normalizer` are JSON values that text goes through in training; `byte_level` decides
    between the byte alphabet and characters with byte fallback.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    @functools.cache
    def train(n_tokens: int, pre: str, normalizer: str, *, byte_level: bool) -> str:
        tokenizer = Tokenizer(models.BPE())
        value = json.loads(tokenizer.to_str())
        value |= {"pre_tokenizer": json.loads(pre), "normalizer": json.loads(normalizer)}
        tokenizer = Tokenizer.from_str(json.dumps(value))
        trainer = trainers.BpeTrainer(
            vocab_size=n_tokens,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if byte_level else [],
            limit_alphabet=1000,
            max_token_length=12,
            show_progress=False,
        )
        tokenizer.train_from_iterator(training_text(), trainer)
        return str(tokenizer.to_str())

    def made(
        n_tokens: int, *, pre: Any = None, normalizer: Any = None, byte_level: bool = True
    ) -> dict[str, Any]:
        text = train(n_tokens, json.dumps(pre), json.dumps(normalizer), byte_level=byte_level)
        value: dict[str, Any] = json.loads(text)
        if byte_level:
            value["decoder"] = {
                "type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True,
            }  # fmt: skip
        return value

    return made


@pytest.fixture(scope="session")
def on_zeros() -> Callable[..., Path]:
    """Give a function that writes a checkpoint of zeros with some tokenizer's files."""

    def write(folder: Path, n_vocab: int, files: dict[str, Any], **config: Any) -> Path:
        folder.mkdir(parents=True)
        values = CONFIG | {"vocab_size": n_vocab} | config
        for name, value in (files | {"config.json": values}).items():
            data = value if isinstance(value, bytes) else json.dumps(value).encode()
            (folder / name).write_bytes(data)
        shapes = {"model.embed_tokens.weight": [n_vocab, HIDDEN], "model.norm.weight": [HIDDEN]}
        for name, rows, width in (
            *((f"self_attn.{x}_proj", HIDDEN, HIDDEN) for x in "qkvo"),
            *((f"mlp.{x}_proj", INNER, HIDDEN) for x in ("gate", "up")),
            ("mlp.down_proj", HIDDEN, INNER),
        ):
            shapes[f"model.layers.0.{name}.weight"] = [rows, width]
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"model.layers.0.{name}.weight"] = [HIDDEN]
        table: dict[str, Any] = {}
        end = 0
        for name, shape in shapes.items():
            begin, end = end, end + 2 * math.prod(shape)
            table[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
        text = json.dumps(table).encode()
        with (folder / "model.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + end)
        return folder

    return write
