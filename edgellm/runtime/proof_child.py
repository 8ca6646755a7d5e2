"""The proof itself, in a process of its own: an engine that aborts, or a pattern without end, ends it alone.

Reads its task from the command line, says on stdout what it is doing, one JSON object a line, and last
what it found. See `proof.py`, which starts it.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from edgellm.engines.base import EngineSettings
from edgellm.engines.llamacpp.vocab_only import VocabOnly
from edgellm.errors import DoesNotFit, EdgeLLMError, EngineUnavailable, VerifyFailed
from edgellm.formats.gguf import read_header
from edgellm.runtime.proof import DECODING, not_decoded
from edgellm.runtime.proof_roles import compare_roles, read_roles
from edgellm.runtime.proof_templates import check_end_of_turn, compare_templates
from edgellm.runtime.proof_texts import around_added, around_merges, texts
from edgellm.runtime.proof_vocabulary import compare_engines, compare_kinds, compare_pieces
from edgellm.runtime.reference import GgufReference, open_reference
from edgellm.runtime.source_tokens import read_source_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from edgellm.engines.llamacpp.vocabulary import Vocabulary
    from edgellm.runtime.reference import Reference
    from edgellm.runtime.source_tokens import SourceTokens

_SHOWN_CHARS, _SHOWN_IDS = 160, 8
_N_PIECES: Final = 4096  # tokens whose text is glued together
_LEAST_SHARE, _LEAST_TEXTS = 0.5, 100  # of the texts made; below either, the number is told
_USER_DEFINED: Final = 4  # of tokenizer.ggml.token_type


def main(task: str) -> int:
    """Do what a task says; return 0 when the last line tells the outcome."""
    wanted: dict[str, Any] = json.loads(task)
    try:
        found = prove(
            Path(wanted["gguf"]),
            Path(wanted["source"]),
            wanted["n"],
            wanted["seed"],
            decode=wanted["decode"],
        )
    except EngineUnavailable as err:
        found = {"skipped": err.message}
    except EdgeLLMError as err:
        found = {"failed": err.message}
    _say(found)
    return 0


def _say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def prove(gguf: Path, source: Path, n_texts: int, seed: int, *, decode: bool) -> dict[str, Any]:
    """Hold a written file against its source; return what goes into a `Proof`.

    Without `decode` the weights are not loaded.

    Raises:
        VerifyFailed: they differ; says where.
        EngineUnavailable: there is nothing to hold against.
    """
    _say({"stage": "opening the written file"})
    metadata = read_header(gguf).metadata
    if metadata.get("tokenizer.ggml.model", "none") in ("none", "no_vocab"):
        return {"skipped": "the file has no tokenizer"}
    with VocabOnly(gguf) as engine:
        n_compared, n_talks, warnings = _compare(engine, source, metadata, n_texts, seed)
    found = {"strings": n_compared, "conversations": n_talks, "decoded": False}
    if not decode:
        return {**found, "warnings": warnings}
    _say({"stage": DECODING, **found, "warnings": warnings})
    problem = _decode_problem(gguf, source)
    warnings += [not_decoded(problem)] if problem else []
    return {**found, "decoded": not problem, "warnings": warnings}


def _compare(
    engine: Vocabulary, source: Path, metadata: Mapping[str, Any], n_texts: int, seed: int
) -> tuple[int, int, list[str]]:
    """Return how many texts and conversations are the same in both, and what to warn of.

    Raises:
        VerifyFailed: something differs.
    """
    _say({"stage": "opening the source's tokenizer"})
    vocab = engine.describe()
    reference = open_reference(
        source,
        prefixed=bool(metadata.get("tokenizer.ggml.add_space_prefix", False)),
        control=vocab.spellings,
        found_first=_found_first(metadata),
    )
    _say({"stage": "comparing tokens"})
    if isinstance(reference, GgufReference):
        compare_engines(engine, reference.vocabulary)
        n_compared, warnings = compare_tokens(engine, reference, n_texts, seed)
    else:
        tokens = read_source_tokens(source)
        roles = read_roles(source, tokens)
        compare_kinds(metadata, tokens, roles)
        compare_pieces(engine, vocab, tokens, list(metadata["tokenizer.ggml.token_type"]))
        n_compared, warnings = compare_tokens(engine, reference, n_texts, seed, tokens)
    _say({"stage": "comparing chat templates"})
    n_talks = compare_templates(source, metadata, vocab)
    if not isinstance(reference, GgufReference):
        warnings += compare_roles(metadata, vocab, tokens, roles)
    return n_compared, n_talks, [*warnings, *check_end_of_turn(metadata, engine, vocab)]


def _found_first(metadata: Mapping[str, Any]) -> list[str]:
    tokens, kinds = (metadata.get(f"tokenizer.ggml.{key}", ()) for key in ("tokens", "token_type"))
    pairs = zip(tokens, kinds, strict=False)
    return [text for text, kind in pairs if kind == _USER_DEFINED]


def compare_tokens(
    engine: Vocabulary,
    reference: Reference,
    n_texts: int,
    seed: int,
    source: SourceTokens | None = None,
) -> tuple[int, list[str]]:
    """Return how many texts gave the same ids in both, and a warning where most could not be held.

    Raises:
        VerifyFailed: one did not; shows the first, escaped.
    """
    n_made = n_compared = n_different = 0
    first = ""
    for text, special, around in _cases(engine, reference, n_texts, seed, source):
        n_made += 1
        if not reference.comparable(text, special=special):
            continue
        meant = reference.encode(text, special=special, around=around)
        found = engine.tokenize(text, special=special, add_bos=around)
        n_compared += 1
        if meant != found:
            n_different += 1
            first = first or _difference(text, meant, found)
    if n_different:
        raise VerifyFailed(
            f"the written tokenizer differs from the source's in {n_different} of {n_compared} "
            f"texts: {first}"
        )
    if n_compared >= max(n_made * _LEAST_SHARE, min(n_made, _LEAST_TEXTS)):
        return n_compared, []
    few = f"only {n_compared} of {n_made} texts could be compared"
    return n_compared, [f"{few}: the others hold what engines are known to read otherwise"]


def _cases(
    engine: Vocabulary,
    reference: Reference,
    n_texts: int,
    seed: int,
    source: SourceTokens | None,
) -> Iterator[tuple[str, bool, bool]]:
    """Yield (text, whether control tokens are read, whether begin and end are added)."""
    added, lead, reads = list(reference.added), reference.lead, reference.reads_control
    pieces = _pieces(engine)
    if reads:
        yield lead, True, True
    for i, text in enumerate(texts(n_texts, pieces, seed)):
        around = i % 8 == 0
        if reads:
            yield lead + text, True, around
        if i % 4 == 0 or not reads:
            yield text, False, around and not reads
    if source is not None:
        for text in around_merges(source.merges, pieces, source.read, seed):
            yield lead + text, True, False
    for text in around_added(added, seed) if added else ():
        yield lead + text, True, False
        yield text, False, False


def _pieces(engine: Vocabulary) -> Sequence[str]:
    step = max(1, engine.n_tokens // _N_PIECES)
    found = (engine.piece(i).decode("utf-8", "ignore") for i in range(0, engine.n_tokens, step))
    return [text for text in found if text and "\0" not in text] or ["a"]


def _difference(text: str, meant: Sequence[int], found: Sequence[int]) -> str:
    pairs = zip(meant, found, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(meant), len(found)))
    window = slice(max(0, at - 1), at - 1 + _SHOWN_IDS)
    shown = ascii(text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "...")
    return (
        f"{shown} is {list(meant[window])} in the source and {list(found[window])} in the file, "
        f"from token {window.start} on"
    )


def _decode_problem(gguf: Path, source: Path) -> str:
    """Decode one token; return why none was, where that is no fault of the written file, or "".

    Raises:
        VerifyFailed: the engine runs a GGUF source and not the file, or a checkpoint's file.
    """
    try:
        return decode_one(gguf)
    except VerifyFailed as failure:
        if source.is_dir():
            raise
        _say({"stage": "decoding one token of the source"})
        try:
            problem = decode_one(source, "the source")
        except VerifyFailed as err:
            return f"{failure.message}, and {err.message}"
        if problem:
            return f"{failure.message}; the source could not be tried: {problem}"
        raise VerifyFailed(
            f"the engine runs the source, and not the written file: {failure.message}"
        ) from failure


def decode_one(gguf: Path, what: str = "the written file") -> str:
    """Load the whole model and decode one token; return why memory does not allow it, or "".

    Raises:
        VerifyFailed: the engine refuses it, or gives no finite numbers.
    """
    import numpy as np

    from edgellm.engines.llamacpp import LlamaCppEngine

    # One thread: threads that wait for each other on a busy machine take longer than a token.
    settings = EngineSettings(n_batch=1, n_gpu_layers=0, n_threads=1, repack=False)
    try:
        engine = LlamaCppEngine(gguf, settings)
        engine.reserve(1)
        logits = engine.decode(engine.tokenize("a", special=False, add_bos=True)[:1] or [0])
    except DoesNotFit as err:
        return err.message
    except EngineUnavailable:
        raise
    except EdgeLLMError as err:
        raise VerifyFailed(f"the engine cannot run {what}: {err.message}") from err
    if not math.isfinite(float(np.abs(logits).max())):
        raise VerifyFailed(f"the first token of {what} has logits that are not finite")
    engine.close()
    return ""
