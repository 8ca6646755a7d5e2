"""The proof: what `private` and `offline` promise, tried on this machine, one statement after the other.

Each statement is one of four: shown, failed, not enforced here (this platform lacks the means, so the
promise rests on our code alone), or not shown (it could not be tried, and why).
"""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edgellm.core import Mode
from edgellm.errors import EngineFailed, EngineUnavailable, ModelError, ModelNotFound
from edgellm.runtime.proving import statements
from edgellm.runtime.proving.canary import Canary
from edgellm.runtime.proving.orders import Order
from edgellm.runtime.proving.running import Children
from edgellm.runtime.proving.scenarios import TRIGGERS, UNDISTURBED, named
from edgellm.runtime.proving.tiny import write_tiny_model
from edgellm.runtime.proving.tracing import strace_command
from edgellm.runtime.worker.interpreter import package_root

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from edgellm.runtime.proving.running import Ran
    from edgellm.runtime.proving.statements import Statement

_QUICK: Final = tuple(one.code for one in TRIGGERS if not one.is_slow)
_SLOW: Final = tuple(one.code for one in TRIGGERS if one.is_slow)
_N_AT_ONCE: Final = 2  # each is two processes, and small machines are what this is for
_OFFLINE_CODES: Final = (UNDISTURBED.code, "M3")


@dataclass(slots=True)
class _Proof:
    """One proof under way.

    Attributes:
        folder: for all that is written; it is removed at the end.
        model: the file for answers that nothing disturbs.
        tiny: the one that we wrote, for those that fail.
        canary: in all prompts.
    """

    folder: Path
    model: Path
    tiny: Path
    canary: Canary
    children: Children
    pool: ThreadPoolExecutor

    def start(self, name: str, mode: Mode, codes: tuple[str, ...], model: Path) -> Future[Ran]:
        """Start a child, or let it wait for its turn."""
        order = Order(mode.value, codes, str(self.folder / name), str(model), self.canary.text)
        return self.pool.submit(self.children.run, order)

    def statements(self) -> Iterator[Statement]:
        """Give the statements in a fixed order, as soon as each is known."""
        worker = self.start("worker", Mode.PRIVATE, (), self.model)
        offline = self.start("offline", Mode.OFFLINE, _OFFLINE_CODES, self.model)
        private, control = (
            [self.start(f"{mode.value}-{n}", mode, codes, self.tiny)]
            for n, mode, codes in ((0, Mode.PRIVATE, _QUICK), (0, Mode.PREFER_LOCAL, _QUICK))
        )
        private += [self.start("private-1", Mode.PRIVATE, _SLOW, self.tiny)]
        control += [self.start("control-1", Mode.PREFER_LOCAL, _SLOW, self.tiny)]
        cores = _core_files()
        yield from statements.of_worker(_checked(worker.result(), self.model))
        yield from self._offline(_checked(offline.result(), self.model))
        yield statements.of_counter(private[0].result().report)
        ran = [worker.result(), offline.result()]
        for futures, about in (
            (private, statements.of_private),
            (control, statements.of_control),
        ):
            for future in futures:
                ran.append(future.result())
                for played in ran[-1].report.played:
                    yield about(played, named(played.code), ran[-1].report)
        yield statements.of_forms(self.canary)
        printed = b"\n".join(one.printed for one in ran)
        yield from statements.of_files(self.canary, self.folder, printed, _core_files() - cores)

    def _offline(self, ran: Ran) -> Iterator[Statement]:
        """Say what an offline run did; where it cannot have a network of its own, strace looks."""
        if ran.report.not_apart and strace_command(self.folder) is not None:
            folder = str(self.folder / "offline-traced")
            order = Order(
                *(Mode.OFFLINE.value, _OFFLINE_CODES, folder, str(self.model), self.canary.text),
                apart=False,
                sink_url="http://127.0.0.1:9/v1",  # a sink of its own would be traced with it
            )
            ran = self.children.run(order, with_strace=True)
        return statements.of_offline(ran)


def prove(model: Path | None = None) -> Iterator[Statement]:
    """Try what is promised, and give a statement for each part of it.

    Args:
        model: a GGUF file for the answers that nothing disturbs; None takes a tiny one that is
            written for the purpose. The answers that fail on purpose are always by that one.

    Raises:
        ModelNotFound: there is no such file.
        EngineUnavailable, EngineFailed: no model can be run here, so there is nothing to be shown.
    """
    if model is not None and not model.is_file():
        raise ModelNotFound("no such file", path=model)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edgellm-prove-")))
        tiny = folder / "tiny.gguf"
        write_tiny_model(tiny)
        pool = stack.enter_context(ThreadPoolExecutor(_N_AT_ONCE))
        children = stack.enter_context(Children())  # left before the pool, which waits for them
        proof = _Proof(folder, model or tiny, tiny, Canary.new(), children, pool)
        yield from proof.statements()


def _checked(ran: Ran, model: Path) -> Ran:
    """Return what a child did, if it could do anything."""
    report = ran.report
    if report.code == EngineUnavailable.code:
        raise EngineUnavailable(report.message, hint="an engine: `pip install 'edgellm[llama]'`")
    if report.code.startswith(ModelError.code):
        raise ModelError(report.message, path=model)
    if report.code:
        raise EngineFailed(report.message)
    return ran


def _core_files() -> frozenset[str]:
    """Return the core files where a worker's would lie: in the folder that it is started in."""
    return frozenset(path.name for path in package_root().glob("core*") if path.is_file())
