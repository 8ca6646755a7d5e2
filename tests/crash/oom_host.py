"""A program that answers one question while its memory is taken away; it prints what it sees as JSON lines.

`python oom_host.py MODEL --at PHASE [--keep] [--endpoint URL]`: at PHASE it takes memory, as another
program in the same group would, until its worker is gone, and gives it back unless it is to keep it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from edgellm.core import Done, Failure, Message, Mode, Request, Sampling, Token, event_to_wire
from edgellm.errors import EdgeLLMError
from edgellm.policy.budget import micro_usd
from edgellm.policy.consent import Wanted, draft
from edgellm.routing import Budget, Endpoint, origin_of
from edgellm.runtime.opening import open_session
from edgellm.runtime.session import CloudOptions, SessionOptions

_PIECE_BYTES = 1 << 20
_MAX_PIECES = 512
_N_OTHERS = 4
# Each piece is written to, or the kernel would not count it. Should it need a second one, that is no host.
_OTHER = """
import sys
open("/proc/self/oom_score_adj", "w").write("200")
held = []
for line in sys.stdin:
    held = held + [b"1" * int(sys.argv[1])] if line.strip() == "+" else []
    print(flush=True)
"""
_SYSTEM = "You are a careful guide who answers in plain words and never hurries. " * 12


class Squeeze:
    """Takes memory until a process is gone, as other programs in the group do: several small ones.

    The kernel picks the largest process for what its group may take, and a worker counts as larger
    than it is.
    """

    def __init__(self, *, keeps: bool) -> None:
        self._keeps = keeps
        self.died_s: float | None = None
        self._others = [
            subprocess.Popen(
                [sys.executable, "-S", "-c", _OTHER, str(_PIECE_BYTES)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for _ in range(_N_OTHERS)
        ]
        self._free()

    def _free(self) -> None:
        for other in self._others:
            _ask(other, b"-")

    def run(self, pid: int) -> None:
        """Take memory until the process is gone."""
        for n in range(_MAX_PIECES):
            if _is_gone(pid):
                break
            _ask(self._others[n % _N_OTHERS], b"+")
            time.sleep(0.001)  # what was killed needs a moment to give its memory back
        while not _is_gone(pid):
            time.sleep(0.002)
        self.died_s = time.monotonic()
        if not self._keeps:
            self._free()

    def watch(self, phase: str) -> None:
        """Wait for a worker in a phase, and squeeze it."""
        while True:
            for pid in _workers():
                if phase in ("load", _phase.get(pid)):
                    self.run(pid)
                    return
            time.sleep(0.002)


def _ask(other: subprocess.Popen[bytes], word: bytes) -> None:
    assert other.stdin is not None
    assert other.stdout is not None
    with contextlib.suppress(BrokenPipeError):  # it was killed as well
        other.stdin.write(word + b"\n")
        other.stdin.flush()
        other.stdout.readline()


_phase: dict[int, str] = {}


def _is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "ZX"


def _workers() -> list[int]:
    """List the workers that the kernel would pick first by now."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            children = (task / "children").read_text().split()
            found.extend(int(pid) for pid in children if _is_worker(Path("/proc", pid)))
    return found


def _is_worker(folder: Path) -> bool:
    is_hardened = int((folder / "oom_score_adj").read_text()) > 0
    return is_hardened and "edgellm.runtime.worker" in (folder / "cmdline").read_text()


def _note_phases(session: Any) -> None:
    """Look at the worker's phase all the time."""
    while True:
        worker = session._place.worker
        if worker is not None:
            _phase[worker.pid] = worker.phase
        time.sleep(0.002)


def _options(args: argparse.Namespace) -> SessionOptions:
    if not args.endpoint:
        return SessionOptions(n_ctx=args.ctx)
    from edgellm.paths import home_dir
    from edgellm.runtime.books.consents import ConsentBook

    wanted = Wanted("edgellm", origin_of(args.endpoint), "far")
    ConsentBook(home_dir()).grant(draft(wanted, micro_usd_per_day=micro_usd(1), now_s=time.time()))
    cloud = CloudOptions(Endpoint(args.endpoint, "far", continues="trailing"), Budget())
    return SessionOptions(n_ctx=args.ctx, mode=Mode.PREFER_LOCAL, cloud=cloud)


def _say(kind: str, **fields: object) -> None:
    print(json.dumps({"kind": kind, "s": time.monotonic(), **fields}), flush=True)


def main() -> None:
    """Answer once."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--at", default="")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--endpoint", default="")
    parser.add_argument("--ctx", type=int, default=512)
    args = parser.parse_args()
    squeeze = Squeeze(keeps=args.keep)
    if args.at == "load":
        threading.Thread(target=squeeze.watch, args=("load",), daemon=True).start()
    try:
        with open_session(args.model, _options(args)) as session:
            _answer(session, args.at, squeeze)
    except EdgeLLMError as err:
        evidence = list(getattr(err, "evidence", ()))
        _say("error", code=err.code, exit=err.exit_code, hint=err.hint, evidence=evidence)
    _say("end", died_s=squeeze.died_s, pid=os.getpid())


def _answer(session: Any, at: str, squeeze: Squeeze) -> None:
    threading.Thread(target=_note_phases, args=(session,), daemon=True).start()
    if at in ("prefill", "snapshot"):
        threading.Thread(target=squeeze.watch, args=(at,), daemon=True).start()
    messages = (Message("system", _SYSTEM), Message("user", "Where does the river go?"))
    request = Request(messages, max_tokens=9, sampling=Sampling(temperature=0))
    n_tokens = 0
    for event in session.stream(request):
        _say("event", event=event_to_wire(event))
        n_tokens += isinstance(event, Token)
        if at == "token 5" and n_tokens == 5 and squeeze.died_s is None:
            squeeze.run(session._place.worker.pid)
        if isinstance(event, (Done, Failure)):
            return


if __name__ == "__main__":
    main()
