"""A machine that starts no more threads: a typed error or an answer, never a fault of Python's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edgellm.core import Warn
from edgellm.errors import EngineUnavailable
from edgellm.threads import Started


@pytest.fixture
def refused(monkeypatch) -> Callable[[str], None]:
    """Let no thread start whose name begins so."""
    real = Started.__init__

    def refuse(name: str) -> None:
        def start(thread: Started, target: Callable[[], object], given: str) -> None:
            if given.startswith(name):
                raise RuntimeError("can't start new thread")
            real(thread, target, given)

        monkeypatch.setattr(Started, "__init__", start)

    return refuse


def test_a_model_cannot_be_loaded_without_a_thread_to_wait_for_it(stage, refused):
    """Where the thread that starts a worker cannot be, opening says so in our words."""
    refused("edgellm-start")
    with pytest.raises(EngineUnavailable, match="thread"):
        stage.open()


def test_an_answer_that_cannot_be_watched_is_made_and_says_so(stage, kit, refused):
    """Where nobody can look whether an answer gets on, it comes, with a warning once."""
    supervisor, _ = stage.open()
    refused("edgellm-watch")
    seen = kit.see(supervisor)
    assert seen.text == "".join(f"{word} " for word in kit.WORDS)
    assert len([warn for warn in seen.of(Warn) if "thread" in warn.message]) == 1
    assert kit.see(supervisor).of(Warn) == []


def test_a_record_is_written_where_no_thread_can_be_started(stage, kit, refused):
    """The lock of the audit log is taken in the caller's thread where there is no other."""
    supervisor, _ = stage.open()
    refused("edgellm-lock")
    assert kit.see(supervisor).done.audit_id
    assert len(stage.records()) == 1


def test_a_worker_that_cannot_be_started_anew_now_can_be_later(stage, kit):
    """A system that starts no process for a moment ends one answer, and not the session."""
    lives = (
        kit.Life(n=3, how=kit.oom()),
        kit.Life(start=EngineUnavailable("the process cannot be started: no memory")),
        kit.Life(),
    )
    supervisor, workers = stage.open(*lives)
    assert kit.see(supervisor).last.code == "out_of_memory"
    assert kit.see(supervisor).done.finish_reason == "stop"
    assert len(workers.options) == 3


def test_an_engine_that_never_was_is_not_tried_again(stage, kit, endpoint_server):
    """Where no worker ever loaded for want of an engine, each answer goes to the endpoint at once."""
    missing = kit.Life(start=EngineUnavailable("llama_cpp is not installed"))
    with endpoint_server.serving(
        lambda line: line.stream(kit.chunk("Far."), kit.chunk(finish="stop"), kit.USAGE)
    ) as far:
        supervisor, workers = stage.open(missing, **stage.cloud(far.url))
        assert [kit.see(supervisor).done.route for _ in range(2)] == ["cloud", "cloud"]
    assert len(workers.options) == 1
