"""What --help says beyond a command's own flags: examples, exit codes and variables."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from edgellm.cli.interrupts import EXIT_HUNG_UP, EXIT_TERMINATED
from edgellm.cli.variables import HISTORY_VARIABLE, OFFLINE_VARIABLE
from edgellm.errors import (
    EXIT_BAD_INPUT,
    EXIT_DOES_NOT_FIT,
    EXIT_FAILURE,
    EXIT_INTERRUPTED,
    EXIT_NO_ROUTE,
    EXIT_NOT_FOUND,
    EXIT_VERIFY_FAILED,
)
from edgellm.paths import (
    CAP_VARIABLE,
    ENCRYPT_VARIABLE,
    HOME_VARIABLE,
    KEY_FILE_VARIABLE,
    SHARE_SECRET_VARIABLE,
)
from edgellm.runtime.api_key import KEY_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

EXIT_PIPE_CLOSED: Final = 141  # what a shell reports for a program that SIGPIPE ended
MAX_COLUMNS: Final = 100
_MIN_COLUMNS: Final = 40

EXIT_CODES: Final = (
    (0, "done"),
    (EXIT_FAILURE, "failure"),
    (EXIT_BAD_INPUT, "usage, or bad or damaged input"),
    (EXIT_NOT_FOUND, "not found"),
    (EXIT_DOES_NOT_FIT, "does not fit memory or disk"),
    (EXIT_VERIFY_FAILED, "a converted file, a pack or a record failed its check"),
    (EXIT_NO_ROUTE, "no route: neither this machine nor an endpoint may or can answer"),
    (EXIT_HUNG_UP, "ended by SIGHUP: the terminal was closed"),
    (EXIT_INTERRUPTED, "interrupted by Ctrl-C"),
    (EXIT_PIPE_CLOSED, "nobody reads the output any more"),
    (EXIT_TERMINATED, "ended by SIGTERM"),
)
VARIABLES: Final = (
    (HOME_VARIABLE, "folder of snapshots, caches and history"),
    (CAP_VARIABLE, "most that snapshots may take, as 20GB; off: no limit"),
    (ENCRYPT_VARIABLE, "keyring, file:PATH or off: as --snapshot-encrypt"),
    (KEY_FILE_VARIABLE, "file of the key that snapshots are encrypted under"),
    (SHARE_SECRET_VARIABLE, "file of the secret of machines that share snapshots"),
    (OFFLINE_VARIABLE, "1: no route leaves this machine"),
    (KEY_VARIABLE, "key of the endpoint; having one changes no mode"),
    (HISTORY_VARIABLE, "off: chat keeps no typed lines"),
    ("EDGELLM_KERNELS", "auto, native or numpy: what packs and unpacks"),
    ("EDGELLM_ISA", "scalar, avx2, avx512 or neon: the row of native"),
    ("EDGELLM_NATIVE_LIB", "path of the native library"),
    ("EDGELLM_WORKER_FAULT", "for tests: how a worker shall fail"),
)


def examples(text: str) -> str:
    """Return the paragraph of examples that ends a command's help."""
    return _paragraph("Examples", text.strip().splitlines())


def epilog(text: str) -> str:
    """Return what ends the help of the whole program."""
    return "\n\n".join(
        [
            examples(text),
            _paragraph("Exit codes", _aligned([(str(code), what) for code, what in EXIT_CODES])),
            _paragraph("Variables", _aligned(VARIABLES)),
        ]
    )


def width(n_columns: int) -> int:
    """Return the width of a help text on a terminal of `n_columns`."""
    return max(_MIN_COLUMNS, min(n_columns - 2, MAX_COLUMNS))


def with_no_color(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take `--no-color`, which scripts give to any program: nothing is coloured."""

    @functools.wraps(command)
    def call(*, no_color: bool = False, **values: Any) -> None:
        del no_color
        command(**values)

    flag = inspect.Parameter(
        "no_color",
        inspect.Parameter.KEYWORD_ONLY,
        default=False,
        annotation=Annotated[bool, typer.Option("--no-color", hidden=True)],
    )
    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(command, eval_str=True).parameters.values()
    ]
    call.__signature__ = inspect.Signature([*own, flag])  # type: ignore[attr-defined]  # read by inspect.signature
    call.__annotations__ = {p.name: p.annotation for p in (*own, flag)}
    return call


def _aligned(pairs: Sequence[tuple[str, str]]) -> list[str]:
    n = max(len(name) for name, _ in pairs)
    return [f"{name:<{n}}  {what}" for name, what in pairs]


def _paragraph(title: str, lines: Sequence[str]) -> str:
    body = "\n".join(f"  {line}" for line in lines)
    return f"\b\n{title}:\n{body}"
