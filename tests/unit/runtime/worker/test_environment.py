"""What of the environment a worker gets."""

from __future__ import annotations

import pytest

from edgellm.runtime.worker import environment
from edgellm.runtime.worker.environment import worker_environment


@pytest.mark.parametrize(
    "name",
    [
        *(
            "EDGELLM_API_KEY",
            "OPENAI_API_KEY",
            "HF_TOKEN",
            "AWS_SECRET_ACCESS_KEY",
            "NVIDIA_API_KEY",
        ),
        *("LLAMA_CLOUD_API_KEY", "LLAMA_ARG_API_KEY", "HTTP_PROXY", "https_proxy", "ALL_PROXY"),
        *(
            "EDGELLM_SNAPSHOT_KEY_FILE",
            "EDGELLM_SHARE_SECRET_FILE",
            "SSH_AUTH_SOCK",
            "DATABASE_URL",
        ),
        *("LLAMA_CLOUD_BASE_URL", "NVIDIA_PASSPHRASE", "VK_SESSION_COOKIE", "CUDA_CACHE_DSN"),
        *("PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONBREAKPOINT", "EDGELLM_OFFLINE"),
    ],
)
def test_no_key_and_no_proxy_reaches_the_worker(name):
    """A worker gets no variable that opens, or leads to, another place."""
    assert name not in worker_environment({name: "x"})


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "HOME", "TMPDIR", "LC_ALL", "LANG", "TZ", "SystemRoot", "EDGELLM_HOME"),
        *("EDGELLM_SNAPSHOTS_MAX", "EDGELLM_WORKER_FAULT", "EDGELLM_KERNELS", "PYTHONPATH"),
        *("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "LLAMA_ATTN_ROT_DISABLE", "LD_LIBRARY_PATH"),
    ],
)
def test_what_engines_and_this_package_read_reaches_it(name):
    """A variable that decides how a model runs decides the same in a worker."""
    assert worker_environment({name: "x"})[name] == "x"


def test_crashes_write_no_backtrace():
    """No debugger is started by ggml on a process that crashed."""
    assert worker_environment({})["GGML_NO_BACKTRACE"] == "1"
    assert worker_environment({"GGML_NO_BACKTRACE": ""})["GGML_NO_BACKTRACE"] == "1"


@pytest.mark.parametrize("spins", [10_000, None])
def test_threads_sleep_sooner_where_looking_is_slow(monkeypatch, spins):
    """The number is the machine's, and none where the library's own is kept."""
    monkeypatch.setattr(environment, "openmp_spins", lambda: spins)
    found = worker_environment({}).get("GOMP_SPINCOUNT")
    assert found == (None if spins is None else str(spins))


@pytest.mark.parametrize("name", ["GOMP_SPINCOUNT", "OMP_WAIT_POLICY"])
def test_a_user_who_says_how_threads_wait_is_believed(monkeypatch, name):
    """What was said of it reaches the worker as it was, and nothing beside it."""
    monkeypatch.setattr(environment, "openmp_spins", lambda: 10_000)
    found = worker_environment({name: "7"})
    assert found == {name: "7", "GGML_NO_BACKTRACE": "1"}
