"""Deadlines: counted from the request to the first text, whatever this machine does meanwhile."""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import Any

import pytest

from edgellm.core import Switch, Token
from edgellm.runtime.supervising import watching

FAR = "From far away."


@pytest.fixture
def far(endpoint_server, kit) -> Any:
    """An endpoint that answers `FAR`, whatever it is sent."""

    def handle(line: Any) -> None:
        line.stream(kit.chunk(FAR), kit.chunk(finish="stop"), kit.USAGE)

    with endpoint_server.serving(handle) as server:
        yield server


@pytest.fixture(autouse=True)
def _often(monkeypatch) -> None:
    monkeypatch.setattr(watching, "LOOK_S", 0.02)


def test_a_worker_that_does_not_hear_that_it_is_late_goes_out_too(stage, kit, far) -> None:
    """Where memory thrashes nothing is heard, and the process is killed: that is the deadline still."""
    supervisor, workers = stage.open(
        kit.Life(delay=threading.Event()), kit.Life(), **stage.cloud(far.url) | {"deadline_s": 0.1}
    )
    worker = workers.started[0]

    def deaf() -> None:
        worker.ending = dataclasses.replace(kit.died("prefill"), asked="cancel")

    worker.cancel = deaf  # type: ignore[method-assign]  # it is for this test
    seen = kit.see(supervisor)
    assert seen.text == FAR
    assert len(workers.started) == 1
    assert stage.records()[0].trigger == "deadline"


def test_a_deadline_that_was_met_is_over(stage, kit, far) -> None:
    """The first text came in time: an answer that is taken up again later is not late."""
    gate = threading.Event()
    threading.Timer(0.5, gate.set).start()
    supervisor, workers = stage.open(
        kit.Life(3, kit.died()),
        kit.Life(delay=gate),
        **stage.cloud(far.url, continues="trailing") | {"deadline_s": 0.2},
    )
    seen = kit.see(supervisor)
    assert len(workers.started) == 2
    assert not far.asked
    assert [switch.target for switch in seen.of(Switch)] == ["local"]
    assert all(token.route == "local" for token in seen.of(Token))


@pytest.mark.parametrize("consented", [True, False])
def test_loading_counts_as_well(stage, kit, far, consented: bool) -> None:
    """A model that is loaded again for longer than the caller waits is not waited for."""
    loading = threading.Event()
    supervisor, workers = stage.open(
        kit.Life(0, kit.died("prefill")),
        kit.Life(loading=loading),
        **stage.cloud(far.url) | {"deadline_s": 0.2},
    )
    if not consented:  # nowhere to go: it is waited for
        kit.ConsentBook(stage.home).revoke()
        threading.Timer(0.5, loading.set).start()
    began_s = time.monotonic()
    seen = kit.see(supervisor)
    if consented:
        assert seen.text == FAR
        assert time.monotonic() - began_s < 2
        assert stage.records()[0].trigger == "deadline"
        loading.set()
    else:
        assert len(seen.text) > len(FAR)
    assert len(kit.see(supervisor).text) >= len(FAR)
    assert len(workers.options) == 2
