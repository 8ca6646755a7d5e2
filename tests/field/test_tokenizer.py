"""The samples of tokenizer/: each in a copy of the control checkpoint, as its row of the table says."""

from __future__ import annotations

import json
import re
import shutil
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edgellm.converters.shards import Shards
from edgellm.converters.vocabulary import TokenKind
from edgellm.engines.llamacpp.vocab_only import VocabOnly
from edgellm.formats.gguf import read_header

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    Run = Callable[..., subprocess.CompletedProcess[str]]
    Call = Callable[..., Any]

CONTROL_ROWS = 261
# sample -> what the one line of the refusal must name
REFUSED = {
    "03_merges_mixed": "strings and pairs are mixed",
    "04_merge_makes_no_token": "makes no token: 'a' + 'b'",
    "05_pretok_unknown_regex": r"\\p{L}{1,7}",
    "06_pretok_type_unknown": "Quokka",
    "07_model_wordpiece": "WordPiece",
    "08_model_missing": "no model",
    "09_vocab_empty": "model.vocab is empty",
    "10_two_tokens_one_id": "id 7 is both",
    "11_id_gap": "ids up to 400, the embedding 261 rows",
    "12_id_negative_or_float": "token 'neg' has id -1",
    "14_added_id_conflicts": "'<clash>' claims id 7",
    "16_normalizer_nfd": "NFD",
    "17_byte_fallback_holes": "<0xEA>, <0xF0>",
    "18_bom": "BOM",
    "19_regex_backtrack": "(a+)+$",
}


@pytest.fixture
def checkpoint(tmp_path: Path, field_samples: Path) -> Callable[..., Path]:
    """Give a copy of the control checkpoint with a sample's tokenizer and a row for each token."""

    def make(sample: str, n_rows: int = CONTROL_ROWS) -> Path:
        folder = tmp_path / sample
        shutil.copytree(field_samples / "hf" / "00_ok_control", folder)
        shutil.copy(field_samples / "tokenizer" / f"{sample}.json", folder / "tokenizer.json")
        if n_rows != CONTROL_ROWS:
            add_rows(folder, n_rows)
        return folder

    return make


def add_rows(folder: Path, n_rows: int) -> None:
    """Give a checkpoint's vocabulary more rows, of zeros."""
    path = folder / "config.json"
    config = json.loads(path.read_text("utf-8")) | {"vocab_size": n_rows}
    path.write_text(json.dumps(config), "utf-8")
    path = folder / "model.safetensors"
    data = path.read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    table: dict[str, Any] = json.loads(data[8:start])
    body = bytearray()
    for name, row in table.items():
        if name == "__metadata__":
            continue
        begin, end = row["data_offsets"]
        raw = data[start + begin : start + end]
        if row["shape"][0] == CONTROL_ROWS:
            raw += bytes(len(raw) // CONTROL_ROWS * (n_rows - CONTROL_ROWS))
            row["shape"][0] = n_rows
        row["data_offsets"] = [len(body), len(body) + len(raw)]
        body += raw
    head = json.dumps(table).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + body)


def convert(call: Call, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Convert with the command line; return the file and the JSON line about it."""
    out = folder.parent / "m.gguf"
    done = call("convert", folder, "-o", out, "--type", "q8_0", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return out, found


@pytest.mark.parametrize("sample", sorted(REFUSED))
def test_a_tokenizer_that_cannot_be_carried_over_is_refused(
    checkpoint: Callable[..., Path],
    call_edgellm: Call,
    monkeypatch: pytest.MonkeyPatch,
    sample: str,
) -> None:
    """Exit 2, one line with the reason, nothing at OUT, no weight read, no pattern of a stranger run."""
    folder = checkpoint(sample)
    out = folder.parent / "m.gguf"
    monkeypatch.setattr(Shards, "read", lambda *_: pytest.fail("a weight was read"))
    done = call_edgellm("convert", folder, "-o", out, "--type", "q8_0")
    assert done.returncode == 2, done.stderr
    assert REFUSED[sample] in done.stderr
    assert "tokenizer.json" in done.stderr
    assert sorted(path.name for path in folder.parent.glob("m.gguf*")) == []


@pytest.mark.parametrize(
    ("sample", "choices"),
    [
        ("05_pretok_unknown_regex", r"hint: known splitters: llama-bpe, .*qwen2, .*gpt-2"),
        ("07_model_wordpiece", r"'WordPiece'; only byte-pair encoding \(BPE\) is converted"),
        ("08_model_missing", r"no model; only byte-pair encoding \(BPE\) is converted"),
    ],
)
def test_a_refusal_names_what_there_is_instead(
    checkpoint: Callable[..., Path], call_edgellm: Call, sample: str, choices: str
) -> None:
    """F-CV-01: the choices stand in the message, or in the hint where they are many."""
    folder = checkpoint(sample)
    done = call_edgellm("convert", folder, "-o", folder.parent / "m.gguf", "--bits", 8)
    assert re.search(choices, " ".join(done.stderr.split()))


@pytest.mark.parametrize(("token", "shown"), [("neg", "-1"), ("flt", "3.5")])
def test_each_id_that_is_no_index_is_refused(
    checkpoint: Callable[..., Path], call_edgellm: Call, token: str, shown: str
) -> None:
    """tokenizer/12 has two of them: each alone is as bad."""
    folder = checkpoint("12_id_negative_or_float")
    path = folder / "tokenizer.json"
    value = json.loads(path.read_text("utf-8"))
    vocab = value["model"]["vocab"]
    del vocab["flt" if token == "neg" else "neg"]
    assert str(vocab[token]) == shown
    path.write_text(json.dumps(value), "utf-8")
    done = call_edgellm("convert", folder, "-o", folder.parent / "m.gguf", "--bits", 8)
    assert done.returncode == 2
    assert f"tokenizer.json: token '{token}' has id {shown}" in done.stderr


def test_a_pattern_that_backtracks_for_ever_is_refused_in_time(
    checkpoint: Callable[..., Path], call_edgellm: Call
) -> None:
    """The refusal takes less than two seconds of work."""
    folder = checkpoint("19_regex_backtrack")
    done = call_edgellm("convert", folder, "-o", folder.parent / "m.gguf", "--bits", 8)
    assert done.returncode == 2
    assert done.cpu_s < 2


@pytest.mark.parametrize(
    ("sample", "n_rows"),
    [
        ("00_ok_control", CONTROL_ROWS),
        ("01_merges_strings", 264),
        ("02_merges_pairs", 264),
        ("13_added_not_in_vocab", 264),
        ("15_special_flag_false", CONTROL_ROWS),
    ],
)
def test_a_whole_tokenizer_converts_and_runs(
    checkpoint: Callable[..., Path], run_edgellm: Run, call_edgellm: Call, sample: str, n_rows: int
) -> None:
    """Every id is the source's, and an answer comes out."""
    out, found = convert(call_edgellm, checkpoint(sample, n_rows))
    assert found["proof"]["strings"] >= 500
    assert found["proof"]["decoded"]
    done = run_edgellm("run", out, "Hello 값", "-n", 4, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["type"] == "done"


def test_merges_in_either_spelling_make_the_same_file(
    checkpoint: Callable[..., Path], call_edgellm: Call
) -> None:
    """Strings and pairs are one tokenizer: the same sha256."""
    sha256 = set()
    for sample in ("01_merges_strings", "02_merges_pairs"):
        out, found = convert(call_edgellm, checkpoint(sample, 264))
        sha256.add(found["sha256"])
        with VocabOnly(out) as engine:
            assert engine.tokenize("abba", special=False, add_bos=False) == [263, 262, 261]
        out.unlink()
    assert len(sha256) == 1


def test_tokens_added_by_a_fine_tune_are_printed(
    checkpoint: Callable[..., Path], call_edgellm: Call
) -> None:
    """They are user-defined, one id each, and come out as their text."""
    out, _ = convert(call_edgellm, checkpoint("13_added_not_in_vocab", 264))
    kinds = read_header(out).metadata["tokenizer.ggml.token_type"]
    with VocabOnly(out) as engine:
        for i, text in enumerate(("<Section_5A>", "<한국어>", "🦙"), start=261):
            assert kinds[i] == TokenKind.USER_DEFINED
            assert engine.tokenize(text, special=False, add_bos=False) == [i]
            assert engine.piece(i) == text.encode()


def test_an_end_of_turn_that_is_not_called_special_ends_and_is_not_printed(
    checkpoint: Callable[..., Path], call_edgellm: Call
) -> None:
    """Whatever its flag says, the engine stops at it and prints nothing."""
    out, _ = convert(call_edgellm, checkpoint("15_special_flag_false"))
    with VocabOnly(out) as engine:
        vocab = engine.describe()
        assert {2, 4} <= vocab.end_ids
        assert [engine.piece(i) for i in (2, 4)] == [b"", b""]
        assert 4 not in engine.tokenize("x<|im_end|>", special=False, add_bos=False)


def test_the_end_of_text_comes_from_the_file_trusted_most(
    field_samples: Path, tmp_path: Path, call_edgellm: Call
) -> None:
    """generation_config.json wins over config.json; where no file says, it is said aloud, never id 0."""
    source = field_samples / "hf" / "25_eos_only_in_generation_config"
    generation = json.loads((source / "generation_config.json").read_text("utf-8"))
    wanted = generation["eos_token_id"]
    shutil.copytree(source, tmp_path / "25")
    out, _ = convert(call_edgellm, tmp_path / "25")
    with VocabOnly(out) as engine:
        ends = engine.describe().end_ids
    assert set(wanted if isinstance(wanted, list) else [wanted]) <= ends
    out.unlink()
    shutil.copytree(field_samples / "hf" / "24_no_eos_anywhere", tmp_path / "24")
    out, found = convert(call_edgellm, tmp_path / "24")
    assert any("no file says which token ends a text" in text for text in found["warnings"])
    assert read_header(out).metadata["tokenizer.ggml.eos_token_id"] == 2
