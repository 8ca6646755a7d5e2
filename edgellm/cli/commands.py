"""The commands, and the one place where an error becomes a message and an exit code.

Each command imports what it needs when it runs, so that `--help` costs nothing but typer.
"""

from __future__ import annotations

import errno
import logging
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from edgellm import __version__
from edgellm.cli import (
    audit,
    breaker,
    chat,
    completion,
    config,
    consent,
    convert,
    devices,
    doctor,
    info,
    lint,
    manual,
    plan,
    prove,
    render,
    run,
    snapshots,
    snapshots_pack,
    snapshots_prune,
    snapshots_purge,
    snapshots_warm,
    snapshots_why,
    streams,
    totals,
)
from edgellm.cli.manual import EXIT_PIPE_CLOSED
from edgellm.errors import (
    EXIT_BAD_INPUT,
    EXIT_DOES_NOT_FIT,
    EXIT_FAILURE,
    EXIT_INTERRUPTED,
    EXIT_NOT_FOUND,
    DoesNotFit,
    EdgeLLMError,
    UsageError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

EXAMPLES: Final = """
edgellm convert ./checkpoint -o model.gguf --bits 8
edgellm run model.gguf "Name three rivers" --system-file rules.txt --stats
edgellm chat model.gguf
"""

# The base of typer's parse errors has no public name in the versions that carry their own click.
_PARSE_ERROR: Final[type[BaseException]] = typer.BadParameter.__mro__[2]
_OS_EXITS: Final = {
    errno.ENOENT: EXIT_NOT_FOUND,
    errno.EISDIR: EXIT_BAD_INPUT,
    errno.ENOTDIR: EXIT_BAD_INPUT,
    errno.ENAMETOOLONG: EXIT_BAD_INPUT,
    errno.EINVAL: EXIT_BAD_INPUT,
    errno.EACCES: EXIT_BAD_INPUT,
    errno.EPERM: EXIT_BAD_INPUT,
    errno.ENOSPC: EXIT_DOES_NOT_FIT,
    errno.EDQUOT: EXIT_DOES_NOT_FIT,
    errno.EFBIG: EXIT_DOES_NOT_FIT,
}


class _SystemError(EdgeLLMError):
    """An error of the operating system, with the exit code it deserves."""

    code = "os"

    def __init__(self, err: OSError) -> None:
        name = None if err.filename is None else str(err.filename)
        super().__init__(err.strerror or str(err) or type(err).__name__, path=name)
        self.exit_code = _OS_EXITS.get(err.errno or 0, EXIT_FAILURE)  # type: ignore[misc]  # of this one


def _typer(**settings: object) -> typer.Typer:
    return typer.Typer(
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,  # ours is a command, and edits nobody's files
        context_settings={"help_option_names": ["-h", "--help"]},
        **settings,  # type: ignore[arg-type]  # passed through
    )


app = _typer(name="edgellm", epilog=manual.epilog(EXAMPLES), invoke_without_command=True)


def _group(examples: str, about: str) -> typer.Typer:
    """Return a group of commands, which shows its help where none of them is named."""

    def bare(context: typer.Context) -> None:
        _help_if_bare(context)

    bare.__doc__ = about
    group = _typer(epilog=manual.examples(examples), invoke_without_command=True)
    group.callback()(bare)
    return group


_snapshots = _group(
    snapshots.EXAMPLES,
    "See, explain, warm, ship, check and remove the states kept after system prompts.",
)
_config = _group(config.EXAMPLES, "Read and change the settings: modes, endpoint, budget.")
_consent = _group(consent.EXAMPLES, "Allow programs to send to an endpoint, or take that back.")
_audit = _group(audit.EXAMPLES, "See what was decided for each answer; check the log.")
_breaker = _group(
    breaker.EXAMPLES, "See which routes rest after failures; let them be tried again."
)

_COMMANDS: Final[tuple[tuple[typer.Typer, str, Callable[..., None], str], ...]] = (
    (app, "run", run.run, run.EXAMPLES),
    (app, "chat", chat.chat, chat.EXAMPLES),
    (app, "convert", convert.convert, convert.EXAMPLES),
    (app, "info", info.info, info.EXAMPLES),
    (app, "plan", plan.plan, plan.EXAMPLES),
    (app, "devices", devices.devices, devices.EXAMPLES),
    (app, "doctor", doctor.doctor, doctor.EXAMPLES),
    (app, "prove", prove.prove, prove.EXAMPLES),
    (app, "lint-prompt", lint.lint_prompt, lint.EXAMPLES),
    (app, "stats", totals.stats, totals.EXAMPLES),
    (app, "why", audit.why, audit.WHY_EXAMPLES),
    (app, "completion", completion.completion, completion.EXAMPLES),
    (_config, "get", config.get, config.GET_EXAMPLES),
    (_config, "set", config.set_, config.SET_EXAMPLES),
    (_config, "unset", config.unset, config.UNSET_EXAMPLES),
    (_config, "path", config.path, config.PATH_EXAMPLES),
    (_config, "list", config.list_, config.LIST_EXAMPLES),
    (_consent, "grant", consent.grant, consent.GRANT_EXAMPLES),
    (_consent, "show", consent.show, consent.SHOW_EXAMPLES),
    (_consent, "revoke", consent.revoke, consent.REVOKE_EXAMPLES),
    (_audit, "show", audit.show, audit.SHOW_EXAMPLES),
    (_audit, "verify", audit.verify, audit.VERIFY_EXAMPLES),
    (_audit, "restart", audit.restart, audit.RESTART_EXAMPLES),
    (_breaker, "show", breaker.show, breaker.SHOW_EXAMPLES),
    (_breaker, "reset", breaker.reset, breaker.RESET_EXAMPLES),
    (_snapshots, "ls", snapshots.ls, snapshots.LS_EXAMPLES),
    (_snapshots, "why", snapshots_why.why, snapshots_why.EXAMPLES),
    (_snapshots, "warm", snapshots_warm.warm, snapshots_warm.EXAMPLES),
    (_snapshots, "keygen", snapshots_pack.keygen, snapshots_pack.KEYGEN_EXAMPLES),
    (_snapshots, "export", snapshots_pack.export, snapshots_pack.EXPORT_EXAMPLES),
    (_snapshots, "import", snapshots_pack.import_, snapshots_pack.IMPORT_EXAMPLES),
    (_snapshots, "check", snapshots.check, snapshots.CHECK_EXAMPLES),
    (_snapshots, "rm", snapshots.rm, snapshots.RM_EXAMPLES),
    (_snapshots, "prune", snapshots_prune.prune, snapshots_prune.EXAMPLES),
    (_snapshots, "purge", snapshots_purge.purge, snapshots_purge.EXAMPLES),
)
for _where, _name, _function, _examples in _COMMANDS:
    _where.command(_name, epilog=manual.examples(_examples))(manual.with_no_color(_function))
for _commands, _name in (
    (_snapshots, "snapshots"),
    (_config, "config"),
    (_consent, "consent"),
    (_audit, "audit"),
    (_breaker, "breaker"),
):
    app.add_typer(_commands, name=_name)


@app.callback()
def _root(
    context: typer.Context,
    *,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    no_color: Annotated[  # noqa: ARG001  # there is nothing to turn off
        bool, typer.Option("--no-color", help="Taken by every command; nothing is coloured.")
    ] = False,
) -> None:
    """Convert, quantise and run language models on your own machine, and start warm."""
    if version:
        render.write_out(f"edgellm {__version__}\n")
        raise typer.Exit
    _help_if_bare(context)


def _help_if_bare(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        render.write_err(context.get_help() + "\n")
        raise typer.Exit(EXIT_BAD_INPUT)


def run_command(arguments: Sequence[str]) -> int:
    """Run the command that `arguments` name and return its exit code."""
    flags = arguments[: arguments.index("--")] if "--" in arguments else arguments
    _plain_logging()
    try:
        if arguments and arguments[0] == completion.ASKING:
            return completion.answer(app, arguments[1:])
        return _guarded(arguments, as_json="--json" in flags)
    except render.StdoutClosed:
        render.silence_stdout()
        return EXIT_PIPE_CLOSED


def _guarded(arguments: Sequence[str], *, as_json: bool) -> int:
    try:
        code = app(
            arguments,
            prog_name="edgellm",
            standalone_mode=False,
            terminal_width=manual.width(streams.columns(sys.stdout)),
        )
    except _PARSE_ERROR as err:
        error = _usage_error(err)
    except EdgeLLMError as err:
        error = err
    except OSError as err:
        error = _SystemError(err)
    except MemoryError:
        error = DoesNotFit("out of memory", hint="free some memory or take a smaller model")
    except SystemExit as err:
        # How typer ends when its own output, such as a help text, meets a closed pipe.
        if isinstance(err.__context__, BrokenPipeError):
            raise render.StdoutClosed from err
        raise
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    else:
        return code if isinstance(code, int) else 0
    render.report(error, as_json=as_json)
    return error.exit_code


def _usage_error(err: BaseException) -> EdgeLLMError:
    """Turn a parse error of typer into ours, with the help command as the hint."""
    context = getattr(err, "ctx", None)
    command = "edgellm" if context is None else context.command_path
    message = err.format_message() if hasattr(err, "format_message") else str(err)
    message = message.replace(": Value error, ", ": ", 1).rstrip(".")  # pydantic's, in new typers
    return UsageError(message, hint=f"run `{command} --help`")


class _Plain(logging.Handler):
    """Makes what the library logs look like the rest of stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        render.labelled(record.levelname.lower(), record.getMessage())


def _plain_logging() -> None:
    logging.basicConfig(handlers=[_Plain()], level=logging.WARNING)
