"""The table of readers under attack: where inputs come from, and how they are changed.

Any other exception, five seconds of work, or a gigabyte of memory is a finding.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fuzzing import builders, forge, mutate, readers

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

MAX_WORK_S = 5
MAX_BYTES = 1 << 30


@dataclass(frozen=True)
class Target:
    """A reader and what is needed to attack it.

    Attributes:
        read: calls the reader; returns whether it gave a value, or raises a finding.
        seeds: gives whole and broken files to start from.
        mutate: changes one of them.
        max_bytes: of an input.
        packages: what coverage guidance looks at, whole packages.
    """

    read: Callable[[bytes], bool]
    seeds: Callable[[], list[bytes]]
    mutate: Callable[[bytes, random.Random], bytes]
    max_bytes: int = 16 << 10
    packages: tuple[str, ...] = ("edgellm",)


_CONFIG_WORDS = (
    *("llama", "LlamaForCausalLM", "yarn", "llama3", "linear", "dynamic", "longrope", "default"),
    *("rope_scaling", "rope_parameters", "rope_theta", "factor", "rope_type", "head_dim", "type"),
    *("eos_token_id", "weight_map", "model.safetensors", "added_tokens_decoder", "chat_template"),
    *("quantization_config", "tie_word_embeddings", "F32", "BF16", "I8", "name", "template"),
)
_TOKENIZER_WORDS = (
    *("BPE", "WordPiece", "Unigram", "ByteLevel", "Split", "Regex", "Digits", "Sequence", "NFC"),
    *("ByteFallback", "Metaspace", "Replace", "byte_fallback", "ignore_merges", "vocab", "merges"),
    *("TemplateProcessing", "added_tokens", "special", "content", "id", "normalizer", "decoder"),
    *("pretokenizers", "normalizers", "processors", "single", "SpecialToken", "<0x0A>", "a b"),
)
_TEMPLATE_WORDS = tuple(
    word.encode()
    for word in (
        *("{% for i in range(99999) %}", "{% endfor %}", "{% if ", "{% endif %}", "{{ ", " }}"),
        *(
            "{% set x = x + x %}",
            "|tojson",
            "|join",
            "|list",
            "|sort",
            "|map(attribute='a')",
            "[1:]",
        ),
        *("{% set ns = namespace(v='a') %}", "{% set ns.v = ns.v * 9 %}", "{% macro m(x) %}"),
        *("{% endmacro %}", "{{ m(m) }}", "'%999999999d' % 1", ".format(", "__class__", "**", "~"),
        *("messages", "strftime_now('%Y')", "raise_exception('x')", "{%- generation %}", "loop"),
        *("{% filter upper %}", "|indent(9999)", "|batch(2)", "is defined", "{# ", "{% raw %}"),
        *("|groupby('role')", "|unique", "|center(99999)", "|wordwrap(1)", "|replace('', 'aa')"),
        *(".split('')", "|xmlattr", "|urlize", "{% include 'x' %}", "{% import 'x' as y %}", "\\n"),
    )
)

TARGETS = {
    "gguf": Target(readers.read_gguf, builders.gguf_files, mutate.edit_gguf),
    "model": Target(readers.read_model, builders.model_files, mutate.edit_gguf, max_bytes=64 << 10),
    "lora": Target(readers.read_lora, builders.lora_files, mutate.edit_gguf),
    "safetensors": Target(
        readers.read_safetensors, builders.safetensors_files, mutate.edit_safetensors
    ),
    "checkpoint": Target(
        readers.read_checkpoint,
        builders.checkpoint_inputs,
        mutate.edit_checkpoint(_CONFIG_WORDS + _TOKENIZER_WORDS),
        max_bytes=80 << 10,
    ),
    "tokenizer": Target(
        readers.read_tokenizer,
        builders.tokenizer_files,
        mutate.edit_json(_TOKENIZER_WORDS),
    ),
    "sentencepiece": Target(
        readers.read_sentencepiece, builders.sentencepiece_files, mutate.edit_bytes()
    ),
    "template": Target(
        readers.read_template,
        builders.templates,
        mutate.edit_bytes(_TEMPLATE_WORDS),
        max_bytes=4 << 10,
        packages=("edgellm", "jinja2"),
    ),
    "snapshot": Target(readers.read_snapshot, forge.snapshot_inputs, forge.edit_snapshot),
    "wire": Target(
        readers.read_wire,
        builders.wire_values,
        mutate.edit_json(("token", "done", "type", "seed", "messages", "user", "local", "stop")),
    ),
    "listing": Target(
        readers.read_listing,
        builders.listings,
        mutate.edit_json(("config.json", "../x", "a/b", "model.safetensors", "a.bin", "sha256")),
    ),
    "prompt": Target(
        readers.read_prompt,
        builders.prompts,
        mutate.edit_bytes(
            (b'"""', b"\\\n", b"\r\n", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xff\xfe")
        ),
    ),
}


def _fail(data: bytes) -> bool:
    if b"!" in data:
        raise KeyError("a fault")
    return True


def _hang(data: bytes) -> bool:
    while b"!" in data:
        pass
    return True


def _hoard(data: bytes) -> bool:
    return len(bytearray(2 * MAX_BYTES if b"!" in data else 1)) > 0


def _leave(data: bytes) -> bool:
    os._exit(0)


# What the fuzzer itself is tested with; `all` does not mean them.
FAULTS = {
    f"fault-{kind}": Target(read, lambda: [b"a"], mutate.edit_bytes((b"!",)))
    for kind, read in (
        ("error", _fail),
        ("hang", _hang),
        ("memory", _hoard),
        ("silence", _leave),
    )
}
