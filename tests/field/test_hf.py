"""Every sample of hf/: a checkpoint folder that converts and runs, or is refused with nothing written."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from edgellm.formats.gguf import read_header

HERE = Path(__file__).resolve().parent
MANIFEST = json.loads((HERE / "MANIFEST.json").read_text("utf-8"))
SAMPLES = [
    row["file"].strip("/").split("/")[1] for row in MANIFEST if row["file"].startswith("hf/")
]
CONFIG = "config.json"
EOS = "tokenizer.ggml.eos_token_id"

Run = Callable[..., subprocess.CompletedProcess[str]]

REFUSED = {
    "02_config_arch_unknown": "'QuokkaForCausalLM'.*supported: .*LlamaForCausalLM",
    "03_config_nulls": f"{CONFIG}: hidden_size is missing",
    "04_config_numbers_as_text": f"{CONFIG}: num_hidden_layers is '1'",
    "05_config_heads_do_not_divide": f"{CONFIG}: 5 attention heads do not divide",
    "06_config_vocab_mismatch": r"embed_tokens.weight' is \[261, 32\].* \[300, 32\]",
    "07_config_layers_mismatch": "missing model.layers.1.input_layernorm.weight",
    "08_config_rope_unknown": f"{CONFIG}: rope kind 'warp9'",
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
    "22_no_tokenizer": "no tokenizer: looked for tokenizer.json",
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
TIED = {"12_tied_flag_true_no_head", "13_tied_flag_absent_no_head"}


def test_every_sample_of_the_table_is_tested():
    """The table and this file name the same folders."""
    assert set(SAMPLES) == {*REFUSED, *CONVERTS}


@pytest.mark.parametrize("sample", sorted(REFUSED))
def test_refused_with_nothing_written(
    sample: str, field_samples: Path, run_edgellm: Run, tmp_path: Path
):
    """Exit 2: the folder or file, the reason; no output, no partial file, no code of the folder run."""
    out = tmp_path / "out"
    out.mkdir()
    source = field_samples / "hf" / sample
    done = run_edgellm("convert", source, "-o", out / "m.gguf", "--bits", "8")
    said = " ".join(done.stderr.split())
    assert done.returncode == 2, said
    assert sample in said
    assert re.search(REFUSED[sample], said), said
    assert not list(out.iterdir())
    assert not list(field_samples.rglob("FIELD_MARKER_EXECUTED"))


@pytest.mark.parametrize("sample", sorted(CONVERTS))
def test_converts_and_runs(sample: str, field_samples: Path, run_edgellm: Run, tmp_path: Path):
    """The folder becomes an int8 GGUF that answers, by a path that is whole in every message."""
    source = field_samples / "hf" / sample
    target = tmp_path / f"{sample}.gguf"
    made = run_edgellm("convert", source, "-o", target, "--bits", "8")
    said = " ".join((made.stdout + made.stderr).split())
    assert made.returncode == 0, said
    assert CONVERTS[sample] in said
    done = run_edgellm("run", target, "-p", "hi", "-n", "4", "--json", "--snapshot", "off")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["type"] == "done"
    names = {tensor.name for tensor in read_header(target).tensors}
    assert ("output.weight" in names) == (sample not in TIED)


def test_the_end_of_text_is_written_only_where_the_checkpoint_names_it(
    field_samples: Path, run_edgellm: Run, tmp_path: Path
):
    """hf/24 never gets 0 by default; in hf/25 generation_config.json wins over config.json."""
    found = {}
    for sample in ("24_no_eos_anywhere", "25_eos_only_in_generation_config"):
        target = tmp_path / f"{sample[:2]}.gguf"
        source = field_samples / "hf" / sample
        assert run_edgellm("convert", source, "-o", target, "--bits", "8").returncode == 0
        found[sample[:2]] = read_header(target).metadata.get(EOS)
    assert found["24"] != 0
    assert found["25"] == 4


def test_a_link_in_a_model_cache_is_followed(field_samples: Path, run_edgellm: Run, tmp_path: Path):
    """A folder of links to blobs, as download caches make it, converts; a dangling one is named."""
    blobs, folder = tmp_path / "blobs", tmp_path / "snapshot"
    shutil.copytree(field_samples / "hf" / "00b_ok_control_bytelevel", blobs)
    folder.mkdir()
    for path in blobs.iterdir():
        (folder / path.name).symlink_to(f"../blobs/{path.name}")
    out = tmp_path / "m.gguf"
    assert run_edgellm("convert", folder, "-o", out, "--bits", "8").returncode == 0
    (blobs / "model.safetensors").unlink()
    done = run_edgellm("convert", folder, "-o", tmp_path / "n.gguf", "--bits", "8")
    assert done.returncode in (2, 3)
    said = " ".join(done.stderr.split())
    assert "a link to '../blobs/model.safetensors', which is not there" in said
