"""The checks of `edgellm doctor`: what fails, what only warns, and who is asked."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from edgellm.core import Mode
from edgellm.errors import EndpointError
from edgellm.hw.gpu import GpuFacts
from edgellm.hw.memory import MemoryFacts
from edgellm.hw.storage import StorageFacts
from edgellm.runtime import doctoring, machine_checks
from edgellm.runtime.doctoring import (
    checkup,
    endpoint_check,
    engine_checks,
    gpu_checks,
    keyring_check,
    memory_check,
)
from edgellm.runtime.engine_probe import EngineProbe

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgellm.runtime.doctoring import Check

GIB = 1 << 30
MUSL = "libc.musl-x86_64.so.1: cannot open shared object file"


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that says which modules are there."""

    def say(*names: str) -> None:
        specs = {name: SimpleNamespace() for name in names}
        finder = SimpleNamespace(find_spec=specs.get)
        monkeypatch.setattr(doctoring, "importlib", SimpleNamespace(util=finder))

    return say


def by_name(checks: list[Check] | tuple[Check, ...]) -> dict[str, Check]:
    """Return checks by their names."""
    return {check.name: check for check in checks}


def test_all_checks_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is made once, none is left out, and this machine is fit to answer."""
    monkeypatch.setattr(machine_checks, "measure", lambda *_: 12.5)
    found = by_name(tuple(checkup()))
    assert [
        *("settings", "CPU", "threads", "llama.cpp", "ONNX Runtime", "GPU", "memory"),
        *("bandwidth", "disk", "kernels", "keyring", "endpoint"),
    ] == list(found)
    assert "failed" not in {check.status for check in found.values()}
    assert found["bandwidth"].found.startswith("12.5 GB/s")
    assert found["endpoint"].status == "skipped"


def test_no_engine_at_all(installed: Callable[..., None]) -> None:
    """Without any there is no answer; with one the other is optional."""
    installed()
    assert ["failed", "skipped"] == [check.status for check in engine_checks()]
    installed("onnxruntime")
    assert "skipped" == next(iter(engine_checks())).status


def test_an_engine_for_another_cpu(
    installed: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-PK-01: the missing flag, and how to build one for this CPU."""
    installed("llama_cpp")
    probe = EngineProbe(missing=("avx2",), failure="the engine was built for a CPU with avx2")
    monkeypatch.setattr(doctoring, "probe_llama", lambda: probe)
    check = next(iter(engine_checks()))
    assert (check.status, check.found) == ("failed", probe.failure)
    assert "CMAKE_ARGS" in check.hint


def test_an_engine_for_another_libc(
    installed: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-PK-02: the loader's words and the command, for both engines."""
    installed("llama_cpp", "onnxruntime")
    for name in ("probe_llama", "probe_onnx"):
        monkeypatch.setattr(doctoring, name, lambda: EngineProbe(failure=MUSL))
    for check in engine_checks():
        assert check.status == "failed"
        assert MUSL in check.found
        assert "pip install" in check.hint


def test_onnx_names_its_providers(
    installed: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it would compute with, so that nobody takes a CPU for a GPU."""
    installed("onnxruntime")
    probe = EngineProbe(version="1.2", providers=("CPUExecutionProvider",))
    monkeypatch.setattr(doctoring, "probe_onnx", lambda: probe)
    assert "CPUExecutionProvider" in by_name(tuple(engine_checks()))["ONNX Runtime"].found


def test_a_gpu_that_the_engine_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """It warns, with the switch to build with; one that it can use is fine."""
    card = GpuFacts("card", "cuda", 8 * GIB, 7 * GIB, "8.9")
    monkeypatch.setattr(machine_checks, "gpu_kinds", lambda _: frozenset())
    (check,) = gpu_checks((card,))
    assert check.status == "warning"
    assert "-DGGML_CUDA=on" in check.hint
    monkeypatch.setattr(machine_checks, "gpu_kinds", lambda _: frozenset({"cuda"}))
    (check,) = gpu_checks((card,))
    assert (check.status, check.hint) == ("ok", "")
    assert "8.9" in check.found


@pytest.mark.parametrize(
    ("limited_by", "hint"),
    [
        ("host", "close other programs"),
        ("cgroup", "raise the control group's limit"),
        ("rlimit", "raise `ulimit -v`"),
    ],
)
def test_little_memory(monkeypatch: pytest.MonkeyPatch, limited_by: str, hint: str) -> None:
    """The figure that plans use, its source, and what would raise it."""
    facts = MemoryFacts(GIB // 2, GIB, limited_by, "/sys/fs/cgroup/memory.max")
    monkeypatch.setattr(machine_checks, "memory_facts", lambda: facts)
    check = memory_check()
    assert (check.status, check.hint) == ("warning", hint)
    assert "536.9 MB of 1.1 GB" in check.found
    assert "/sys/fs/cgroup/memory.max" in check.found


@pytest.mark.parametrize(
    ("write", "read", "status"),
    [(1e9, 1e9, "ok"), (1e7, 1e7, "warning"), (1e9, None, "ok"), (None, None, "failed")],
)
def test_a_disk(
    monkeypatch: pytest.MonkeyPatch, write: float | None, read: float | None, status: str
) -> None:
    """One that cannot be written fails, a slow one warns."""
    facts = StorageFacts(Path("/home/u"), 10 * GIB, write, read)
    monkeypatch.setattr(machine_checks, "storage_facts", lambda _: facts)
    assert machine_checks.storage_check().status == status


def test_too_little_memory_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the bandwidth stays unknown, and nothing fails."""
    monkeypatch.setattr(machine_checks, "measure", lambda *_: None)
    assert machine_checks.bandwidth_check().status == "skipped"


def test_an_old_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it lacks for speed is named; one that says nothing is not called slow."""
    monkeypatch.setattr(machine_checks, "cpu_flags", lambda: frozenset({"sse2", "avx"}))
    assert "without avx2, f16c, fma" in machine_checks.cpu_check().found
    monkeypatch.setattr(machine_checks, "cpu_flags", lambda: frozenset({"asimd"}))
    assert "without asimddp" in machine_checks.cpu_check().found
    monkeypatch.setattr(machine_checks, "cpu_flags", frozenset)
    assert "not known" in machine_checks.cpu_check().found


class Backend:
    """A keyring of a kind."""

    def __init__(self, priority: float) -> None:
        self.priority = priority


@pytest.fixture
def keyring(installed: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Put a keyring package there whose backend can be chosen."""
    installed("keyring")
    package, errors = ModuleType("keyring"), ModuleType("keyring.errors")
    errors.KeyringError = type("KeyringError", (Exception,), {})
    package.get_keyring = lambda: Backend(5)
    monkeypatch.setitem(sys.modules, "keyring", package)
    monkeypatch.setitem(sys.modules, "keyring.errors", errors)
    return package


def test_a_keyring(keyring: ModuleType) -> None:
    """One that is there, and the backend of machines that have none."""
    assert keyring_check("").status == "ok"
    keyring.get_keyring = lambda: Backend(0)
    assert keyring_check("").status == "skipped"
    assert keyring_check("keyring").status == "failed"


def test_a_keyring_that_fails(keyring: ModuleType) -> None:
    """Asked for, it is a failure with another way; else it is left out."""

    def fail() -> Backend:
        raise RuntimeError("no bus")

    keyring.get_keyring = fail
    check = keyring_check("keyring")
    assert (check.status, "no bus" in check.found, "file:PATH" in check.hint) == (
        "failed",
        True,
        True,
    )


def test_no_keyring_package(installed: Callable[..., None]) -> None:
    """It fails only where the user wants it."""
    installed()
    assert ["skipped", "failed"] == [keyring_check(name).status for name in ("", "keyring")]


def never() -> str:
    """Ask an endpoint that must not be asked."""
    raise AssertionError


@pytest.mark.parametrize("mode", [Mode.OFFLINE, Mode.PRIVATE])
def test_no_endpoint_is_asked_in_a_closed_mode(mode: Mode) -> None:
    """The mode decides, not the flag."""
    check = endpoint_check(never, mode)
    assert check.status == "failed"
    assert mode.value in check.found


def test_an_endpoint_is_asked_only_with_a_probe() -> None:
    """And says what it found, or why it cannot be had."""
    assert endpoint_check(None, Mode.PREFER_CLOUD).status == "skipped"
    assert endpoint_check(lambda: "it is there", Mode.PREFER_LOCAL).found == "it is there"

    def fail() -> str:
        raise EndpointError("no connection", kind="connect", hint="start it")

    check = endpoint_check(fail, Mode.PREFER_LOCAL)
    assert (check.status, check.found, check.hint) == ("failed", "no connection", "start it")
