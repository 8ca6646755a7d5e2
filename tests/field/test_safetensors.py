"""Every sample of safetensors/, as the weights of the control checkpoint: refused before OUT is opened."""

from __future__ import annotations

import json
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgellm.converters.plan import make_plan
from edgellm.converters.write import write_file
from edgellm.errors import ConvertError, ModelCorrupt
from edgellm.formats.safetensors import read_header

HERE = Path(__file__).resolve().parent
MANIFEST = json.loads((HERE / "MANIFEST.json").read_text("utf-8"))
SAMPLES = [row["file"] for row in MANIFEST if row["file"].startswith("safetensors/")]

Call = Callable[..., Any]
MAX_REFUSAL_S = 1.0  # of CPU time
POKED = "model.layers.0.mlp.up_proj.weight"
HUGE, LARGE, INFINITE, NO_NUMBER = 0x7F00, 0x4780, 0x7F80, 0x7FC0  # bfloat16: 1.7e38, 65536, ...

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
NO_MODEL = {"00_ok_control", "19_bf16_huge_values"}


def test_every_sample_of_the_table_is_tested():
    """The table and this file name the same samples."""
    assert {Path(file).stem for file in SAMPLES} == set(REFUSED)


@pytest.mark.parametrize("sample", sorted(REFUSED))
def test_refused_as_weights(sample: str, field_samples: Path, call_edgellm: Call, tmp_path: Path):
    """Exit 2 with the file, the reason and the fix, in a dry run and in a real one; OUT stays empty.

    A file that is at fault is named; one that is whole and of another model is its folder's fault.
    """
    folder = tmp_path / "checkpoint"
    shutil.copytree(field_samples / "hf" / "00_ok_control", folder)
    shutil.copy(
        field_samples / "safetensors" / f"{sample}.safetensors", folder / "model.safetensors"
    )
    out = tmp_path / "out"
    out.mkdir()
    words = ("convert", folder, "-o", out / "m.gguf", "--type", "f16")
    call_edgellm("convert", "--help")  # imports are paid once
    named = f"{folder.name}: " if sample in NO_MODEL else f"{folder.name}/model.safetensors: "
    for extra in (["--dry-run"], []):
        done = call_edgellm(*words, *extra)
        assert done.cpu_s < MAX_REFUSAL_S
        said = " ".join(done.stderr.split())
        assert done.returncode == 2, said
        assert re.search(REFUSED[sample], said), said
        assert re.search("hint: .", said), said
        assert named in said
        assert not list(out.iterdir())


@pytest.mark.parametrize("sample", sorted(READABLE))
def test_a_whole_file_is_read(sample: str, field_samples: Path):
    """The reader takes what is whole; whether it is a model is another question."""
    header = read_header(field_samples / "safetensors" / f"{sample}.safetensors")
    assert header.tensors
    if sample == "00_ok_control":
        assert [(t.name, t.shape) for t in header.tensors] == [("w", (2, 2))]


def poke(folder: Path, *bits: int) -> None:
    """Make a tensor of a checkpoint bfloat16, and its first values these."""
    path = folder / "model.safetensors"
    data = path.read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    table: dict[str, Any] = json.loads(data[8:start])
    body = bytearray()
    for name, row in table.items():
        raw = data[start:][slice(*row["data_offsets"])]
        if name == POKED:
            values = (np.frombuffer(raw, "<f2").astype("<f4").view("<u4") >> 16).astype("<u2")
            values[: len(bits)] = bits
            raw, row["dtype"] = values.tobytes(), "BF16"
        row["data_offsets"] = [len(body), len(body) + len(raw)]
        body += raw
    head = json.dumps(table).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + body)


def written(folder: Path, type_name: str) -> bytes:
    """Return the converted file, as it would be renamed after its proof."""
    out = bytearray()
    write_file(make_plan(folder, type_name), out.extend, n_threads=1)
    return bytes(out)


def test_values_beyond_f16_stop_it_or_keep_their_range(field_samples: Path, tmp_path: Path):
    """F-CV-06: safetensors/19 in a model's weights: 1.7e38 and 65536 are bf16's, and never f16's."""
    sample = read_header(field_samples / "safetensors" / "19_bf16_huge_values.safetensors")
    data = sample.path.read_bytes()[-8:]
    assert struct.unpack("<4H", data) == (HUGE, LARGE, INFINITE, NO_NUMBER)
    folder = tmp_path / "checkpoint"
    for bits, shown in ((HUGE, r"1\.70141e\+38"), (LARGE, "65536")):
        shutil.copytree(field_samples / "hf" / "00_ok_control", folder, dirs_exist_ok=True)
        poke(folder, bits)
        with pytest.raises(
            ConvertError, match=f"{POKED}' has a weight of {shown}; a F16"
        ) as caught:
            written(folder, "f16")
        assert caught.value.hint == "use --type bf16 or f32"
        assert str(caught.value.path).endswith("model.safetensors")
        source = read_header(folder / "model.safetensors")
        entry = next(t for t in source.tensors if t.name == POKED)
        raw = source.path.read_bytes()[entry.offset :][: entry.n_bytes]
        assert raw[:2] == struct.pack("<H", bits)
        assert raw in written(folder, "bf16")


@pytest.mark.parametrize("bits", [INFINITE, INFINITE | 0x8000, NO_NUMBER])
@pytest.mark.parametrize("type_name", ["f16", "bf16"])
def test_weights_that_are_no_numbers_are_reported(
    field_samples: Path, tmp_path: Path, type_name: str, bits: int
):
    """F-CV-06: an infinity or NaN stops a conversion to any type, with tensor, file and how many."""
    folder = tmp_path / "checkpoint"
    shutil.copytree(field_samples / "hf" / "00_ok_control", folder)
    poke(folder, LARGE if type_name == "bf16" else 0, bits, bits)
    with pytest.raises(ModelCorrupt, match=f"{POKED}' holds 2 values that are no finite") as caught:
        written(folder, type_name)
    assert str(caught.value.path).endswith("model.safetensors")


def test_a_weight_that_stops_it_leaves_nothing(
    field_samples: Path, tmp_path: Path, call_edgellm: Call
):
    """F-CV-06: the command ends with 2 and one line; neither the file nor a part of it is there."""
    folder, out = tmp_path / "checkpoint", tmp_path / "out"
    shutil.copytree(field_samples / "hf" / "00_ok_control", folder)
    out.mkdir()
    poke(folder, NO_NUMBER)
    done = call_edgellm("convert", folder, "-o", out / "m.gguf", "--type", "f16")
    assert done.returncode == 2
    assert "holds 1 values that are no finite numbers" in done.stderr
    assert not list(out.iterdir())
