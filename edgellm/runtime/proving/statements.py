"""Statements: what a child process did, held against what is promised. Facts in, words out."""

from __future__ import annotations

import base64
import gzip
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import quote

from edgellm.core import Mode
from edgellm.runtime.worker.hardening import NO_CORE_FILES, NO_SOCKETS, NOT_TRACEABLE
from edgellm.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from edgellm.runtime.proving.canary import Canary
    from edgellm.runtime.proving.orders import Played, Report
    from edgellm.runtime.proving.running import Ran
    from edgellm.runtime.proving.scenarios import Scenario

Status = Literal["shown", "failed", "not enforced", "not shown"]
_FILTERED: Final = "2"  # SECCOMP_MODE_FILTER, as /proc/PID/status has it


@dataclass(frozen=True, slots=True)
class Statement(Wire):
    """One part of what is promised, and whether it was shown.

    Attributes:
        status: `not enforced` where the platform has no means, `not shown` where it was not tried.
        what: is promised.
        how: it was tried, and what was seen.
    """

    status: Status
    what: str
    how: str


def of_worker(ran: Ran) -> Iterator[Statement]:
    """Say whether the process that holds the model can open a socket or leave a core file."""
    report, what = ran.report, "a worker can open no socket"
    if NO_SOCKETS in report.measures:
        kernel = "; the kernel says that a filter is on" if report.seccomp == _FILTERED else ""
        yield Statement("shown", what, f"tried in a real worker: EPERM{kernel}")
    elif report.seccomp == _FILTERED:
        yield Statement("failed", what, "a filter is on, and a socket was opened in a real worker")
    else:
        why = "no seccomp filter of ours for this system; that it opens none rests on its code"
        yield Statement("not enforced", what, why)
    what = "a worker leaves no core file"
    if NO_CORE_FILES in report.measures and NOT_TRACEABLE in report.measures:
        yield Statement("shown", what, "its limit is 0, and the kernel may not dump it")
    elif NO_CORE_FILES in report.measures:
        yield Statement("not enforced", what, "its limit is 0; a system-wide collector may still")
    else:
        yield Statement("failed", what, "its limit is not 0")


def of_offline(ran: Ran) -> Iterator[Statement]:
    """Say whether `offline` answers, and sends nothing to any address."""
    report, traced = ran.report, ran.traced
    answered = [one for one in report.played if one.route == "local" and one.n_text]
    what = "an offline run answers without a network"
    if report.not_apart and traced is None:
        yield Statement("not shown", what, f"{report.not_apart}, and strace is not installed")
    elif not answered:
        ended = ", ".join(f"{one.code} ended with {one.ended}" for one in report.played)
        yield Statement("failed", what, f"there was no answer: {ended}")
    else:
        where = "with strace looking on"
        if not report.not_apart:
            where = "in a network namespace of its own"
        yield Statement("shown", what, f"{len(report.played)} runs, one with a death, {where}")
    what = "an offline run sends nothing to any address"
    if traced is not None:
        seen = f"strace saw {len(traced.internet)} calls of the internet families"
        denied = f" and {traced.n_denied} that were denied to workers"
        yield Statement("failed" if traced.internet else "shown", what, seen + denied)
    elif report.counts:
        n_bytes = sum(one.n_sent_bytes or 0 for one in report.played)
        seen = f"the kernel counted {n_bytes} bytes over all interfaces, name servers included"
        yield Statement("failed" if n_bytes else "shown", what, seen)
    else:
        yield Statement("not shown", what, report.not_apart or "the kernel's counter is not here")


def of_counter(report: Report) -> Statement:
    """Say whether, in what follows, more than the sink is looked at."""
    what = "what is sent to any other address is counted as well"
    if report.counts:
        return Statement("shown", what, "by the kernel: datagrams to other networks were counted")
    return Statement("not shown", what, report.not_apart or "the kernel's counter is not here")


def of_private(played: Played, scenario: Scenario, _report: Report) -> Statement:
    """Say whether one trigger sent anything in mode `private`."""
    what = f"nothing leaves in private, {scenario.code} ({scenario.what})"
    if played.mode != Mode.PRIVATE.value:
        return Statement(
            "not shown", what, f"an administrator or a variable makes it {played.mode}"
        )
    leaks = has_leaked(played)
    seen = f"ended with {played.ended}; {played.n_received_bytes} bytes at the sink"
    if played.n_sent_bytes is not None:
        seen += f", {played.n_sent_bytes} over any interface"
    found = f"canary: {', '.join(played.forms)}" if played.forms else "no canary"
    return Statement("failed" if leaks else "shown", what, f"{seen}, {found}")


def of_control(played: Played, scenario: Scenario, report: Report) -> Statement:
    """Say whether the canary of the same trigger is found where it may leave: else we are blind."""
    what = f"control in prefer-local, {scenario.code} ({scenario.what})"
    if played.mode != Mode.PREFER_LOCAL.value:
        return Statement(
            "not shown", what, f"an administrator or a variable makes it {played.mode}"
        )
    seen = f"ended with {played.ended}; {played.n_received_bytes} bytes at the sink"
    found = f"canary: {', '.join(played.forms)}" if played.forms else "no canary"
    if scenario.is_timed and played.route == "local" and not has_leaked(played):
        return Statement("not shown", what, f"{seen}: it did not come to it at this speed")
    is_blind = report.counts and not played.n_sent_bytes
    is_seen = bool(played.forms) and played.route == "cloud" and not is_blind
    return Statement("shown" if is_seen else "failed", what, f"{seen}, {found}")


def has_leaked(played: Played) -> bool:
    """Return whether anything left, or was on its way out."""
    went = played.n_connections or played.n_received_bytes or played.n_sent_bytes
    return bool(went or played.forms or played.route == "cloud")


def of_forms(canary: Canary) -> Statement:
    """Say whether the search sees each form that it claims to see."""
    raw = canary.text.encode()
    samples = {
        "raw": b'{"content":"' + raw + b'"}',
        **{f"base64 at {n}": base64.b64encode(b"x" * n + raw + b"yz") for n in range(3)},
        "URL": quote(canary.text, safe="").encode(),
        "hex": raw.hex().encode(),
        "gzip": b"head" + gzip.compress(b"x" + raw),
        "zlib": b"head" + zlib.compress(b"x" + raw),
    }
    missed = [form for form, sample in samples.items() if not canary.hits(sample)]
    is_wrong = bool(missed or canary.hits(b"CANARY of somebody else"))
    how = f"missed: {', '.join(missed)}" if missed else f"found as {', '.join(samples)}"
    return Statement("failed" if is_wrong else "shown", "the search sees every form", how)


def of_files(
    canary: Canary, folder: Path, printed: bytes, cores: frozenset[str]
) -> Iterator[Statement]:
    """Say whether the canary is in anything that the runs wrote or printed.

    Args:
        canary: that was in every prompt.
        folder: of the proof, with every `EDGELLM_HOME` and temporary folder below it.
        printed: on stdout and stderr.
        cores: core files that came while it ran.
    """
    what = "no text of a prompt is in the audit log, consents, snapshots or temporary files"
    found = canary.hits_below(folder)
    n_files = sum(path.is_file() for path in folder.rglob("*"))
    how = "; ".join(found) or f"{n_files} files were searched"
    yield Statement("failed" if found else "shown", what, how)
    what, forms = "no text of a prompt is in logs and messages", canary.hits(printed)
    how = f"canary: {', '.join(forms)}" if forms else f"{len(printed)} bytes were searched"
    yield Statement("failed" if forms else "shown", what, how)
    cores |= {path.name for path in folder.rglob("core*") if path.is_file()}
    what, how = "workers that died left no core file", ", ".join(sorted(cores)) or "none is there"
    yield Statement("failed" if cores else "shown", what, how)
