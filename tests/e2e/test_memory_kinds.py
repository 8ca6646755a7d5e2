"""Every kind of sequence memory: a state stored, and restored in another process, keeps every bit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CHILD = Path(__file__).with_name("kinds_child.py")
# The parts after 200 tokens: kind, first position, positions, sections.
PARTS: dict[str, list[list[Any]]] = {
    "llama": [["dense", 0, 200, 8]],
    "qwen3moe": [["dense", 0, 200, 6]],
    "deepseek2": [["dense", 0, 200, 3]],
    "gemma3": [["dense", 0, 200, 4], ["window", 168, 32, 8]],
    "mamba": [["recurrent", 199, 1, 6]],
    "mamba2": [["recurrent", 199, 1, 6]],
    "rwkv7": [["recurrent", 199, 1, 4]],
    "lfm2": [["dense", 0, 200, 4], ["recurrent", 199, 1, 4]],
    "lfm2-swa": [["dense", 0, 200, 0], ["window", 168, 32, 4], ["recurrent", 199, 1, 4]],
    "granitehybrid": [["dense", 0, 200, 2], ["recurrent", 199, 1, 6]],
    "falcon-h1": [["dense", 0, 200, 6], ["recurrent", 199, 1, 6]],
    "jamba": [["dense", 0, 200, 2], ["recurrent", 199, 1, 6]],
    "qwen35": [["dense", 0, 200, 5], ["recurrent", 199, 1, 4]],
    "qwen3next": [["dense", 0, 200, 4], ["recurrent", 199, 1, 4]],
    "deepseek32": [["dense", 0, 200, 2], ["dense", 0, 200, 2]],
    "minimax-m3": [["dense", 0, 200, 6], ["dense", 0, 200, 4]],
    "dots3note": [["dense", 0, 200, 1], ["dense", 0, 200, 1], ["window", 168, 32, 2]],
    "qwen4exp": [["dense", 0, 200, 5], ["recurrent", 199, 1, 4], ["dense", 0, 200, 2]],
    "deepseek4": [["opaque", 0, 200, 1]],
}
SETTINGS = [{"flash_attention": "on"}, {"flash_attention": "off"}, {"kv_type": "q8_0"}]
# 300 is where a window's ring of 256 cells has come round.
LENGTHS = [200, 183, 300]
MORE_LENGTHS = [*LENGTHS, 129, 250]


@pytest.fixture(
    scope="module",
    params=[LENGTHS, pytest.param(MORE_LENGTHS, marks=pytest.mark.full)],
    ids=["few", "more"],
)
def runs(
    request: pytest.FixtureRequest, tiny_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[tuple[Any, Any, Any]]]:
    """Of each model, every case with what it gave in the cold and in the warm process."""
    work = tmp_path_factory.mktemp("kinds")
    cases = [[model, s, n] for model in PARTS for s in SETTINGS for n in request.param]
    listed = work / "cases.json"
    listed.write_text(json.dumps(cases))

    def run(way: str) -> list[Any]:
        done = subprocess.run(
            [sys.executable, str(CHILD), way, str(tiny_models), str(work / "store"), str(listed)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            timeout=300,
        )
        return [json.loads(line) for line in done.stdout.splitlines()]

    found: dict[str, list[tuple[Any, Any, Any]]] = {model: [] for model in PARTS}
    for case, cold, warm in zip(cases, run("cold"), run("warm"), strict=True):
        found[case[0]].append((case, cold, warm))
    return found


@pytest.mark.parametrize("model", PARTS)
def test_a_restored_state_goes_on_with_the_same_bits(runs, model):
    """Sixteen tokens in one call and four greedy ones: no logit of any of them differs."""
    for case, cold, warm in runs[model]:
        assert cold["stored"] is True, case
        assert warm == {"digests": cold["digests"], "landed": True}, case


@pytest.mark.parametrize("model", PARTS)
def test_the_memory_is_read_as_its_parts(runs, model):
    """All but one kind are taken apart to the last byte, whatever the settings."""
    for (_, _, n), cold, _ in runs[model]:
        if n == 200:
            assert cold["parts"] == PARTS[model]


def test_other_prefixes_give_other_logits(runs):
    """The digests can differ: equality says something."""
    for cases in runs.values():
        seen = {tuple(cold["digests"]) for (_, _, n), cold, _ in cases if n in (200, 183)}
        assert len(seen) >= 2
