"""What a proof asks of a child process, and what that tells: values with a JSON form, and no more."""

from __future__ import annotations

from dataclasses import dataclass

from edgellm.wire import Wire


@dataclass(frozen=True, slots=True)
class Played(Wire):
    """What became of one scenario.

    Attributes:
        code: of the scenario.
        mode: that counted in the end.
        ended: how: a finish reason, or the code of an error.
        route: of the end of the answer, "" where there was none.
        trigger: in the audit record, "" where there is none.
        n_records: of the audit log.
        n_text: pieces of text that were shown, whatever was taken back.
        n_switches: announced changes of the route.
        n_connections: that the sink had.
        n_received_bytes: by the sink.
        n_sent_bytes: over all interfaces, by the kernel's count; None where it does not count here.
        forms: of the canary, in what the sink was sent.
    """

    code: str
    mode: str
    ended: str
    route: str = ""
    trigger: str = ""
    n_records: int = 0
    n_text: int = 0
    n_switches: int = 0
    n_connections: int = 0
    n_received_bytes: int = 0
    n_sent_bytes: int | None = None
    forms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Order(Wire):
    """What a child is to do.

    Attributes:
        mode: to play in.
        codes: of the scenarios.
        folder: for what is written.
        model: the file.
        canary: its text.
        apart: whether to leave the machine's network.
        sink_url: of a sink in another process; "" makes one in this.
    """

    mode: str
    codes: tuple[str, ...]
    folder: str
    model: str
    canary: str
    apart: bool = True
    sink_url: str = ""


@dataclass(frozen=True, slots=True)
class Report(Wire):
    """What a child saw.

    Attributes:
        played: by scenario.
        not_apart: why it did not leave the machine's network, "" where it did.
        counts: whether what is sent to any address was counted.
        measures: that hold in the worker, of `hardening.MEASURES`.
        seccomp: state of the worker as the kernel tells it: 2 is a filter; "" is unknown.
        code, message: of an error of ours that ended the child early, or "".
    """

    played: tuple[Played, ...]
    not_apart: str = ""
    counts: bool = False
    measures: tuple[str, ...] = ()
    seccomp: str = ""
    code: str = ""
    message: str = ""
