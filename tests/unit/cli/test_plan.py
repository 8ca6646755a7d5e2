"""`edgellm plan`: what it says, its flags, and its exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any


@pytest.fixture
def model(tiny_models: Path) -> Path:
    """A model of a few kilobytes."""
    return tiny_models / "tiny-llama.gguf"


def test_lines_for_people(cli: Any, model: Path) -> None:
    """Whether it fits, what it takes by parts, and each setting with its reason."""
    result = cli("plan", model)
    assert (result.code, result.err) == (0, "")
    labels = [line.partition(":")[0].strip() for line in result.out.splitlines()]
    for label in ("model", "machine", "fits", "memory", "context", "batch", "threads", "speed"):
        assert label in labels
    assert "yes: " in result.out
    assert "keys and values of all " in result.out


def test_one_object_for_programs(cli: Any, model: Path) -> None:
    """Numbers in bytes and tokens, settings and reasons by name."""
    (plan,) = cli("plan", model, "--json").lines
    assert (plan["type"], plan["fits"], plan["ways"]) == ("plan", True, [])
    assert plan["need_bytes"] <= plan["have_bytes"]
    parts = {name: n for name, n in plan["estimate"].items() if name.endswith("_bytes")}
    reserved = parts.pop("reserved_bytes")
    if plan["limited_by"] != "rlimit":
        assert sum(parts.values()) == plan["need_bytes"] + plan["gpu_need_bytes"]
    assert reserved >= 0
    assert set(plan["settings"]) <= {*plan["reasons"], "memory"}


def test_flags_are_wishes(cli: Any, model: Path) -> None:
    """Each is kept, and its reason is that it was asked for."""
    flags = ["--ctx", 1024, "--kv-type", "q8_0", "--batch", 64, "--threads", 3, "--gpu-layers", 0]
    (plan,) = cli("plan", model, *flags, "--snapshot", "off", "--json").lines
    settings, reasons = plan["settings"], plan["reasons"]
    expected = {"n_ctx": 1024, "kv_type": "q8_0", "n_batch": 64, "n_threads": 3, "n_gpu_layers": 0}
    for name, value in expected.items():
        assert (settings[name], reasons[name]) == (value, "asked for")
    assert not settings["snapshots"]


def test_for_another_machine(cli: Any, model: Path) -> None:
    """The profile's memory, threads, GPU and bandwidth, none of this machine's."""
    (plan,) = cli("plan", model, "--device", "laptop-rtx-4060-8gb", "--json").lines
    assert (plan["profile"], plan["limited_by"]) == ("laptop-rtx-4060-8gb", "profile")
    assert plan["settings"]["n_threads"] == 8
    assert plan["settings"]["n_gpu_layers"] > 0
    assert plan["gpu_have_bytes"] == 7 << 30
    assert "NVIDIA GeForce RTX 4060 Laptop GPU" in plan["reasons"]["n_gpu_layers"]
    assert plan["tokens_per_s_at_most"] > 0


def test_a_gpu_that_is_too_small(cli: Any, model: Path) -> None:
    """It is the GPU's memory that is short, and the line that says no says so."""
    flags = ["--device", "laptop-rtx-4050-6gb", "--gpu-layers", 99, "--ctx", 12_000_000]
    result = cli("plan", model, *flags, "--snapshot", "off")
    assert result.code == 4
    assert "no, the GPU's memory is too small: " in result.out


def test_what_does_not_fit(cli: Any, model: Path) -> None:
    """The plan is printed all the same, ways go to stderr, and the code is 4."""
    result = cli("plan", model, "--device", "raspberry-pi-5-4gb", "--ctx", 1 << 30)
    assert result.code == 4
    assert "no: " in result.out
    assert result.err.count("hint: ") == 3
    assert "warning: the model was trained with" in result.err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["none.gguf"], 3, "none.gguf"),
        (["{model}", "--device", "none"], 2, "no device profile 'none'"),
        (["{model}", "--ctx", "99999999999"], 2, "--ctx must be at most"),
        (["{model}", "--threads", "513"], 2, "--threads must be at most 512"),
        (["{model}", "--gpu-layers", "many"], 2, "many"),
        (["{model}", "--kv-type", "q9"], 2, "q9"),
    ],
)
def test_errors(cli: Any, model: Path, words: list[str], code: int, message: str) -> None:
    """As of any command."""
    result = cli("plan", *(word.format(model=model) for word in words))
    assert (result.code, result.out) == (code, "")
    assert message in result.err
