"""Why a worker's process ended, and which trigger that is. Pure: facts in, a verdict with its evidence out.

The exit code alone does not say: memory that runs out ends a process by SIGABRT, by SIGKILL, by a code of
Windows, or by nothing but words in a log, and each of them has other causes as well. Only with evidence
is it memory; whatever is in doubt was a kill or a crash, for which nothing is ever sent out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from edgellm.errors import (
    DoesNotFit,
    EngineFailed,
    EngineUnavailable,
    ModelNotFound,
    ModelUnsupported,
    OutOfMemory,
    PromptTooLong,
    WorkerDied,
)
from edgellm.policy.endings import (
    SIGABRT,
    SIGKILL,
    SIGTERM,
    described,
    says_memory,
    signal_of,
)
from edgellm.routing import Trigger

if TYPE_CHECKING:
    from edgellm.errors import EdgeLLMError
    from edgellm.hw.cgroups import MemoryCounters
    from edgellm.routing import Phase

DeathKind = Literal["out_of_memory", "killed", "crashed", "cancelled"]

FULL_PRESSURE_PERCENT: Final = 20.0
LOW_MEMORY_BYTES: Final = 32 << 20
_MAX_LOG_CHARS: Final = 8192
_MAX_PHRASE: Final = 160

LOG_SIGNS: Final = (
    "std::bad_alloc",
    "memoryerror",
    "out of memory",
    "cudamalloc failed",
    "cublas_status_alloc_failed",
    "hiperroroutofmemory",
    "failed to allocate",
    "unable to allocate",
    "cannot allocate memory",
    "not enough memory",
    "insufficient memory",
    "kiogpucommandbuffercallbackerroroutofmemory",
    "vk_error_out_of_device_memory",
    "vk_error_out_of_host_memory",
    "erroroutofdevicememory",
    "erroroutofhostmemory",
    "cl_mem_object_allocation_failure",
    "nvmapmemalloc",
    "bfcarena::allocaterawinternal",
)
"""What engines and runtimes write when memory ran out, in lower case. Sources: ggml's CUDA, Metal and
Vulkan backends, libstdc++, Python, ONNX Runtime, NVIDIA's Jetson driver."""


@dataclass(frozen=True, slots=True)
class DeathFacts:
    """What is known of a process that ended.

    Attributes:
        returncode: as the system gave it, negative for a signal; None if it could not be asked.
        phase: what it was doing.
        log: the last lines of its stderr.
        raised: what it said it raised, `MemoryError` and its text, or "".
        asked: whether we ended it ourselves, or told it to end.
        before: its group's counters when the work began, or None.
        after: the same after its end.
        full_pressure: share of time, in percent over ten seconds, in which all waited for memory,
            as last read; None is unknown.
        available_bytes: that it could still take when last looked at; None is unknown.
    """

    returncode: int | None
    phase: Phase
    log: str = ""
    raised: str = ""
    asked: bool = False
    before: MemoryCounters | None = None
    after: MemoryCounters | None = None
    full_pressure: float | None = None
    available_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a process ended.

    Attributes:
        kind: of the end.
        trigger: what follows from it for the route; None for an end that was asked for.
        evidence: what says so, one phrase each, without any text of a prompt.
        may_restart: whether starting it again can help: a file whose reading crashes will do it again.
    """

    kind: DeathKind
    trigger: Trigger | None
    evidence: tuple[str, ...]
    may_restart: bool


def classify(facts: DeathFacts) -> Verdict:
    """Say why a process ended."""
    ending = described(facts.returncode)
    if facts.raised:
        ending = f"{ending}, after {facts.raised[:_MAX_PHRASE]}"
    if facts.asked:
        return Verdict("cancelled", None, (ending,), may_restart=True)
    evidence = _memory_evidence(facts)
    if evidence:
        trigger = Trigger.LOAD_OOM if facts.phase in ("load", "context") else Trigger.WORKER_DIED
        return Verdict("out_of_memory", trigger, (ending, *evidence), may_restart=True)
    if signal_of(facts.returncode) in (SIGKILL, SIGTERM):
        return Verdict("killed", Trigger.WORKER_KILLED, (ending,), may_restart=True)
    may_restart = facts.phase != "load"
    return Verdict("crashed", Trigger.WORKER_KILLED, (ending,), may_restart=may_restart)


def death_error(verdict: Verdict, facts: DeathFacts, path: str) -> OutOfMemory | WorkerDied:
    """Return the error that tells of a death: `OutOfMemory` (exit 4) or `WorkerDied` (exit 1)."""
    said = "; ".join(verdict.evidence)
    if verdict.kind == "out_of_memory":
        return OutOfMemory(
            f"memory ran out ({facts.phase}): {said}",
            phase=facts.phase,
            evidence=verdict.evidence,
            have_bytes=facts.available_bytes,
            path=path,
            hint="try a smaller --ctx or --batch, --kv-type q8_0 or a smaller model; "
            "`edgellm plan` shows what fits",
        )
    if verdict.kind == "killed":
        what = "the engine's process was killed (often for memory, but nothing here says so)"
        hint = "ask the system's log who killed it; `edgellm plan` shows what fits"
    else:
        what = "the engine's process crashed"
        hint = "check the file with `edgellm info`" if facts.phase == "load" else ""
    return WorkerDied(
        f"{what} ({facts.phase}): {said}",
        phase=facts.phase,
        returncode=facts.returncode or 0,
        evidence=verdict.evidence,
        path=path,
        hint=hint,
    )


def trigger_of(error: EdgeLLMError, phase: Phase) -> Trigger | None:
    """Return which trigger an error is that the engine raised itself; None ends the turn with it.

    Args:
        error: as the session in the worker raised it, or a death as an error.
        phase: what it was doing.
    """
    if isinstance(error, DoesNotFit):
        early = phase in ("load", "context")
        return Trigger.LOAD_OOM if early else Trigger.WORKER_DIED
    if isinstance(error, PromptTooLong):
        return Trigger.CONTEXT
    if isinstance(error, (EngineUnavailable, ModelNotFound, ModelUnsupported)):
        return Trigger.UNSUPPORTED
    if isinstance(error, WorkerDied):
        return Trigger.WORKER_KILLED
    if isinstance(error, EngineFailed) and phase in ("prefill", "decode"):
        return Trigger.DECODE_FATAL
    return None


def _memory_evidence(facts: DeathFacts) -> tuple[str, ...]:
    """Return what says that memory ran out, the surest first; nothing if nothing does."""
    found = [*_counted(facts), *_told(facts)]
    if says_memory(facts.returncode):
        found.append("which stands for want of memory")
    # What a healthy machine may show too counts only for the ends that want of memory brings about.
    if signal_of(facts.returncode) in (SIGKILL, SIGABRT):
        pressure = facts.full_pressure or 0.0
        if pressure > FULL_PRESSURE_PERCENT:
            found.append(f"memory pressure was {pressure:.0f} %")
        if facts.available_bytes is not None and facts.available_bytes < LOW_MEMORY_BYTES:
            found.append(f"only {facts.available_bytes >> 20} MiB were left")
    return tuple(found)


def _counted(facts: DeathFacts) -> list[str]:
    """Return what the kernel's counters say of a SIGKILL."""
    before, after = facts.before, facts.after
    if before is None or after is None or signal_of(facts.returncode) != SIGKILL:
        return []
    if before.oom_kills is not None and after.oom_kills is not None:
        # The group's own count stands above the machine's, which is of other processes as well.
        grown = after.oom_kills > before.oom_kills
        return ["the kernel killed it for memory (its control group)"] if grown else []
    grown = (after.machine_oom_kills or 0) > (before.machine_oom_kills or 0)
    return ["the kernel killed a process for memory at that time"] if grown else []


def _told(facts: DeathFacts) -> list[str]:
    """Return what the process itself said of memory."""
    if facts.raised.startswith("MemoryError"):
        return ["it raised MemoryError"]
    log = facts.log[-_MAX_LOG_CHARS:].lower()
    sign = next((sign for sign in LOG_SIGNS if sign in log), None)
    # A process that was killed from outside may have logged an allocation that it got over.
    if sign is None or signal_of(facts.returncode) in (SIGKILL, SIGTERM):
        return []
    return [f"its log says `{sign}`"]
