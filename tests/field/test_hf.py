"""Every sample of hf/: a checkpoint folder that converts and runs, or is refused with nothing written."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgellm.converters.shards import Shards
from edgellm.formats.gguf import read_header
from edgellm.formats.safetensors import read_header as read_weights
from edgellm.runtime.conversion import ConvertOptions, convert

HERE = Path(__file__).resolve().parent
MANIFEST = json.loads((HERE / "MANIFEST.json").read_text("utf-8"))
SAMPLES = [
    row["file"].strip("/").split("/")[1] for row in MANIFEST if row["file"].startswith("hf/")
]
CONFIG = "config.json"
EOS = "tokenizer.ggml.eos_token_id"

Run = Callable[..., subprocess.CompletedProcess[str]]
Call = Callable[..., Any]
Count = Callable[[], int]

REFUSED = {
    "02_config_arch_unknown": "'QuokkaForCausalLM'.*hint: supported: .*LlamaForCausalLM",
    "03_config_nulls": f"{CONFIG}: hidden_size is missing",
    "04_config_numbers_as_text": f"{CONFIG}: num_hidden_layers is '1'",
    "05_config_heads_do_not_divide": f"{CONFIG}: 5 attention heads do not divide",
    "06_config_vocab_mismatch": r"embed_tokens.weight' is \[261, 32\].* \[300, 32\]",
    "07_config_layers_mismatch": "missing model.layers.1.input_layernorm.weight",
    "08_config_rope_unknown": f"{CONFIG}: rope kind 'warp9'.*hint: known: default, linear, llama3, yarn",
    "09_config_bom_and_trailing_comma": f"{CONFIG}: .*BOM.* at line 1, column 1",
    "10_config_is_list": f"{CONFIG}: JSON list where an object",
    "11_config_deep": f"{CONFIG}: JSON nested too deeply",
    "14_tied_flag_false_no_head": "lm_head.weight is missing.*tie_word_embeddings is false",
    "15_quant_bnb4": "quantised already .bitsandbytes.*convert the original",
    "16_quant_fp8": "quantised already .fp8.*convert the original",
    "17_remote_code": "'EvilForCausalLM' cannot be converted",
    "18_pickle_only": "only pickled weights .pytorch_model.bin",
    "19_shard_missing": "1 of 2 weight files are missing: model-00002-of-00002.safetensors",
    "20_shard_path_escapes": "names '../outside.safetensors'",
    "21_shards_no_index": "missing model.layers.0.input_layernorm.weight",
    "22_no_tokenizer": "no tokenizer: looked for tokenizer.json and tokenizer.model",
    "23_added_tokens_json_collides": r"is \[261, 32\].* \[264, 32\]",
    "26_weights_truncated": "1000 bytes are missing: 53296 needed, 52296 there",
}
# What converts, and what is said of it on stderr or stdout.
CONVERTS = {
    "00_ok_control": "",
    "00b_ok_control_bytelevel": "",
    "01_config_no_architectures": "",
    "12_tied_flag_true_no_head": "",
    "13_tied_flag_absent_no_head": "the embedding is the output too",
    "24_no_eos_anywhere": "no file says which token ends a text",
    "25_eos_only_in_generation_config": "",
    "27_folder with space & 한글": "",
}
# What would end a process, or leave a file, if it were not refused.
IN_A_PROCESS = {"11_config_deep", "17_remote_code", "18_pickle_only"}
TIED = {"12_tied_flag_true_no_head", "13_tied_flag_absent_no_head"}


def test_every_sample_of_the_table_is_tested():
    """The table and this file name the same folders."""
    assert set(SAMPLES) == {*REFUSED, *CONVERTS}


@pytest.fixture
def n_reads(monkeypatch: pytest.MonkeyPatch) -> Count:
    """Count what is read of weights: all of it goes through one function."""
    reads: list[Path] = []
    real = Shards.read

    def read(self: Shards, path: Path, offset: int, n_bytes: int) -> bytearray:
        reads.append(path)
        return real(self, path, offset, n_bytes)

    monkeypatch.setattr(Shards, "read", read)
    return lambda: len(reads)


@pytest.mark.parametrize("sample", sorted(REFUSED))
def test_refused_with_nothing_written(
    sample: str,
    field_samples: Path,
    run_edgellm: Run,
    call_edgellm: Call,
    n_reads: Count,
    tmp_path: Path,
):
    """Exit 2: the folder or file, the reason; no output, no weight read, no code of the folder run."""
    out = tmp_path / "out"
    out.mkdir()
    source = field_samples / "hf" / sample
    start = run_edgellm if sample in IN_A_PROCESS else call_edgellm
    done = start("convert", source, "-o", out / "m.gguf", "--bits", "8")
    said = " ".join(done.stderr.split())
    assert done.returncode == 2, said
    assert sample in said
    assert n_reads() == 0
    assert re.search(REFUSED[sample], said), said
    assert not list(out.iterdir())
    assert not list(field_samples.rglob("FIELD_MARKER_EXECUTED"))


@pytest.mark.parametrize("sample", sorted(CONVERTS))
def test_converts_and_runs(
    sample: str, field_samples: Path, run_edgellm: Run, call_edgellm: Call, tmp_path: Path
):
    """The folder becomes an int8 GGUF that answers, by a path that is whole in every message."""
    source = field_samples / "hf" / sample
    target = tmp_path / f"{sample}.gguf"
    made = call_edgellm("convert", source, "-o", target, "--bits", "8")
    said = " ".join((made.stdout + made.stderr).split())
    assert made.returncode == 0, said
    assert CONVERTS[sample] in said
    done = run_edgellm("run", target, "-p", "hi", "-n", "4", "--json", "--snapshot", "off")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["type"] == "done"
    names = {tensor.name for tensor in read_header(target).tensors}
    assert ("output.weight" in names) == (sample not in TIED)


def test_the_end_of_text_comes_from_a_file_or_is_told_aloud(field_samples: Path, tmp_path: Path):
    """hf/24 gets the token that engines stop at anyway, with a warning; hf/25 that of generation."""
    found, warned = {}, {}
    for sample in ("24_no_eos_anywhere", "25_eos_only_in_generation_config"):
        target = tmp_path / f"{sample[:2]}.gguf"
        source = field_samples / "hf" / sample
        done = convert(ConvertOptions(source, target, "q8_0", prove=False))
        found[sample[:2]] = read_header(target).metadata.get(EOS)
        warned[sample[:2]] = [text for text in done.warnings if "ends a text" in text]
    assert found == {"24": 2, "25": 4}
    told = "no file says which token ends a text: engines will stop at '</s>' because of its text"
    assert warned == {"24": [told], "25": []}


def test_a_chat_model_without_an_end_is_refused(
    field_samples: Path, call_edgellm: Call, tmp_path: Path
):
    """hf/24 with a chat template: no answer of it would end, so nothing is written."""
    folder, out = tmp_path / "checkpoint", tmp_path / "m.gguf"
    shutil.copytree(field_samples / "hf" / "24_no_eos_anywhere", folder)
    shutil.copy(field_samples / "templates" / "00_chatml_ok.jinja", folder / "chat_template.jinja")
    done = call_edgellm("convert", folder, "-o", out, "--bits", "8")
    said = " ".join(done.stderr.split())
    assert done.returncode == 2, said
    assert "a chat model, but no file says which token ends an answer" in said
    assert "hint: add eos_token_id to generation_config.json" in said
    assert not out.exists()


def test_shards_without_an_index_are_all_used(field_samples: Path, n_reads: Count, tmp_path: Path):
    """hf/21: the control's weights in two files, the second tensors first, are the control."""
    folder = tmp_path / "checkpoint"
    shutil.copytree(field_samples / "hf" / "00_ok_control", folder)
    whole = convert(ConvertOptions(folder, tmp_path / "whole.gguf", "q8_0", prove=False))
    split(folder)
    assert len(list(folder.glob("*.safetensors"))) == 2
    before = n_reads()
    parts = convert(ConvertOptions(folder, tmp_path / "parts.gguf", "q8_0", prove=False))
    assert 0 < before == n_reads() - before
    assert whole.sha256 == parts.sha256


def split(folder: Path) -> None:
    """Share the weights of a checkpoint out over two files, every other tensor in the second."""
    path = folder / "model.safetensors"
    data = path.read_bytes()
    entries = read_weights(path).tensors
    for number, part in ((1, entries[1::2]), (2, entries[::2])):
        table: dict[str, Any] = {}
        body = b""
        for entry in part:
            raw = data[entry.offset : entry.offset + entry.n_bytes]
            place = [len(body), len(body) + len(raw)]
            table[entry.name] = {
                "dtype": entry.dtype,
                "shape": list(entry.shape),
                "data_offsets": place,
            }
            body += raw
        head = json.dumps(table).encode()
        shard = folder / f"model-{number:05}-of-00002.safetensors"
        shard.write_bytes(struct.pack("<Q", len(head)) + head + body)
    path.unlink()


def test_a_link_in_a_model_cache_is_followed(
    field_samples: Path, call_edgellm: Call, tmp_path: Path
):
    """A folder of links to blobs, as download caches make it, converts; a dangling one is named."""
    blobs, folder = tmp_path / "blobs", tmp_path / "snapshot"
    shutil.copytree(field_samples / "hf" / "00b_ok_control_bytelevel", blobs)
    folder.mkdir()
    for path in blobs.iterdir():
        (folder / path.name).symlink_to(f"../blobs/{path.name}")
    out = tmp_path / "m.gguf"
    assert call_edgellm("convert", folder, "-o", out, "--bits", "8").returncode == 0
    (blobs / "model.safetensors").unlink()
    done = call_edgellm("convert", folder, "-o", tmp_path / "n.gguf", "--bits", "8")
    assert done.returncode in (2, 3)
    said = " ".join(done.stderr.split())
    assert "a link to '../blobs/model.safetensors', which is not there" in said
