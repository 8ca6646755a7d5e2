"""Every sample of gguf/, given to `info`, `run` and `convert`: the same answer at every door.

`REFUSED` says what the message must hold, as words; a sample of the table that stands nowhere here
is a failure, as is one here that the table has not.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgellm.errors import ModelError
from edgellm.runtime.conversion import ConvertOptions, plan

HERE = Path(__file__).resolve().parent
MANIFEST = json.loads((HERE / "MANIFEST.json").read_text("utf-8"))
SAMPLES = [row["file"] for row in MANIFEST if row["file"].startswith("gguf/")]
MARKER = "FIELD_MARKER_EXECUTED"
BIG = str(1 << 63)
MAX_REFUSAL_S = 1.0  # of CPU time

Run = Callable[..., subprocess.CompletedProcess[str]]
Call = Callable[..., Any]

REFUSED = {
    "01_empty": "the file is empty",
    "02_magic_only": "needs 8 bytes, the file has 4",
    "03_trunc_header": "needs 16 bytes, the file has 14",
    "04_trunc_in_kv": "cannot be in 100 bytes",
    "05_trunc_in_tensor_info": "needs 7006 bytes, the file has 7000",
    "06_trunc_in_data": "'blk.0.ffn_down.weight': 4096 bytes are missing",
    "07_html_page": (
        "a web page, 'tiny.Q4_0.gguf at main Sign in'"
        ".*use the file's download link, .../resolve/main/FILE, not its page"
    ),
    "08_lfs_pointer": "Git LFS pointer.*git lfs pull",
    "09_old_ggjt_magic": "old GGML file",
    "10_version_1": "GGUF version 1;",
    "11_version_99": "GGUF version 99;.*upgrade",
    "12_big_endian": "big-endian",
    "13_n_tensors_2p63": f"{BIG} tensors",
    "14_n_tensors_2p40": f"{1 << 40} tensors .* cannot be in 96 bytes",
    "15_n_kv_2p63": f"{BIG} metadata keys",
    "16_kv_string_2p63": f"'general.architecture': a string of {BIG} bytes",
    "17_kv_string_1GiB": f"a string of {1 << 30} bytes",
    "18_key_2p64m1": f"key 0: a string of {(1 << 64) - 1} bytes",
    "19_array_len_2p63": f"'tokenizer.ggml.tokens': an array of {BIG} values",
    "51_array_len_2p63_u8": f"'x.bytes': an array of {BIG} values",
    "20_array_len_2p61_u64": f"'x.big': an array of {1 << 61} values",
    "21_kv_type_77": "'a.b': unknown value type 77",
    "22_n_dims_5": "'t': 5 dimensions, at most 4",
    "23_n_dims_4294967295": "'t': 4294967295 dimensions",
    "24_dims_wrap_u64": "'t': [0-9]{21} bytes are missing",
    "25_dims_wrap_2p32_sq": "'t': [0-9]{20} bytes are missing",
    "26_dims_bytes_wrap": "'t': [0-9]{20} bytes are missing",
    "27_dims_zero": "'t': a dimension of .* is zero",
    "28_dims_negative": "'t': [0-9]{21} bytes are missing",
    "29_type_9999": "'t': unknown weight type 9999",
    "30_block_quant_width_33": "'t': q4_0: 33 elements are no multiple of 32",
    "31_offset_past_eof": f"'t': offset {1 << 40}",
    "32_offset_wraps": "'t': offset 18446744073709551584",
    "33_offset_misaligned": "'t': offset 4 is no multiple of 32",
    "34_tensors_overlap": "'b': offset 32 overlaps",
    "35_dup_tensor_name": "'a': its name is there twice",
    "36_dup_key": "'general.architecture' is there twice",
    "37_name_5000": "tensor 0: a string of 5000 bytes",
    "38_key_bad_utf8": "not UTF-8",
    "39_no_arch": "'general.architecture' is missing",
    "40_arch_unknown": r"'quokka' is not known to llama.cpp \d",
    "41_arch_wrong_type": "'general.architecture' is '7', not a name",
    "42_fewer_tensors_than_model": "'blk.0.attn_q.weight' is missing: 4 tensors are there",
    "43_more_tensors_than_model": "13 tensors, llama.cpp .* uses 12: 'v.patch_embd.weight'.*newer",
    "44_head_count_0": "'llama.attention.head_count': .*no attention heads",
    "46_ctx_1M_wide": (
        r"1048576 tokens of context it declares would take 2\.\d TB of keys and values: 1310720 "
        "numbers a token, whose weights need at least 1.3 GB, the file has 59.4 kB"
    ),
    "47_layers_1e9": "'llama.block_count': 1000000000 layers",
}
# What runs, and what must be said while it does.
RUNS = {
    "00_ok_control": "",
    "45_ctx_2p31": "declares a context of 2147483647 tokens, which would take 137.4 GB",
    "48_tied_no_output": "",
    "49_eos_missing": "names no end-of-text token",
}
ELSEWHERE = {"50_template_ssti"}


def _file(sample: str) -> str:
    return next(file for file in SAMPLES if Path(file).stem == sample)


def test_every_sample_of_the_table_is_tested():
    """The table and this file name the same samples, so that none is passed over."""
    assert {Path(file).stem for file in SAMPLES} == {*REFUSED, *RUNS, *ELSEWHERE}


@pytest.mark.parametrize("sample", sorted(REFUSED))
def test_refused_by_info_and_run(
    sample: str, field_samples: Path, run_edgellm: Run, call_edgellm: Call
):
    """Exit 2, one error that names file, place and number, and the next step; nothing on stdout.

    `info` says so within a second; `run`, which would go on to the engine, has a process of its own
    and a limit of memory.
    """
    file = field_samples / _file(sample)
    call_edgellm("info", "--help")  # imports are paid once, whichever test comes first
    shown = call_edgellm("info", file)
    assert shown.cpu_s < MAX_REFUSAL_S
    for done in (shown, run_edgellm("run", file, "-p", "hi", "-n", "4")):
        said = " ".join(done.stderr.split())
        assert done.returncode == 2, said
        assert done.stdout == ""
        assert file.name in said
        assert re.search(REFUSED[sample], said), said
        assert re.search("hint: .", said), said


@pytest.mark.parametrize("sample", sorted(REFUSED))
def test_refused_as_a_source(sample: str, field_samples: Path, tmp_path: Path):
    """A conversion of the file plans nothing: it asks the same door, with the same words."""
    started_s = time.process_time()
    with pytest.raises(ModelError) as caught:
        plan(ConvertOptions(field_samples / _file(sample), tmp_path / "m.gguf", "q8_0"))
    assert time.process_time() - started_s < MAX_REFUSAL_S
    assert caught.value.exit_code == 2
    assert re.search(REFUSED[sample], str(caught.value))
    assert not list(tmp_path.glob("*.gguf*"))


@pytest.mark.parametrize("sample", sorted(RUNS))
def test_accepted_by_info_and_run(
    sample: str, field_samples: Path, run_edgellm: Run, call_edgellm: Call
):
    """A usable file answers, ends at the token limit, and says what is odd about it."""
    file = field_samples / _file(sample)
    assert RUNS[sample] in call_edgellm("info", file).stdout
    done = run_edgellm(
        *("run", file, "-p", "hi", "-n", "4", "--seed", "1", "--json", "--snapshot", "off")
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[-1]["type"] == "done"
    assert lines[-1]["finish_reason"] == "length"
    assert lines[-1]["usage"]["completion_tokens"] == 4
    assert RUNS[sample] in " ".join(x["message"] for x in lines if x["type"] == "warning")


def test_a_template_that_would_run_a_command(field_samples: Path, run_edgellm: Run):
    """gguf/50: a template error, no marker file; `info` shows the template as text."""
    file = field_samples / _file("50_template_ssti")
    shown = run_edgellm("info", file)
    assert shown.returncode == 0
    assert MARKER in shown.stdout
    done = run_edgellm("run", file, "-p", "hi", "-n", "4")
    assert done.returncode == 2
    assert "template, line 1" in done.stderr
    assert not list(field_samples.rglob(MARKER))


def test_a_context_beyond_the_memory(field_samples: Path, run_edgellm: Run, tmp_path: Path):
    """F-MM-06: exit 4 with the context asked, the bytes needed and there, and one that does fit."""
    file = field_samples / _file("45_ctx_2p31")
    limited = ("run", file, "-p", "hi", "-n", "1", "--snapshot", "off")
    done = run_edgellm(*limited, "--ctx", 60_000_000, memory_bytes=1_000_000_000)
    said = " ".join(done.stderr.split())
    assert done.returncode == 4, said
    assert "a context of 60000000 tokens does not fit: keys and values take 3.8 GB" in said
    assert "of memory are free" in said
    fits = re.search(r"--ctx (\d+)", said.partition("hint:")[2])
    assert fits, said
    again = run_edgellm(*limited, "--ctx", fits[1], memory_bytes=1_000_000_000)
    assert again.returncode == 0, again.stderr


def test_a_buffer_beyond_the_memory_is_made_smaller(
    field_samples: Path, run_edgellm: Run, tmp_path: Path
):
    """F-MM-06: where only a buffer to compute in is too large, a smaller batch does it, unasked."""
    limited = (
        "run",
        field_samples / _file("45_ctx_2p31"),
        "-p",
        "hi",
        "-n",
        "1",
        "--snapshot",
        "off",
    )
    done = run_edgellm(*limited, "--ctx", 1_000_000, memory_bytes=1_000_000_000)
    assert done.returncode == 0, done.stderr


def test_links_to_a_model(field_samples: Path, run_edgellm: Run, tmp_path: Path):
    """F-LD-10: a link is the model, its size that of the target; a dangling one is named as such."""
    link = tmp_path / "link.gguf"
    link.symlink_to(field_samples / _file("00_ok_control"))
    shown = json.loads(run_edgellm("info", link, "--json").stdout)
    assert shown["file_bytes"] == 59424
    link.unlink()
    link.symlink_to("nowhere.gguf")
    for command in (("info", link), ("run", link, "-p", "hi")):
        done = run_edgellm(*command)
        assert done.returncode == 3
        assert "a link to 'nowhere.gguf', which is not there" in " ".join(done.stderr.split())
