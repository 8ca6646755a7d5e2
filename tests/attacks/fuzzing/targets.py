"""One target for each reader: it takes any bytes, and may raise only what the reader promises.

Any other exception, five seconds of work, or a gigabyte of memory is a finding. A target returns
whether the reader gave a value; what it then says is held against the input.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from fuzzing import builders, forge, mutate

from edgellm.errors import (
    ConvertError,
    ModelError,
    SnapshotError,
    TemplateError,
    UsageError,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

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


def _file(name: str, data: bytes) -> Path:
    """Write the input where it can be read, for its owner alone."""
    path = builders.scratch() / name
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)
    return path


def _within(data: bytes, offset: int, n_bytes: int) -> None:
    """Check that a reader's numbers stay inside the file."""
    if not 0 <= offset <= offset + n_bytes <= len(data):
        raise AssertionError(f"{n_bytes} bytes at {offset} of {len(data)} were believed")


def read_gguf(data: bytes) -> bool:
    """Read header and model facts of a GGUF file, and look at every value."""
    from edgellm.formats.gguf import read_header
    from edgellm.formats.gguf_model import model_info

    path = _file("fuzz.gguf", data)
    try:
        header = read_header(path)
    except ModelError:
        return False
    for tensor in header.tensors:
        _within(data, header.data_start + tensor.offset, tensor.n_bytes)
    for value in header.metadata.values():
        if not isinstance(value, (bool, int, float, str)):
            list(value[:1000])
    try:
        facts = model_info(header, path)
    except ModelError:
        return False
    json.dumps(facts.to_wire())
    return True


def read_safetensors(data: bytes) -> bool:
    """Read a safetensors header; its tensors lie in the file, one behind the other."""
    from edgellm.formats.safetensors import read_header

    try:
        header = read_header(_file("fuzz.safetensors", data))
    except ModelError:
        return False
    end = None
    for tensor in header.tensors:
        _within(data, tensor.offset, tensor.n_bytes)
        if end not in {None, tensor.offset}:
            raise AssertionError(f"{tensor.name!r} does not follow the tensor before it")
        end = tensor.offset + tensor.n_bytes
    return True


@cache
def _checkpoint() -> Path:
    folder = builders.scratch() / "checkpoint"
    shutil.copytree(builders.CHECKPOINTS / "linear-bf16", folder)
    for shadow in ("chat_template.jinja", "logits.npz"):
        (folder / shadow).unlink()
    return folder


def read_checkpoint(data: bytes) -> bool:
    """Plan the conversion of a checkpoint one file of which is the input."""
    from edgellm.converters.plan import make_plan

    if not data:
        return False
    folder = _checkpoint()
    path = folder / builders.CHECKPOINT_FILES[data[0] % len(builders.CHECKPOINT_FILES)]
    before = path.read_bytes() if path.exists() else None
    _file(f"checkpoint/{path.name}", data[1:])
    try:
        plan = make_plan(folder, "q8_0")
        if plan.n_bytes < len(plan.head):
            raise AssertionError("the plan is shorter than its head")
    except (ConvertError, ModelError):
        return False
    finally:
        if before is None:
            path.unlink()
        else:
            path.write_bytes(before)
    return True


def read_tokenizer(data: bytes) -> bool:
    """Read a `tokenizer.json`; each row of the embedding gets one text."""
    from edgellm.converters.tokenizer import read_vocabulary

    folder = builders.scratch() / "tokenizer"
    folder.mkdir(exist_ok=True)
    _file("tokenizer/tokenizer.json", data)
    n_vocab = 384
    try:
        vocabulary = read_vocabulary(folder, n_vocab)
    except (ConvertError, ModelError):
        return False
    if not len(vocabulary.texts) == len(vocabulary.kinds) == n_vocab:
        raise AssertionError(f"{len(vocabulary.texts)} texts for {n_vocab} ids")
    return True


def read_template(data: bytes) -> bool:
    """Compile a chat template and render a conversation with it."""
    from edgellm.core import Message
    from edgellm.prompt.template import make_prompter

    messages = [Message("system", "Be brief."), Message("user", "1 {{ 2 }} <s>\n" * 5)]
    messages += [Message("assistant", "\U0001f642 yes"), Message("user", "")]
    try:
        prompter = make_prompter(data.decode("utf-8", "replace"), bos_text="<s>", eos_text="</s>")
        prompter.render(messages).encode("utf-8", "surrogatepass")
    except TemplateError as err:
        if "\n" in err.message:
            raise AssertionError("an error of more than one line") from err
        _not_for_want_of_memory(err)
        return False
    return True


def _not_for_want_of_memory(err: BaseException) -> None:
    """Raise again what an error stands for when that is memory: bounds must come first."""
    cause: BaseException | None = err
    while cause is not None:
        if isinstance(cause, MemoryError):
            raise cause
        cause = cause.__cause__


def read_snapshot(data: bytes) -> bool:
    """Read a snapshot: as it is, or, where the first byte is odd, with all checksums made right."""
    from edgellm.store.read import read_info, read_snapshot

    is_odd = bool(data) and data[0] & 1
    data = forge.with_checksums(data[1:]) if is_odd else data[1:]
    path = _file("fuzz.ekv", data)
    try:
        read_info(path)
        snapshot = read_snapshot(path)
    except SnapshotError:
        return False
    if snapshot.n_bytes != len(data) or len(snapshot.token_ids) != 4 * snapshot.state.n_tokens:
        raise AssertionError(f"{len(data)} bytes were taken for {snapshot.n_bytes}")
    for part in snapshot.state.parts:
        for section in part.sections:
            section.rows.sum()
    return True


def read_wire(data: bytes) -> bool:
    """Read JSON as each value that crosses a pipe; what is read can be written and read again."""
    from edgellm import core

    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError):
        return False
    n_read = 0
    readers = (core.event_from_wire, core.Request.from_wire, core.ModelInfo.from_wire)
    for read in readers:
        try:
            made = read(value)
        except UsageError:
            continue
        again = type(made).from_wire(json.loads(json.dumps(made.to_wire())))
        if again != made:
            raise AssertionError(f"{made} comes back as {again}")
        n_read += 1
    return n_read > 0


def read_prompt(data: bytes) -> bool:
    """Take a prompt from a file, from stdin, and as the turns of a chat."""
    from edgellm.cli.inputs import one_prompt, read_text
    from edgellm.cli.lines import PipedLines, read_history, read_turn

    path = _file("prompt.txt", data)
    read_history(path)
    n_read = 0
    for take in (
        partial(read_text, path),
        partial(one_prompt, None, None, path),
        partial(one_prompt, None, None, None, stdin=io.TextIOWrapper(io.BytesIO(data))),
        partial(_turns, lambda: PipedLines(io.BytesIO(data)), read_turn),
    ):
        try:
            text = take()
        except UsageError:
            continue
        n_read += 1
        if text is not None:
            text.encode("utf-8")
    return n_read > 0


def _turns(open_lines: Callable[[], Any], read_turn: Callable[[Any], str | None]) -> str:
    lines = open_lines()
    turns = []
    while (turn := read_turn(lines)) is not None:
        turns.append(turn)
    return "".join(turns)


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
    "gguf": Target(read_gguf, builders.gguf_files, mutate.edit_gguf),
    "safetensors": Target(read_safetensors, builders.safetensors_files, mutate.edit_safetensors),
    "checkpoint": Target(
        read_checkpoint,
        builders.checkpoint_inputs,
        mutate.edit_checkpoint(_CONFIG_WORDS + _TOKENIZER_WORDS),
        max_bytes=80 << 10,
    ),
    "tokenizer": Target(
        read_tokenizer,
        builders.tokenizer_files,
        mutate.edit_json(_TOKENIZER_WORDS),
    ),
    "template": Target(
        read_template,
        builders.templates,
        mutate.edit_bytes(_TEMPLATE_WORDS),
        max_bytes=4 << 10,
        packages=("edgellm", "jinja2"),
    ),
    "snapshot": Target(read_snapshot, forge.snapshot_inputs, forge.edit_snapshot),
    "wire": Target(
        read_wire,
        builders.wire_values,
        mutate.edit_json(("token", "done", "type", "seed", "messages", "user", "local", "stop")),
    ),
    "prompt": Target(
        read_prompt,
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


# What the fuzzer itself is tested with; `all` does not mean them.
FAULTS = {
    f"fault-{kind}": Target(read, lambda: [b"a"], mutate.edit_bytes((b"!",)))
    for kind, read in (("error", _fail), ("hang", _hang), ("memory", _hoard))
}
