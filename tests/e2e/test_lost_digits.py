"""A checkpoint whose pre-tokenizer lost its Digits part is flagged by `edgellm convert`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edgellm.formats.gguf import read_header

FLAG = "seems to have lost its digit splitting"


@pytest.fixture(scope="module")
def files(gguf_tokenizer: ModuleType, smollm2_gguf: Path) -> dict[str, Any]:
    """Spell SmolLM2's own tokenizer as a checkpoint has it."""
    header = read_header(smollm2_gguf)
    return {
        "tokenizer.json": gguf_tokenizer.tokenizer(header),
        "tokenizer_config.json": gguf_tokenizer.tokenizer_config(header),
    }


@pytest.mark.model
@pytest.mark.parametrize("is_lost", [True, False])
def test_smollm2_without_its_digits(
    tmp_path: Path, on_zeros: Callable[..., Path], files: dict[str, Any], *, is_lost: bool
) -> None:
    """On stderr and in `--json`, with the way back; the tokenizer as it was is not flagged."""
    value = files["tokenizer.json"]
    digits, rest = value["pre_tokenizer"]["pretokenizers"]
    assert digits == {"type": "Digits", "individual_digits": True}
    if is_lost:
        value = value | {"pre_tokenizer": rest}
    folder = on_zeros(tmp_path / "checkpoint", 49152, files | {"tokenizer.json": value})
    command = [sys.executable, "-m", "edgellm", "convert", str(folder), "--bits", "8", "--json"]
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "m.gguf")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = [text for text in json.loads(done.stdout)["warnings"] if FLAG in text]
    assert len(told) == is_lost
    assert (FLAG in done.stderr) is is_lost
    assert all(json.dumps(digits)[1:-1] in text for text in told)
