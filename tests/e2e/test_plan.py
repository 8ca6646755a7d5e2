"""Plans under real limits, and engines that cannot be loaded: real groups, real processes, real files.

Where this process may make control groups (version 1, as root), the limits are theirs; elsewhere the
limit of memory is the process's own address space, and CPUs are taken by affinity alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgellm.hw.flags import cpu_flags, is_arm

MIB = 1 << 20
CGROUP = Path("/sys/fs/cgroup")
LIMIT_BYTES = 512 * MIB
MUSL = "libc.musl-x86_64.so.1: cannot open shared object file: No such file or directory"
Run = Callable[..., Any]


@pytest.fixture
def group() -> Iterator[Callable[..., Callable[[], None] | None]]:
    """Return a function that makes a group of a controller, and returns what puts a child into it.

    None where groups cannot be made here.
    """
    made: list[Path] = []

    def make(controller: str, **values: object) -> Callable[[], None] | None:
        folder = CGROUP / controller / f"edgellm-test-{os.getpid()}-{len(made)}"
        try:
            folder.mkdir()
        except OSError:
            return None
        made.append(folder)
        for name, value in values.items():
            (folder / f"{controller}.{name}").write_text(str(value))

        def enter() -> None:
            (folder / "cgroup.procs").write_text(str(os.getpid()))

        return enter

    yield make
    for folder in made:
        with contextlib.suppress(OSError):
            folder.rmdir()


def limit_address_space() -> None:
    """Take the limit that any process may set for itself."""
    resource.setrlimit(resource.RLIMIT_AS, (4 * LIMIT_BYTES, 4 * LIMIT_BYTES))


def edgellm(*words: object, enter: Callable[[], None] | None = None, **env: str) -> Any:
    """Run a command in a process of its own, which enters a group before it starts."""
    return subprocess.run(
        [sys.executable, "-m", "edgellm", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=enter,
        env={**os.environ, **env},
    )


def test_the_limit_of_a_container_counts(
    tiny_models: Path, group: Callable[..., Callable[[], None] | None]
) -> None:
    """F-MM-02: the tightest limit is what is planned with, not the machine's memory."""
    model = tiny_models / "tiny-llama.gguf"
    enter = group("memory", limit_in_bytes=LIMIT_BYTES)
    done = edgellm("plan", model, "--json", enter=enter or limit_address_space)
    plan = json.loads(done.stdout)
    if enter is None:
        assert plan["limited_by"] == "rlimit"
        assert plan["have_bytes"] < 4 * LIMIT_BYTES
    else:
        assert plan["limited_by"] == "cgroup"
        assert plan["have_bytes"] + plan["margin_bytes"] <= LIMIT_BYTES
    assert (done.returncode, plan["fits"]) == (0, True)


def test_it_is_refused_before_it_is_killed(
    tiny_models: Path, group: Callable[..., Callable[[], None] | None]
) -> None:
    """F-MM-02: a context beyond the limit ends with exit 4 and three ways, one of which is shorter."""
    enter = group("memory", limit_in_bytes=LIMIT_BYTES) or limit_address_space
    words = ("plan", tiny_models / "tiny-llama.gguf", "--ctx", 1 << 26)
    done = edgellm(*words, enter=enter)
    assert done.returncode == 4, done.stderr
    assert "no: " in done.stdout
    assert done.stderr.count("hint: ") == 3
    assert "--ctx " in done.stderr
    run = edgellm("run", *words[1:], "-p", "hi", enter=enter)
    assert (run.returncode, run.stdout) == (4, "")
    assert "ways to fit: --ctx " in run.stderr


def test_page_cache_is_not_used_memory(
    tiny_models: Path, tmp_path: Path, group: Callable[..., Callable[[], None] | None]
) -> None:
    """F-MM-01: the same plan, within 5 %, before and after files were read, even into a small group."""
    enter = group("memory", limit_in_bytes=LIMIT_BYTES)
    big = tmp_path / "big.file"
    with big.open("wb") as file:
        file.truncate(300 * MIB)
    code = (
        "import json, sys\n"
        "from edgellm.hw.memory import memory_facts\n"
        "def read():\n"
        "    with open(sys.argv[1], 'rb', buffering=0) as file:\n"
        "        while file.read(1 << 20):\n"
        "            pass\n"
        "memory_facts()\n"
        "told = [memory_facts().available_bytes]\n"
        "for _ in range(2):\n"  # the second time it goes to the active list
        "    read()\n"
        "    told.append(memory_facts().available_bytes)\n"
        "print(json.dumps(told))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(big)],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=enter,
    )
    before, *after = json.loads(done.stdout)
    for now in after:
        assert abs(now - before) <= before / 20


def test_available_and_not_free_memory(tmp_path: Path) -> None:
    """F-MM-01: a machine whose memory is full of cache has all of that to give."""
    (tmp_path / "meminfo").write_text(
        "MemTotal:        8000000 kB\nMemFree:          200000 kB\nMemAvailable:    6000000 kB\n"
        "Buffers:          100000 kB\nCached:          5700000 kB\nActive:          1000000 kB\n"
        "Inactive:        5000000 kB\nShmem:            10000 kB\nSlab:             100000 kB\n"
        "SReclaimable:      50000 kB\n"
    )
    code = (
        "import psutil, sys; psutil.PROCFS_PATH = sys.argv[1]\n"
        "from edgellm.hw.memory import _host; print(_host().available_bytes)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == 6000000 * 1024


def test_threads_follow_the_quota(
    tiny_models: Path, group: Callable[..., Callable[[], None] | None]
) -> None:
    """F-MM-09: one and a half CPUs carry one thread, in the plan as in `info`; a user's number wins."""
    model = tiny_models / "tiny-llama.gguf"
    enter = group("cpu", cfs_period_us=100_000, cfs_quota_us=150_000)

    def one_cpu() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    limit = enter or one_cpu
    plan = json.loads(edgellm("plan", model, "--json", enter=limit).stdout)
    assert plan["settings"]["n_threads"] == 1
    if enter is not None and (os.cpu_count() or 1) > 1:
        assert "a quota of 1.5" in plan["reasons"]["n_threads"]
    info = json.loads(edgellm("info", "--json", enter=limit).stdout)
    assert info["threads"]["n_threads"] == 1
    asked = json.loads(edgellm("plan", model, "--threads", 3, "--json", enter=limit).stdout)
    assert (asked["settings"]["n_threads"], asked["reasons"]["n_threads"]) == (3, "asked for")


@pytest.fixture
def broken_engine(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """Return a function that puts a `llama_cpp` before the real one, for children."""

    def make(code: str) -> dict[str, str]:
        folder = tmp_path / "packages" / "llama_cpp"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(code)
        paths = (str(tmp_path / "packages"), os.environ.get("PYTHONPATH"))
        return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}

    return make


def test_an_engine_linked_to_another_libc(
    tiny_models: Path, broken_engine: Callable[[str], dict[str, str]]
) -> None:
    """F-PK-02: all else works; at use the loader's words and a command; doctor says why it is not usable."""
    env = broken_engine(f"raise OSError({MUSL!r})\n")
    assert edgellm("info", **env).returncode == 0
    assert edgellm("plan", tiny_models / "tiny-llama.gguf", **env).returncode == 0
    run = edgellm("run", tiny_models / "tiny-llama.gguf", "hi", "-n", 2, **env)
    assert run.returncode == 1, run.stderr
    assert MUSL in run.stderr
    assert "pip install 'llama-cpp-python" in run.stderr
    doctor = edgellm("doctor", "--json", **env)
    (check,) = [c for c in json.loads(doctor.stdout)["checks"] if c["name"] == "llama.cpp"]
    assert (doctor.returncode, check["status"]) == (1, "failed")
    assert MUSL in check["found"]
    assert "pip install" in check["hint"]


def test_an_engine_built_for_another_cpu(
    tiny_models: Path, tmp_path: Path, broken_engine: Callable[[str], dict[str, str]]
) -> None:
    """F-PK-01: flags are compared before it is imported; the message has the flag and the fix."""
    compiler = shutil.which("cc") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no compiler to build a library for another CPU with")
    env = broken_engine("import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n")
    library = tmp_path / "packages" / "llama_cpp" / "lib" / "libggml-cpu.so"
    library.parent.mkdir()
    feature, flag = ("avx2", "avx2") if is_arm(cpu_flags()) else ("sme2", "sme2")
    (tmp_path / "x.c").write_text(f"int ggml_cpu_has_{feature}(void) {{ return 1; }}\n")
    words = [compiler, "-O2", "-shared", "-fPIC", "-x", "c", str(tmp_path / "x.c"), "-o", library]
    subprocess.run(words, check=True)
    assert edgellm("info", **env).returncode == 0
    run = edgellm("run", tiny_models / "tiny-llama.gguf", "hi", "-n", 2, **env)
    assert run.returncode == 1
    assert f"was built for a CPU with {flag}, which this one lacks" in run.stderr
    assert "CMAKE_ARGS=-DGGML_NATIVE=on pip install" in run.stderr
    doctor = edgellm("doctor", "--json", **env)
    (check,) = [c for c in json.loads(doctor.stdout)["checks"] if c["name"] == "llama.cpp"]
    assert (doctor.returncode, check["status"]) == (1, "failed")
    assert flag in check["found"]
    assert "pip install" in check["hint"]
