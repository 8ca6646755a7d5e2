"""The largest inputs a reader takes, in their worst shapes: bounded in time and memory all the same.

Small inputs cannot show what grows with the length. Each runs in a process under the fuzzer's limits,
5 s of CPU and 1 GiB more memory.
"""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

FUZZ = Path(__file__).with_name("fuzz.py")
MANY = 1_000_000


def _string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _gguf(n_tensors: int, n_pairs: int, rows: bytes) -> bytes:
    arch = _string(b"general.architecture") + struct.pack("<I", 8) + _string(b"llama")
    return struct.pack("<4sIQQ", b"GGUF", 3, n_tensors, n_pairs + 1) + arch + rows


def _keys(n: int) -> bytes:
    return _gguf(0, n, b"".join(_string(b"%x" % i) + struct.pack("<IB", 0, 0) for i in range(n)))


def _tensors(n: int) -> bytes:
    rows = (_string(b"%x" % i) + struct.pack("<IQIQ", 1, 8, 0, i * 32) for i in range(n))
    return _gguf(n, 0, b"".join(rows))


def _vocabulary(n: int) -> bytes:
    """Return a model whose numbers agree with each other, up to a vocabulary of `n` tokens."""
    numbers = {b"block_count": 1, b"context_length": 64, b"embedding_length": 32}
    numbers |= {b"attention.head_count": 4, b"feed_forward_length": 64}
    rows = [_string(b"llama." + k) + struct.pack("<II", 4, v) for k, v in numbers.items()]
    rows.append(_string(b"tokenizer.ggml.model") + struct.pack("<I", 8) + _string(b"gpt2"))
    words = b"".join(_string(b"%x" % i) for i in range(n))
    rows.append(_string(b"tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, n) + words)
    kinds = struct.pack("<IIQ", 9, 5, n) + struct.pack("<i", 1) * n
    rows.append(_string(b"tokenizer.ggml.token_type") + kinds)
    embedding = _string(b"token_embd.weight") + struct.pack("<IQQIQ", 2, 32, n, 8, 0)
    head = _gguf(1, len(rows), b"".join(rows) + embedding)
    return head + bytes(-len(head) % 32) + bytes(34 * n)


def _safetensors(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _json(inner: bytes) -> bytes:
    return b'{"a":[' + inner + b"[]]}"


LARGE: dict[str, tuple[str, Callable[[], bytes]]] = {
    "metadata keys": ("gguf", lambda: _keys(MANY)),
    "metadata keys, as many as are read": ("gguf", lambda: _keys(65_000)),
    "tensors": ("gguf", lambda: _tensors(MANY)),
    "tensors, as many as are read": ("gguf", lambda: _tensors(65_000)),
    "tokens": ("model", lambda: _vocabulary(2 * MANY)),
    "more tokens": ("model", lambda: _vocabulary(4 * MANY)),
    "shards of nothing": ("safetensors", lambda: _safetensors(_json(b"[]," * 30_000_000))),
    "lists": ("tokenizer", lambda: _json(b"[]," * 30_000_000)),
    "lists, as many as are read": ("tokenizer", lambda: _json(b"[]," * 1_500_000)),
    "numbers": ("tokenizer", lambda: _json(b"1e1," * 3_000_000)),
    "wide text": ("tokenizer", lambda: b'{"a":"\xf0\x9f\x98\x80' + b"a" * (63 << 20) + b'"}'),
    "wider text": ("tokenizer", lambda: b'{"a":"\xf0\x9f\x98\x80' + b"a" * (200 << 20) + b'"}'),
    "a large vocabulary": (
        "tokenizer",
        lambda: b'{"a":{' + b",".join(b'"%x":1' % i for i in range(3_000_000)) + b"}}",
    ),
    "pieces of nothing": ("sentencepiece", lambda: b"\n\0" * (30 << 20)),
    "pieces, as many as are read": ("sentencepiece", lambda: b"\n\x03\n\x01a" * 500_000),
    "fields of a piece": ("sentencepiece", lambda: b"\n\x80\x80\x80\x10" + b"\x18\1" * (16 << 20)),
    "printed values": ("template", lambda: b"{{a}}" * 104_000),
    "printed values, as many as are read": ("template", lambda: b"{{a}}" * 26_200),
    "a long list": ("template", lambda: b"{{[" + b"1," * 65_000 + b"]}}"),
    "a long sum": ("template", lambda: b"{{" + b"a+" * 65_000 + b"a}}"),
    "branches": ("template", lambda: b"{%if a%}{%endif%}" * 7_700),
    "deep branches": ("template", lambda: b"{%if a%}" * 16_000),
    "an open tag and blanks": ("template", lambda: b" " * 60_000 + b"{%-" + b" " * 60_000),
}
# One of each kind in the default tests, which may take a minute in all; the rest with `-m full`.
LESS_TELLING = (
    *("tensors", "more tokens", "shards of nothing", "numbers", "wide text", "wider text"),
    *("lists, as many as are read", "a long sum", "branches", "deep branches"),
)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.full] if n in LESS_TELLING else []) for n in LARGE],
)
def test_large_inputs_take_bounded_time_and_memory(name: str, tmp_path: Path):
    """Read or refused, within 5 s of CPU and 1 GiB."""
    reader, make = LARGE[name]
    path = tmp_path / "large"
    path.write_bytes(make())
    command = [sys.executable, str(FUZZ), reader, "--replay", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    path.unlink()
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr[-1500:]}"


def test_rows_without_a_token_are_bounded(tmp_path: Path):
    """An embedding of millions of rows costs a file of its size, and may not cost memory tenfold."""
    from edgellm.converters.spec import Config, read_spec
    from edgellm.errors import ConvertError

    values: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], "hidden_size": 2}
    values |= dict.fromkeys(("num_attention_heads", "num_hidden_layers", "intermediate_size"), 1)
    values |= {"max_position_embeddings": 64, "vocab_size": 1 << 21}
    with pytest.raises(ConvertError, match="vocab_size is '2097152'"):
        read_spec(Config(values, tmp_path))
