"""The memory estimate against the engine: what it logs for every kind of memory, and what processes take.

The engine logs two decimals of a MiB for each buffer, so contexts are long enough that a byte a token shows.
"""

from __future__ import annotations

import importlib.util
import itertools
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edgellm.hw.flags import cpu_flags
from edgellm.policy.estimate import Estimate, PlanSettings, estimate

if TYPE_CHECKING:
    from types import ModuleType

BENCH = Path(__file__).parents[1] / "bench"
MIB = 1 << 20
KINDS = (
    *("llama", "qwen3moe", "deepseek2", "gemma3", "mamba", "mamba2", "rwkv7", "lfm2", "lfm2-swa"),
    *("granitehybrid", "falcon-h1", "jamba", "qwen35", "qwen3next", "deepseek32", "minimax-m3"),
    *("dots3note", "qwen4exp", "deepseek4"),
)
CONTEXTS, BATCHES, KV_TYPES = (256, 3000, 20000), (64, 512), ("f32", "f16", "q8_0", "q4_0")
CASES = [
    PlanSettings(n_ctx, n_batch, kv_type, flash_attention=flash)
    for n_ctx, n_batch, kv_type in itertools.product(CONTEXTS, BATCHES, KV_TYPES)
    for flash in (("auto", "off") if kv_type == "f16" else ("auto",))
]
LOG_MIB = 0.0051  # two decimals, for each buffer
# How far the reserved buffer may be off, as shares under and over. An index that chooses blocks is empty
# when the engine reserves: it counts the first of them, the estimate counts all.
COMPUTE = {"minimax-m3": (0.02, 0.2), "deepseek4": (0.3, 0.25), "dots3note": (0.02, 0.08)}
COMPUTE |= {"deepseek32": (0.02, 0.08)}
OTHERS = (0.02, 0.05)


@pytest.fixture(scope="module")
def memory() -> ModuleType:
    """The bench that measures all cases: its parts are used here on a few."""
    sys.path.insert(0, str(BENCH))
    try:
        spec = importlib.util.spec_from_file_location("bench_memory", BENCH / "memory.py")
        if spec is None or spec.loader is None:
            raise ImportError("tests/bench/memory.py cannot be loaded")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(BENCH))
    return module


@pytest.fixture(scope="module")
def told(memory: ModuleType, tiny_models: Path) -> dict[str, list[dict[str, Any]]]:
    """What the engine logs for every tiny model and case, from one process."""
    paths = [tiny_models / f"tiny-{kind}.gguf" for kind in KINDS]
    rows = memory.logged([(path, CASES) for path in paths])
    return dict(zip(KINDS, rows, strict=True))


def foreseen(memory: ModuleType, path: Path) -> list[Estimate]:
    """Estimate all cases of one model."""
    shape = memory.shape_at(path)
    return [estimate(shape, case, flags=cpu_flags()) for case in CASES]


@pytest.mark.parametrize("kind", KINDS)
def test_keys_values_and_states_are_exact(
    kind: str, memory: ModuleType, told: dict[str, list[dict[str, Any]]], tiny_models: Path
):
    """Caches, windows, indexes and states take what is said, for every context, batch and type."""
    for case, one, row in zip(
        CASES, foreseen(memory, tiny_models / f"tiny-{kind}.gguf"), told[kind], strict=True
    ):
        assert row["kv"]
        assert abs(one.kv_bytes / MIB - sum(row["kv"])) <= LOG_MIB * len(row["kv"]), case


@pytest.mark.parametrize("kind", KINDS)
def test_the_graph_takes_what_the_engine_reserves(
    kind: str, memory: ModuleType, told: dict[str, list[dict[str, Any]]], tiny_models: Path
):
    """The largest graph is placed as the engine places it; what is counted roughly says so."""
    under, over = COMPUTE.get(kind, OTHERS)
    for case, one, row in zip(
        CASES, foreseen(memory, tiny_models / f"tiny-{kind}.gguf"), told[kind], strict=True
    ):
        reserved, actual = one.reserved_bytes / MIB, row["compute"]
        slack = 0.1  # of a MiB: states beside small batches
        assert actual * (1 - under) - slack <= reserved <= actual * (1 + over) + slack, case
        assert one.compute_bytes > 0
        if under > OTHERS[0]:
            assert one.unknown


@pytest.mark.model
def test_real_models_take_what_the_engine_says(
    memory: ModuleType, smollm2_gguf: Path, gemma3_gguf: Path
):
    """Keys, values, the graph, and the weights that this CPU's kernels want in another layout."""
    cases = [PlanSettings(4096), PlanSettings(4096, kv_type="q8_0"), PlanSettings(1000, 128)]
    rows = memory.logged([(smollm2_gguf, cases), (gemma3_gguf, cases)])
    for path, told_of_path in zip((smollm2_gguf, gemma3_gguf), rows, strict=True):
        shape = memory.shape_at(path)
        for case, row in zip(cases, told_of_path, strict=True):
            one = estimate(shape, case, flags=cpu_flags())
            assert memory.kv_is_exact(one, row), case
            assert one.reserved_bytes / MIB == pytest.approx(row["compute"], rel=0.01), case
            repacked = one.weights_resident_bytes / MIB
            assert repacked == pytest.approx(row["repacked"], abs=LOG_MIB), case


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what a process takes")
@pytest.mark.parametrize(("name", "kv_type"), [("grouped", "q8_0"), ("hybrid", "f16")])
def test_a_process_takes_what_is_foreseen(
    name: str, kv_type: str, memory: ModuleType, tmp_path: Path
):
    """The peak of a process that loads, prefills, decodes and keeps a snapshot is near, and not over."""
    path = memory.make(name, tmp_path)
    case = memory.measured(path, PlanSettings(1024, kv_type=kv_type, n_threads=2))
    assert abs(case.error_bytes) <= case.allowed_bytes
    assert case.error_bytes >= -memory.UNDER_BYTES


@pytest.mark.full
@pytest.mark.model
@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what a process takes")
def test_all_cases_meet_their_goals(tmp_path: Path, smollm2_gguf: Path, gemma3_gguf: Path):
    """Eight models, three contexts, two types: the bench's goals hold."""
    assert smollm2_gguf.exists()
    assert gemma3_gguf.exists()
    command = [sys.executable, str(BENCH / "memory.py"), "--models", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
