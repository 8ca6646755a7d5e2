"""Every sample of safetensors/, as the weights of the control checkpoint: refused before OUT is opened."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from edgellm.formats.safetensors import read_header

HERE = Path(__file__).resolve().parent
MANIFEST = json.loads((HERE / "MANIFEST.json").read_text("utf-8"))
SAMPLES = [row["file"] for row in MANIFEST if row["file"].startswith("safetensors/")]

Run = Callable[..., subprocess.CompletedProcess[str]]

# What the message holds; the controls' own tensors are not those of a model.
REFUSED = {
    "00_ok_control": "lm_head.weight is missing",
    "01_seven_bytes": "7 bytes are too few",
    "02_len_zero": "not valid JSON",
    "03_len_past_eof": "the header needs 5008 bytes, the file has 73",
    "04_len_2p63": f"header of {1 << 63} bytes; at most",
    "05_len_200MB": "header of 200000000 bytes; at most",
    "06_not_json": "not valid JSON: .* line 1, column 1",
    "07_json_list": "JSON list where an object",
    "08_bad_utf8": "not UTF-8: byte 2",
    "09_overlap": "'b' overlaps",
    "10_hole": "'b' leaves a hole",
    "11_reversed": r"'a': bad data_offsets \[4, 0\]",
    "12_past_eof": "3936 bytes are missing: 4075 needed, 139 there",
    "13_size_mismatch": r"'a': F32 \[3\] needs 12 bytes, 8 are given",
    "14_shape_wraps": "'a': .* needs 73786976294838206464 bytes",
    "15_shape_negative": r"'a': bad shape \[-1, 4\]",
    "16_dtype_unknown": "'a': unknown dtype 'Q9_Z'",
    "17_dup_name": "'a' twice",
    "18_lfs_pointer": "Git LFS pointer.*git lfs pull",
    "19_bf16_huge_values": "lm_head.weight is missing",
    "20_i8_weights": "dtype I8: the checkpoint is quantised already.*convert the original",
}
# Whole files: only what they hold is no model.
READABLE = {"00_ok_control", "19_bf16_huge_values", "20_i8_weights"}


def test_every_sample_of_the_table_is_tested():
    """The table and this file name the same samples."""
    assert {Path(file).stem for file in SAMPLES} == set(REFUSED)


@pytest.mark.parametrize("sample", sorted(REFUSED))
def test_refused_as_weights(sample: str, field_samples: Path, run_edgellm: Run, tmp_path: Path):
    """Exit 2 with the file, the reason and the fix, in a dry run and in a real one; OUT stays empty."""
    folder = tmp_path / "checkpoint"
    shutil.copytree(field_samples / "hf" / "00_ok_control", folder)
    shutil.copy(
        field_samples / "safetensors" / f"{sample}.safetensors", folder / "model.safetensors"
    )
    out = tmp_path / "out"
    out.mkdir()
    for extra in (["--dry-run"], []):
        done = run_edgellm("convert", folder, "-o", out / "m.gguf", "--type", "f16", *extra)
        said = " ".join(done.stderr.split())
        assert done.returncode == 2, said
        assert re.search(REFUSED[sample], said), said
        assert re.search("hint: .", said), said
        assert folder.name in said
        assert not list(out.iterdir())


@pytest.mark.parametrize("sample", sorted(READABLE))
def test_a_whole_file_is_read(sample: str, field_samples: Path):
    """The reader takes what is whole; whether it is a model is another question."""
    header = read_header(field_samples / "safetensors" / f"{sample}.safetensors")
    assert header.tensors
    if sample == "00_ok_control":
        assert [(t.name, t.shape) for t in header.tensors] == [("w", (2, 2))]
