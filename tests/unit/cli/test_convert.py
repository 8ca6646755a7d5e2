"""`edgellm convert`: flags, what is printed, exit codes; the conversion itself is a fake."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edgellm.cli import convert
from edgellm.converters.layout import Fallback
from edgellm.errors import TensorMismatch, VerifyFailed
from edgellm.runtime import conversion
from edgellm.runtime.proof import Proof

if TYPE_CHECKING:
    from typing import Any

PLAN = conversion.ConversionPlan(
    out=Path("m.gguf"),
    architecture="LlamaForCausalLM",
    type="q8_0",
    out_bytes=1_234_567,
    n_params=1_000_000,
    bits_per_weight=8.5,
    tensors=(conversion.TensorRow("a", "b", (2, 3), "q8_0", 34),),
    peak_memory_bytes=5_000_000,
    proof_memory_bytes=0,
    free_bytes=9_000_000_000,
    warnings=("the tokenizer is odd",),
)
FALLBACKS: dict[str, tuple[Fallback, ...]] = dict.fromkeys(conversion.TYPES, ()) | {
    "q4_k_m": (
        Fallback("q4_k", "q5_0", 150),
        Fallback("q6_k", "q8_0", 30),
    )
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[conversion.ConvertOptions]:
    """Replace the conversion; give the options it was asked with."""
    options: list[conversion.ConvertOptions] = []

    def plan(wanted: conversion.ConvertOptions) -> conversion.ConversionPlan:
        return dataclasses.replace(PLAN, out=wanted.out)

    def convert(
        wanted: conversion.ConvertOptions, *, progress: conversion.Progress
    ) -> conversion.ConversionResult:
        options.append(wanted)
        if wanted.src.name == "bad":
            raise TensorMismatch("blk.0 is missing", path=wanted.src)
        if wanted.src.name == "wrong":
            raise VerifyFailed("tensor a differs", path=wanted.out)
        if wanted.src.name == "stopped":
            raise KeyboardInterrupt
        for done in range(0, 101, 5):
            progress(done, 100)
        return conversion.ConversionResult(
            wanted.out,
            wanted.type,
            1_234_567,
            "ab",
            1.5,
            8.5,
            n_tensors=272,
            fallbacks=FALLBACKS[wanted.type],
            warnings=PLAN.warnings,
        )

    monkeypatch.setattr(conversion, "plan", plan)
    monkeypatch.setattr(conversion, "convert", convert)
    return options


def test_result_progress_and_next_steps(cli: Any, asked: list[Any]) -> None:
    """The result is stdout's only line; warnings, progress and the next steps are on stderr."""
    result = cli("convert", "src", "-o", "my model.gguf", "--bits", "8", "--threads", "2")
    assert result.code == 0
    assert result.out == (
        "my model.gguf: 1.2 MB, q8_0, 8.50 bits per weight, 1.5 s; "
        "tokenizer not proven: not asked for\n"
    )
    assert result.err.startswith("converting: 10 %, ")
    assert "\nwarning: the tokenizer is odd\n" in result.err
    assert "edgellm run 'my model.gguf'" in result.err
    options = asked[0]
    assert (options.src, options.out) == (Path("src"), Path("my model.gguf"))
    assert (options.type, options.n_threads, options.overwrite) == ("q8_0", 2, False)


@pytest.mark.parametrize(
    ("flags", "kind"),
    [
        (["--bits", "4"], "q4_k_m"),
        (["--type", "Q4_K_M"], "q4_k_m"),
        (["--type", "BF16"], "bf16"),
        *((["--type", name], name) for name in conversion.TYPES),
    ],
)
def test_types(cli: Any, asked: list[Any], flags: list[str], kind: str) -> None:
    """Every type that can be converted to can be asked for."""
    assert cli("convert", "src", "-o", "m.gguf", "--force", *flags).code == 0
    assert (asked[0].type, asked[0].overwrite) == (kind, True)


@pytest.mark.parametrize(
    "flags",
    [[], ["--bits", "5"], ["--bits", "4", "--type", "q4_0"], ["--type", "q3_K"], ["--bits", "x"]],
)
def test_bad_types(cli: Any, asked: list[Any], flags: list[str]) -> None:
    """No type, two types or an unknown one: exit 2 before anything is read."""
    result = cli("convert", "src", "-o", "m.gguf", *flags)
    assert (result.code, result.out, asked) == (2, "", [])
    assert "Value error" not in result.err


def test_dry_run_writes_nothing(cli: Any, asked: list[Any]) -> None:
    """--dry-run prints the plan, its size to the byte."""
    result = cli("convert", "src", "-o", "m.gguf", "--bits", "8", "--dry-run")
    assert (result.code, asked) == (0, [])
    assert "1,234,567 bytes" in result.out
    [plan] = cli("convert", "src", "-o", "m.gguf", "--bits", "8", "--dry-run", "--json").lines
    assert (plan["type"], plan["weight_type"], plan["out_bytes"]) == ("plan", "q8_0", 1_234_567)


def test_dry_run_tells_the_memory_of_the_proof(
    cli: Any, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apart from the conversion's own; nothing is said where nothing will be proven."""
    flags = ("convert", "src", "-o", "m.gguf", "--bits", "8", "--dry-run")
    assert "about 5.0 MB\n" in cli(*flags).out
    proven = dataclasses.replace(PLAN, proof_memory_bytes=250_000_000)
    monkeypatch.setattr(conversion, "plan", lambda _: proven)
    assert "about 5.0 MB, 250.0 MB more for the proof\n" in cli(*flags).out
    [plan] = cli(*flags, "--json").lines
    assert (plan["peak_memory_bytes"], plan["proof_memory_bytes"]) == (5_000_000, 250_000_000)


@pytest.mark.parametrize("flags", [[], ["--json"]])
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_file_counts_when_nobody_reads(
    cli: Any,
    asked: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    stream: str,
    flags: list[str],
) -> None:
    """Closed streams do not stop a conversion: the file is the result, so exit 0."""
    monkeypatch.setattr(sys, stream, None)
    assert cli("convert", "src", "-o", "m.gguf", "--bits", "8", *flags).code == 0
    assert len(asked) == 1


def test_fallbacks_are_in_the_summary_and_the_json(cli: Any, asked: list[Any]) -> None:
    """How many tensors are of another type is said in the one line, and which in the JSON."""
    flags = ("convert", "src", "-o", "m.gguf", "--bits", "4")
    expected = "q4_k_m, 8.50 bits per weight (180 of 272 tensors fell back), 1.5 s"
    assert cli(*flags).out.startswith(f"m.gguf: 1.2 MB, {expected}; ")
    [line] = cli(*flags, "--json").lines
    assert line["fallbacks"] == [
        {"wanted": "q4_k", "stored": "q5_0", "n_tensors": 150},
        {"wanted": "q6_k", "stored": "q8_0", "n_tensors": 30},
    ]


def test_help_says_the_bits_of_every_type(cli: Any) -> None:
    """Each name stands in the help, and the command line knows just those."""
    assert [item.value for item in convert.WeightType] == list(conversion.TYPES)
    words = convert.TYPE_HELP.replace(",", " ").split()
    assert set(conversion.TYPES) <= set(words)


@pytest.mark.parametrize(
    ("proof", "said"),
    [
        (Proof(612, conversations=3), "tokenizer proven on 612 texts, template on 3 chats"),
        (Proof(600), "tokenizer proven on 600 texts"),
        (Proof(skipped="no engine"), "tokenizer not proven: no engine"),
    ],
)
def test_what_was_proven_is_said(
    cli: Any, asked: list[Any], monkeypatch: pytest.MonkeyPatch, proof: Proof, said: str
) -> None:
    """The summary has the number of texts that were compared, or why none was."""
    fake = conversion.convert

    def convert(*args: Any, **named: Any) -> conversion.ConversionResult:
        return dataclasses.replace(fake(*args, **named), proof=proof)

    monkeypatch.setattr(conversion, "convert", convert)
    result = cli("convert", "src", "-o", "m.gguf", "--bits", "8")
    assert result.out.endswith(f"1.5 s; {said}\n")


def test_result_as_json(cli: Any, asked: list[Any]) -> None:
    """--json prints one object and no progress."""
    result = cli("convert", "src", "-o", "m.gguf", "--bits", "8", "--json")
    [line] = result.lines
    assert line == {
        "type": "converted",
        "path": "m.gguf",
        "weight_type": "q8_0",
        "n_bytes": 1_234_567,
        "sha256": "ab",
        "seconds": 1.5,
        "bits_per_weight": 8.5,
        "n_tensors": 272,
        "fallbacks": [],
        "generation": 1,
        "proof": {
            "strings": 0,
            "conversations": 0,
            "decoded": False,
            "skipped": "not asked for",
            "warnings": [],
        },
        "warnings": ["the tokenizer is odd"],
    }
    assert result.err == "warning: the tokenizer is odd\n"


@pytest.mark.parametrize(("src", "code"), [("bad", 2), ("wrong", 5), ("stopped", 130)])
def test_exit_codes(cli: Any, asked: list[Any], src: str, code: int) -> None:
    """A bad checkpoint is 2, a failed verification 5, Ctrl-C 130; never a traceback."""
    result = cli("convert", src, "-o", "m.gguf", "--bits", "8")
    assert result.code == code
    assert "Traceback" not in result.err
