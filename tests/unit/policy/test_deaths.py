"""Why a process ended: a table of endings, each with the words and counters that came with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgellm.errors import (
    DoesNotFit,
    EdgeLLMError,
    EngineFailed,
    EngineUnavailable,
    ModelCorrupt,
    ModelNotFound,
    ModelUnsupported,
    OutOfMemory,
    PromptTooLong,
    TemplateError,
    UsageError,
    WorkerDied,
)
from edgellm.hw.cgroups import MemoryCounters
from edgellm.policy.deaths import DeathFacts, classify, death_error, trigger_of
from edgellm.policy.endings import described
from edgellm.routing import Phase, Trigger

CUDA = """CUDA error: out of memory
  current device: 0, in function alloc at ggml-cuda.cu:503
  cuMemCreate(&handle, reserve_size, &prop, 0)
ggml-cuda.cu:98: CUDA error
"""
METAL = (
    "ggml_metal_graph_compute: command buffer 0 failed with status 5\n"
    "error: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)\n"
)
VULKAN = "terminate called after throwing an instance of 'vk::OutOfDeviceMemoryError'\n  what():  vk::Device::allocateMemory: ErrorOutOfDeviceMemory\n"
BAD_ALLOC = (
    "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"
)
JETSON = "NvMapMemAllocInternalTagged: 1075072515 error 12\nNvMapMemHandleAlloc: error 0\n"
ONNX = "BFCArena::AllocateRawInternal Failed to allocate memory for requested buffer of size 4096"
HEALTHY = "llama_context: n_ctx = 4096\nprefix snapshot stored\n"
NONE_KILLED = MemoryCounters(0, 3, 0)
OOM = "out_of_memory"


def counted(kills: int | None, machine: int | None = 0) -> MemoryCounters:
    return MemoryCounters(kills, 3, machine)


ENDINGS = [
    (-6, BAD_ALLOC, None, None, OOM),
    (-6, CUDA, None, None, OOM),
    (-6, METAL, None, None, OOM),
    (-6, VULKAN, None, None, OOM),
    (-6, JETSON, None, None, OOM),
    (-11, "ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer", None, None, OOM),
    (1, ONNX, None, None, OOM),
    (134, BAD_ALLOC, None, None, OOM),
    (0xC0000409, CUDA, None, None, OOM),
    (0xC0000409 - (1 << 32), CUDA, None, None, OOM),
    (0xC0000017, "", None, None, OOM),
    (0xC000012D, "", None, None, OOM),
    (-9, "", counted(0), counted(1), OOM),
    (137, "", counted(0), counted(1), OOM),
    (-9, "", counted(None, 4), counted(None, 5), OOM),
    # The group's own counter stands still: the machine killed somebody else.
    (-9, "", counted(0, 4), counted(0, 5), "killed"),
    (-9, "", NONE_KILLED, NONE_KILLED, "killed"),
    (-9, "", NONE_KILLED, replace(NONE_KILLED, limit_hits=900), "killed"),
    (-9, BAD_ALLOC, NONE_KILLED, NONE_KILLED, "killed"),
    (-9, "", None, None, "killed"),
    (-15, "", None, None, "killed"),
    # Somebody else in the group was killed; this one crashed by itself.
    (-11, "", counted(0), counted(1), "crashed"),
    (-11, HEALTHY, None, None, "crashed"),
    (-6, "GGML_ASSERT(n_tokens > 0) failed", None, None, "crashed"),
    (-4, "", None, None, "crashed"),
    (-7, "", None, None, "crashed"),
    (0xC0000005, "", None, None, "crashed"),
    (0xC0000374, "", None, None, "crashed"),
    (0xC0000409, HEALTHY, None, None, "crashed"),
    (1, "ModuleNotFoundError: No module named 'edgellm'", None, None, "crashed"),
    (0, "", None, None, "crashed"),
    (None, "", None, None, "crashed"),
]


@pytest.mark.parametrize(("returncode", "log", "before", "after", "kind"), ENDINGS)
def test_endings(
    returncode: int | None,
    log: str,
    before: MemoryCounters | None,
    after: MemoryCounters | None,
    kind: str,
) -> None:
    """Exit code, words and counters together tell memory from a kill and from a crash."""
    facts = DeathFacts(returncode, "decode", log, before=before, after=after)
    assert classify(facts).kind == kind


@pytest.mark.parametrize("returncode", [row[0] for row in ENDINGS])
def test_an_end_that_was_asked_for_is_no_failure(returncode: int | None) -> None:
    """Whatever it looks like: we ended it, so nothing follows."""
    verdict = classify(DeathFacts(returncode, "decode", CUDA, asked=True))
    assert (verdict.kind, verdict.trigger) == ("cancelled", None)


@pytest.mark.parametrize(
    ("phase", "trigger"),
    [
        ("load", Trigger.LOAD_OOM),
        ("context", Trigger.LOAD_OOM),
        ("prefill", Trigger.WORKER_DIED),
        ("decode", Trigger.WORKER_DIED),
        ("snapshot", Trigger.WORKER_DIED),
    ],
)
def test_g7_the_same_error_in_every_phase(phase: Phase, trigger: Trigger) -> None:
    """A real allocation failure yields the same typed `OutOfMemory` at load, prefill, decode and snapshot."""
    facts = DeathFacts(-6, phase, BAD_ALLOC)
    verdict = classify(facts)
    error = death_error(verdict, facts, "m.gguf")
    assert verdict.trigger is trigger
    assert isinstance(error, OutOfMemory)
    assert (error.phase, error.exit_code, error.hint != "") == (phase, 4, True)


@pytest.mark.parametrize("log", [CUDA, METAL, VULKAN, JETSON, ONNX, BAD_ALLOC])
def test_g7_every_backends_words_are_the_same_error(log: str) -> None:
    """A real allocation failure yields the same typed `OutOfMemory`: the logs of all backends."""
    facts = DeathFacts(-6, "decode", log)
    error = death_error(classify(facts), facts, "m.gguf")
    assert isinstance(error, OutOfMemory)
    assert any("log says" in phrase for phrase in error.evidence)


def test_a_memory_error_of_python_is_memory() -> None:
    """What the process itself said it raised needs no other evidence."""
    facts = DeathFacts(1, "snapshot", raised="MemoryError: Unable to allocate 96.0 MiB")
    assert classify(facts).kind == OOM


@pytest.mark.parametrize(
    ("returncode", "pressure", "available", "kind"),
    [
        (-9, 55.0, None, OOM),  # systemd-oomd leaves no count of the kernel's
        (-9, 3.0, None, "killed"),
        (-9, None, 4 << 20, OOM),
        (-9, None, 4 << 30, "killed"),
        (-6, None, 4 << 20, OOM),
        (-11, 55.0, 4 << 20, "crashed"),
    ],
)
def test_the_state_of_memory_speaks_for_kills_and_aborts(
    returncode: int, pressure: float | None, available: int | None, kind: str
) -> None:
    """High pressure, or next to nothing left, makes a kill or an abort one for memory."""
    facts = DeathFacts(returncode, "decode", full_pressure=pressure, available_bytes=available)
    assert classify(facts).kind == kind


def test_a_crash_while_loading_is_not_tried_again() -> None:
    """A file whose reading crashes the engine does so again; a crash later may be chance."""
    assert not classify(DeathFacts(-11, "load")).may_restart
    assert classify(DeathFacts(-11, "decode")).may_restart
    assert classify(DeathFacts(-6, "load", BAD_ALLOC)).may_restart


@pytest.mark.parametrize("row", ENDINGS)
def test_only_memory_is_ever_a_reason_to_go_elsewhere(row: tuple[object, ...]) -> None:
    """Kills and crashes are `worker_killed`, which never sends anything out."""
    verdict = classify(DeathFacts(row[0], "decode", row[1], before=row[2], after=row[3]))  # type: ignore[arg-type]
    assert (verdict.trigger is Trigger.WORKER_KILLED) == (verdict.kind in ("killed", "crashed"))


def test_evidence_holds_no_text_of_the_log() -> None:
    """Only the known words of the log are repeated: other lines may hold what was asked."""
    verdict = classify(DeathFacts(-6, "decode", "secret CANARY-7f3a\n" + BAD_ALLOC))
    assert "CANARY" not in " ".join(verdict.evidence)


@pytest.mark.parametrize(
    ("returncode", "words"),
    [
        (-9, "signal SIGKILL"),
        (137, "signal SIGKILL"),
        (-64, "signal 64"),
        (3, "exit code 3"),
        (0xC0000005, "exit code 0xC0000005 STATUS_ACCESS_VIOLATION"),
        (0xC0000005 - (1 << 32), "exit code 0xC0000005 STATUS_ACCESS_VIOLATION"),
        (0xC0009999, "exit code 0xC0009999"),
        (None, "it ended, nobody knows how"),
    ],
)
def test_exit_codes_in_words(returncode: int | None, words: str) -> None:
    """Numbers that people can look up, with their names where they have one."""
    assert described(returncode) == words


def test_an_error_says_how_the_process_ended() -> None:
    """A kill carries its signal, and says that memory is often the reason."""
    facts = DeathFacts(-9, "decode")
    error = death_error(classify(facts), facts, "m.gguf")
    assert isinstance(error, WorkerDied)
    assert error.signal == 9
    assert "often for memory" in str(error)
    assert "SIGKILL" in str(error)


@pytest.mark.parametrize(
    ("error", "phase", "trigger"),
    [
        (DoesNotFit("x"), "load", Trigger.LOAD_OOM),
        (DoesNotFit("x"), "context", Trigger.LOAD_OOM),
        (OutOfMemory("x"), "decode", Trigger.WORKER_DIED),
        (EngineFailed("x"), "decode", Trigger.DECODE_FATAL),
        (EngineFailed("x"), "prefill", Trigger.DECODE_FATAL),
        (EngineFailed("x"), "load", None),
        (PromptTooLong("x"), "prefill", Trigger.CONTEXT),
        (EngineUnavailable("x"), "load", Trigger.UNSUPPORTED),
        (ModelNotFound("x"), "load", Trigger.UNSUPPORTED),
        (ModelUnsupported("x"), "load", Trigger.UNSUPPORTED),
        (WorkerDied("x"), "decode", Trigger.WORKER_KILLED),
        (ModelCorrupt("x"), "load", None),
        (UsageError("x"), "prefill", None),
        (TemplateError("x"), "prefill", None),
    ],
)
def test_errors_and_their_triggers(
    error: EdgeLLMError, phase: Phase, trigger: Trigger | None
) -> None:
    """What the user got wrong is no trigger: it is wrong everywhere."""
    assert trigger_of(error, phase) is trigger
