"""The program that plays scenarios in a process, and where it can in a network, of its own.

`python -m edgellm.runtime.proving.child ORDER`: the order is JSON, and so is the one line on stdout. No
other process shares its environment, its `EDGELLM_HOME` or its temporary folder.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edgellm.core import Mode
from edgellm.errors import EdgeLLMError
from edgellm.runtime.proving import namespace
from edgellm.runtime.proving.orders import Order, Report

if TYPE_CHECKING:
    from edgellm.runtime.proving.sink import Sink

LIMIT_S: Final = 600.0


def main() -> int:
    """Carry out the order; return the exit code."""
    order = Order.from_wire(json.loads(sys.argv[1]))
    # Before anything that may start a thread, which could not come along.
    not_apart = namespace.enter() if order.apart else "it was not asked for"
    counts = False if not_apart else namespace.open_loopback()

    from edgellm.runtime.tether import tie

    tie(LIMIT_S)
    _allow_core_files()
    logging.basicConfig(level=logging.DEBUG)  # to stderr, where the canary is looked for
    try:
        report = _carried_out(order, not_apart, counts=counts)
    except EdgeLLMError as err:
        report = Report((), not_apart, counts, code=err.code, message=str(err))
    sys.stdout.write(json.dumps(report.to_wire()) + "\n")
    return 0


def _carried_out(order: Order, not_apart: str, *, counts: bool) -> Report:
    from edgellm.runtime.proving.canary import Canary
    from edgellm.runtime.proving.scenarios import Stage, named

    folder, model = Path(order.folder), Path(order.model)
    measures, seccomp = _looked_at(folder, model) if not order.codes else ((), "")
    with contextlib.ExitStack() as stack:
        sink = None if order.sink_url else stack.enter_context(_new_sink())
        url = order.sink_url if sink is None else sink.url
        stage = Stage(folder, model, Canary(order.canary), url, sink, counts)
        played = tuple(stage.play(named(code), Mode(order.mode)) for code in order.codes)
    return Report(played, not_apart, counts, measures, seccomp)


def _new_sink() -> Sink:
    from edgellm.runtime.proving.sink import Sink

    return Sink()


def _looked_at(folder: Path, model: Path) -> tuple[tuple[str, ...], str]:
    """Start a worker, and return what holds in it, by itself and by the kernel."""
    import os

    from edgellm.paths import HOME_VARIABLE
    from edgellm.runtime.session import SessionOptions
    from edgellm.runtime.worker.handle import Worker

    os.environ[HOME_VARIABLE] = str(folder / "home-worker")
    with Worker.start(model, SessionOptions()) as worker:
        state = ""
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{worker.pid}/status").read_text(encoding="ascii")
            lines = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
            state = lines.get("Seccomp", "").strip()
        return worker.enforced, state


def _allow_core_files() -> None:
    """Let this process and what it starts leave core files, as some users' shells do."""
    if sys.platform == "win32":
        return
    import resource

    most = resource.getrlimit(resource.RLIMIT_CORE)[1]
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (most, most))


if __name__ == "__main__":
    sys.exit(main())
