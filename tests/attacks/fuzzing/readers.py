"""The readers as functions of any bytes, which may raise only what the reader promises.

Each writes the input where its reader looks, calls it, and returns whether it gave a value. What it
then says is held against the input.
"""

from __future__ import annotations

import io
import json
import math
import os
import shutil
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from fuzzing import builders, forge

from edgellm.errors import (
    ConvertError,
    FetchError,
    ModelError,
    ModelUnsupported,
    SnapshotError,
    TemplateError,
    UsageError,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

N_VOCAB = 384


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


def read_model(data: bytes) -> bool:
    """Check a GGUF as the engine and `info` do, and plan its copy in another type."""
    from edgellm.converters.requantize import plan_requantization
    from edgellm.formats.gguf_check import checked_model, full_kv_bytes

    path = _file("model.gguf", data)
    n_read = 0
    try:
        header, facts = checked_model(path)
        json.dumps(facts.to_wire())
        if full_kv_bytes(header, facts) < 0:
            raise AssertionError("a context of less than no bytes")
        n_read += 1
    except ModelError:
        pass
    try:
        plan = plan_requantization(path, "q8_0")
        n_read += 1
    except (ConvertError, ModelError):
        return n_read > 0
    if plan.n_bytes < len(plan.head):
        raise AssertionError("the plan is shorter than its head")
    return True


def read_lora(data: bytes) -> bool:
    """Check a LoRA adapter against a model; what passes is what the engine does not look at itself."""
    from edgellm.formats.gguf import FLOAT32, read_header
    from edgellm.formats.lora import ALPHA, TYPES, checked_lora

    model = read_header(_file("base.gguf", builders.gguf_files()[0]))
    shapes = {tensor.name: tensor.shape for tensor in model.tensors}
    try:
        header, info = checked_lora(_file("lora.gguf", data), model)
    except ModelError:
        return False
    halves = {tensor.name: tensor for tensor in header.tensors}
    for name in info.targets:
        a, b = (halves[f"{name}.lora_{end}"] for end in "ab")
        ends = (a.shape[0], b.shape[1], *a.shape[2:], *b.shape[2:])
        if ends != (*shapes[name], *(1 for _ in ends[2:])) or a.shape[1] != b.shape[0]:
            raise AssertionError(f"{a.shape} and {b.shape} were believed of {shapes[name]}")
        if not {a.type.name, b.type.name}.issubset(TYPES):
            raise AssertionError(f"{a.type.name} and {b.type.name} were believed")
    if not math.isfinite(info.alpha) or header.kinds.get(ALPHA, FLOAT32) != FLOAT32:
        raise AssertionError(f"an alpha of {info.alpha} was believed")
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
    return _vocabulary("tokenizer.json", data)


def read_sentencepiece(data: bytes) -> bool:
    """Read a `tokenizer.model` that has no tokenizer.json beside it."""
    return _vocabulary("tokenizer.model", data)


def _vocabulary(name: str, data: bytes) -> bool:
    from edgellm.converters.tokenizer import read_vocabulary

    folder = builders.scratch() / f"folder-{name}"
    folder.mkdir(exist_ok=True)
    _file(f"{folder.name}/{name}", data)
    try:
        vocabulary = read_vocabulary(folder, N_VOCAB)
    except (ConvertError, ModelError):
        return False
    if not len(vocabulary.texts) == len(vocabulary.kinds) == N_VOCAB:
        raise AssertionError(f"{len(vocabulary.texts)} texts for {N_VOCAB} ids")
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
    from edgellm.store.file.read import read_info, read_snapshot

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


def read_listing(data: bytes) -> bool:
    """Read the hub's list of a repository's files, and choose from it."""
    from edgellm.catalog.listing import read_listing, small_files, weight_files

    try:
        value = json.loads(data)
        commit, rows = value.get("sha"), value.get("siblings")
    except (ValueError, RecursionError, AttributeError):
        return False  # not an object: `answers.py` says so in its own words
    try:
        listing = read_listing(commit, rows)
        files = [*small_files(listing), *weight_files(listing, ())]
    except (FetchError, ModelUnsupported):
        return False
    for file in files:
        if os.sep in file.name or os.sep in file.digest or file.name.startswith("."):
            raise AssertionError(f"{file} would leave its folder")
    return True
