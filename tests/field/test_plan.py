"""Planning for files that declare too much: by the header alone, in bytes, and nothing is allocated."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]
LIMIT_S = 1.0


def test_a_context_of_two_billion_tokens(field_samples: Path, call_edgellm: Call) -> None:
    """F-MM-03: a default that fits, in one line; the figure of the whole is shown and not taken."""
    file = field_samples / "gguf" / "45_ctx_2p31.gguf"
    done = call_edgellm("plan", file)
    assert done.returncode == 0, done.stderr
    assert "context:" in done.stdout
    assert "4096 tokens (min(the model's 2147483647, max(4096, prompt + 1024)))" in done.stdout
    assert "all 2147483647 tokens would take 137.4 GB" in done.stdout
    assert "declares a context of 2147483647 tokens" in done.stderr
    assert done.cpu_s < LIMIT_S


def test_all_of_it_asked_for(field_samples: Path, call_edgellm: Call) -> None:
    """F-MM-03: the wish stands and is refused, with bytes needed and there, and a size that fits."""
    file = field_samples / "gguf" / "45_ctx_2p31.gguf"
    done = call_edgellm("plan", file, "--ctx", 2**31 - 1, "--json")
    plan = json.loads(done.stdout)
    assert (done.returncode, plan["fits"]) == (4, False)
    assert plan["settings"]["n_ctx"] == 2**31 - 1
    assert plan["estimate"]["kv_bytes"] >= 137_438_000_000
    assert plan["need_bytes"] > plan["have_bytes"]
    assert any(way["flags"].startswith("--ctx ") for way in plan["ways"])
    assert done.cpu_s < LIMIT_S


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        ("46_ctx_1M_wide", "would take 2.7 TB of keys and values"),
        ("47_layers_1e9", "1000000000 layers"),
    ],
)
def test_figures_that_no_weights_could_fill(
    sample: str, words: str, field_samples: Path, call_edgellm: Call
) -> None:
    """F-MM-03: refused with the true figure, and no loop over it."""
    done = call_edgellm("plan", field_samples / "gguf" / f"{sample}.gguf")
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert done.cpu_s < LIMIT_S


def test_for_a_small_board(field_samples: Path, call_edgellm: Call) -> None:
    """The same file for a machine that nobody has here."""
    file = field_samples / "gguf" / "45_ctx_2p31.gguf"
    done = call_edgellm("plan", file, "--device", "raspberry-pi-4-8gb", "--ctx", 1 << 27, "--json")
    plan = json.loads(done.stdout)
    assert (done.returncode, plan["limited_by"], plan["profile"]) == (
        4,
        "profile",
        "raspberry-pi-4-8gb",
    )
    assert plan["have_bytes"] < 7 << 30
