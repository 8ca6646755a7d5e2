"""Whole, small files of every format a reader here takes: what fuzzing starts from.

Each function gives the bytes of files that the reader accepts, so that a mutation starts deep
inside. The field samples add files that are wrong in ways people met.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[2]
CHECKPOINTS = TESTS / "data" / "checkpoints"
SCRATCH_VARIABLE = "EDGELLM_FUZZ_SCRATCH"
_MAX_SAMPLE_BYTES = 64 << 10
# The files of a checkpoint folder that are read before its weights; a checkpoint input's first byte
# says which of them the rest of it replaces.
CHECKPOINT_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "README.md",
)


def memory_folder() -> Path | None:
    """Return where files lie in memory, or None where the system has no such place."""
    memory = Path("/dev/shm")  # noqa: S108  # what is made in it is private
    return memory if memory.is_dir() else None


@cache
def scratch() -> Path:
    """Return this process's folder for the file under test.

    It lies in the fuzzer's own, which outlives a process that is killed, or goes with the process.
    """
    given = os.environ.get(SCRATCH_VARIABLE)
    folder = tempfile.mkdtemp(prefix="edgellm-fuzz-", dir=given or memory_folder())
    if not given:
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@cache
def field_samples() -> Path:
    """Write the field samples and return their folder."""
    folder = scratch() / "field"
    folder.mkdir()
    generator = folder / "gen_inputs.py"
    generator.write_bytes((TESTS / "field" / "gen_inputs.py").read_bytes())
    command = [sys.executable, generator.name]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


def samples(pattern: str) -> list[bytes]:
    """Return the field samples of that name that are small enough to be mutated often."""
    found = sorted(path for path in field_samples().glob(pattern) if path.is_file())
    contents = [path.read_bytes() for path in found]
    return [content for content in contents if len(content) <= _MAX_SAMPLE_BYTES]


def _string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _pair(key: str, kind: int, payload: bytes) -> bytes:
    return _string(key.encode()) + struct.pack("<I", kind) + payload


def _array(kind: int, items: list[bytes]) -> bytes:
    return struct.pack("<IQ", kind, len(items)) + b"".join(items)


def gguf_files() -> list[bytes]:
    """Return GGUF files: one with every kind of value, and one that names a hybrid memory."""
    whole = {
        "block_count": 1,
        "context_length": 64,
        "embedding_length": 32,
        "attention.head_count": 4,
        "attention.sliding_window": 8,
    }
    pairs = [
        _pair("general.architecture", 8, _string(b"llama")),
        _pair("general.alignment", 4, struct.pack("<I", 32)),
        *(_pair(f"llama.{key}", 4, struct.pack("<I", n)) for key, n in whole.items()),
        _pair("llama.attention.head_count_kv", 9, _array(5, [struct.pack("<i", 2)])),
        _pair("llama.rope.freq_base", 6, struct.pack("<f", 1e4)),
        _pair("llama.vocab_size", 10, struct.pack("<Q", 3)),
        _pair("general.name", 8, _string("tiny \u2713".encode())),
        _pair("tokenizer.ggml.add_bos_token", 7, b"\1"),
        _pair("tokenizer.ggml.tokens", 9, _array(8, [_string(t) for t in (b"a", b"\xff", b"c")])),
        _pair("tokenizer.ggml.scores", 9, _array(6, [struct.pack("<f", 0.5)] * 3)),
        _pair("tokenizer.ggml.flags", 9, _array(7, [b"\0", b"\1"])),
        _pair("tokenizer.chat_template", 8, _string(b"{{ messages[0].content }}")),
    ]
    tensors = [("token_embd.weight", (32, 3), 0, 384), ("blk.0.attn_q.weight", (32, 4), 8, 136)]
    hybrid = [*pairs[:7], _pair("llama.ssm.inner_size", 4, struct.pack("<I", 16))]
    return [_gguf(pairs, tensors), _gguf(hybrid, tensors[:1]), _gguf(pairs[:1], [])]


def lora_files() -> list[bytes]:
    """Return LoRA adapters for the first of `gguf_files`: with every kind of tensor, and without."""
    pairs = [
        _pair("general.type", 8, _string(b"adapter")),
        _pair("general.architecture", 8, _string(b"llama")),
        _pair("adapter.type", 8, _string(b"lora")),
        _pair("adapter.lora.alpha", 6, struct.pack("<f", 16.0)),
    ]
    name = "blk.0.attn_q.weight"
    pair = [(f"{name}.lora_a", (32, 2), 8, 68), (f"{name}.lora_b", (2, 4), 0, 32)]
    norm = ("blk.0.attn_norm.weight", (32,), 0, 128)
    half = [(f"{name}.lora_a", (32, 1), 1, 64), (f"{name}.lora_b", (1, 4), 1, 8)]
    return [_gguf(pairs, [*pair, norm]), _gguf(pairs[:3], half), _gguf(pairs, [norm])]


def _gguf(pairs: list[bytes], tensors: list[tuple[str, tuple[int, ...], int, int]]) -> bytes:
    rows, offset = [], 0
    for name, shape, kind, n_bytes in tensors:
        dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        rows.append(_string(name.encode()) + dims + struct.pack("<IQ", kind, offset))
        offset += -(-n_bytes // 32) * 32
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(pairs)) + b"".join(pairs + rows)
    return head + bytes(-len(head) % 32) + bytes(offset)


def model_files() -> list[bytes]:
    """Return whole models: the field samples' control, and what differs from it in one place."""
    return samples("gguf/00_*.gguf") + samples("gguf/*.gguf")


def sentencepiece_files() -> list[bytes]:
    """Return `tokenizer.model` files: protocol buffers of pieces, a trainer and a normaliser."""
    pieces = [(b"<unk>", 2), (b"<s>", 3), (b"</s>", 3)]
    pieces += [(b"<0x%02X>" % byte, 6) for byte in range(256)]
    pieces += [(text.encode(), 1) for text in ("\u2581", "a", "\u2581a", "aa", "\ud55c")]
    rows = b"".join(
        _field(1, _field(1, text) + b"\x15" + struct.pack("<f", -n) + b"\x18" + bytes([kind]))
        for n, (text, kind) in enumerate(pieces)
    )
    trainer = b"\x18\x02" + b"\x98\x02\x01"  # model_type BPE, byte_fallback
    normalizer = _field(1, b"identity") + b"\x20\x00"  # remove_extra_whitespaces off
    whole = rows + _field(2, trainer) + _field(3, normalizer)
    few = rows[:200] + _field(2, trainer) + _field(3, normalizer)
    return [whole, few]


def _field(number: int, content: bytes) -> bytes:
    """Return a length-delimited field of a protocol buffer."""
    length, left = b"", len(content)
    while left >= 128:
        length, left = length + bytes([left & 127 | 128]), left >> 7
    return bytes([number << 3 | 2]) + length + bytes([left]) + content


def listings() -> list[bytes]:
    """Return what the hub says of a repository."""
    rows = [
        {"rfilename": name, "size": 9, "blobId": "a" * 40}
        for name in ("config.json", "tokenizer.json", "README.md", "modeling.py", "x/config.json")
    ]
    large = {"rfilename": "model.safetensors", "size": 99, "blobId": "b" * 40}
    large["lfs"] = {"sha256": "c" * 64, "size": 99, "pointerSize": 9}
    return [json.dumps({"sha": "d" * 40, "siblings": [*rows, large]}).encode()]


def safetensors(table: Any, data: bytes) -> bytes:
    """Return a safetensors file of a header and its data."""
    text = json.dumps(table).encode()
    return struct.pack("<Q", len(text)) + text + data


def safetensors_files() -> list[bytes]:
    """Return safetensors files: none, one and several tensors."""
    table = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "BF16", "shape": [5], "data_offsets": [24, 34]},
        "c": {"dtype": "F4", "shape": [2, 2, 1], "data_offsets": [34, 36]},
        "d": {"dtype": "I64", "shape": [], "data_offsets": [36, 44]},
        "e": {"dtype": "U8", "shape": [0, 7], "data_offsets": [44, 44]},
    }
    return [safetensors(table, bytes(44)), safetensors({}, b"")]


def checkpoint_inputs() -> list[bytes]:
    """Return each file of each small checkpoint, behind the byte that names it."""
    found = []
    index = {"metadata": {"total_size": 9}, "weight_map": {"lm_head": "model.safetensors"}}
    card = b"---\nlicense: apache-2.0\n---\n# A model\n"
    more: dict[str, bytes] = {
        "added_tokens.json": b'{"<extra>": 300}',
        "special_tokens_map.json": b'{"eos_token": {"content": "</s>"}}',
        "chat_template.json": b'{"chat_template": "{{ messages[0].content }}"}',
        "model.safetensors.index.json": json.dumps(index).encode(),
        "README.md": card,
    }
    folders = [CHECKPOINTS / "linear-bf16", CHECKPOINTS / "yarn-biased-f16"]
    folders += sorted((field_samples() / "hf").iterdir())
    for folder in folders:
        for number, name in enumerate(CHECKPOINT_FILES):
            path = folder / name
            content = path.read_bytes() if path.is_file() else more.get(name)
            if content is not None and len(content) <= _MAX_SAMPLE_BYTES:
                found.append(bytes([number]) + content)
    return list(dict.fromkeys(found))


def tokenizer_files() -> list[bytes]:
    """Return `tokenizer.json` of the small checkpoints, and the field samples' own."""
    own = [path.read_bytes() for path in sorted(CHECKPOINTS.glob("*/tokenizer.json"))]
    return own + samples("tokenizer/*.json") + samples("hf/*/tokenizer.json")[:2]


def templates() -> list[bytes]:
    """Return chat templates: the families' own forms, and hostile ones."""
    turns = "(m.role == 'user') != (loop.index0 % 2 == 0)"
    families = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' }}",
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}\n",
        "{{ bos_token }}{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}",
        "{% else %}{% set rest = messages %}{% endif %}{% for m in rest %}{{ m.content | trim }}",
        "{% if " + turns + " %}{{ raise_exception('turns') }}{% endif %}{% endfor %}\n",
        "{% macro f(n) %}{% if n > 0 %}{{ f(n - 1) ~ n }}{% endif %}{% endmacro %}{{ f(9) }}\n",
        "{% set ns = namespace(v=[]) %}{% for i in range(5) %}{% set ns.v = ns.v + [i] %}",
        "{% if i == 3 %}{% break %}{% endif %}{% endfor %}{{ ns.v|tojson }}\n",
        "{{ '%s %5d' % ('a', 3) }}{{ '{:>9}'.format('x') }}{{ strftime_now('%d %b %Y') }}\n",
        "{% generation %}{{ messages|map(attribute='role')|join(', ') }}{% endgeneration %}\n",
        "{% filter replace('a', 'b') %}{{ [3, 1, 2]|sort|last }}{% endfilter %}{{ 2 ** 10 // 3 }}\n",
        "{% call(x) m() %}{{ x }}{% endcall %}{% block b scoped %}{{ loop }}{% endblock %}",
    )
    own = [text.encode() for text in "".join(families).split("\n")]
    return own + samples("templates/*.jinja")


def wire_values() -> list[bytes]:
    """Return the JSON form of every kind of value that crosses a pipe."""
    from edgellm import core

    request = core.Request((core.Message("user", "hi"),), 5, ("\n",), core.Sampling(seed=1))
    events = (
        core.Token(1, "a"),
        core.Switch("local", "cloud", "memory", 3),
        core.Warn("careful"),
        core.Failure("does_not_fit", "too big", 4),
        core.Done("text", "stop", seed=3),
    )
    model = core.ModelInfo("p", "llama", "n", 9, 9, 1, 64, 9, 32, 4, 2, {"f32": 9})
    values = [request.to_wire(), *map(core.event_to_wire, events), model.to_wire()]
    return [json.dumps(value).encode() for value in values]


def prompts() -> list[bytes]:
    """Return prompt files: plain, with marks of other encodings, and the field samples'."""
    own = [
        b"hello\n",
        b"\xef\xbb\xbfhello\r\n",
        "\ud558\ub098 \U0001f642".encode(),
        b"\xff\xfeh\0",
        b'"""\na\n"""\nb\\\nc\n',
    ]
    return own + samples("prompts/*")
