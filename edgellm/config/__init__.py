"""What the user settled once: `config.toml` below `EDGELLM_HOME`, and the administrator's lock.

Every key stands in `KEYS` with its kind and range; an unknown one is refused, since a misspelt limit
would be none. No variable of the environment loosens anything: `EDGELLM_OFFLINE=1` tightens the
mode, and the lock caps it whoever asks. No secret is kept here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from edgellm.config.file import edited, read_text, values_of
from edgellm.config.keys import KEYS, Isolation, Key, Value, key_of, parse
from edgellm.config.modes import OFFLINE_VARIABLE, allowed_mode, lock_places, locked_mode, stricter
from edgellm.core import Mode
from edgellm.errors import UsageError
from edgellm.fileio import lock_file, private_dir, write_atomic
from edgellm.paths import home_dir
from edgellm.routing import Budget, Endpoint, origin_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from edgellm.routing import OnFailure

__all__ = [
    "KEYS",
    "OFFLINE_VARIABLE",
    "Config",
    "Isolation",
    "Key",
    "Value",
    "allowed_mode",
    "config_path",
    "get_value",
    "lock_places",
    "locked_mode",
    "read_config",
    "set_value",
    "stricter",
]

CONFIG_NAME: Final = "config.toml"


@dataclass(frozen=True, slots=True)
class Config:
    """What `config.toml` says; what it leaves out is as here.

    Attributes:
        mode: as the file says it; `allowed_mode` is what counts.
        endpoint: the server that may be asked, or None unless both its URL and its model are set.
        budget: the most that may be spent there.
        on_failure: what becomes of an answer whose beginning was shown when its route fails.
        deadline_s: longest time to the first token before another route is looked for, or None.
        isolation: whether the engine runs in a process of its own.
        local_usd_per_mtok: cost of a million tokens on this machine, for `stats --cost`.
        values: what the file sets, by dotted key.
    """

    mode: Mode = Mode.PRIVATE
    endpoint: Endpoint | None = None
    budget: Budget = field(default_factory=Budget)
    on_failure: OnFailure = "resume-local"
    deadline_s: float | None = None
    isolation: Isolation = "worker"
    local_usd_per_mtok: float = 0.0
    values: Mapping[str, Value] = field(default_factory=dict)

    def endpoint_from(self, url: str | None = None, model: str | None = None) -> Endpoint | None:
        """Return the endpoint with what a flag or an argument says in place of the file.

        Prices, trust and abilities are those of one place: another origin takes none of them over.

        Args:
            url: of the server; None takes the file's.
            model: what it calls the model; None takes the file's.

        Raises:
            UsageError: only one of the two is known.
        """
        fields = _group(self.values, "endpoint")
        known = fields.get("url")
        if url is not None and known is not None and origin_of(url) != origin_of(str(known)):
            fields = {name: value for name, value in fields.items() if name.endswith("_s")}
        given = {"url": url, "model": model}
        fields |= {name: value for name, value in given.items() if value is not None}
        missing = [name for name in given if not fields.get(name)]
        if len(missing) == 1:
            flag = {"url": "--endpoint URL", "model": "--endpoint-model NAME"}[missing[0]]
            raise UsageError(
                f"the endpoint's {missing[0]} is not known",
                hint=f"give {flag}, or `edgellm config set endpoint.{missing[0]} ...`",
            )
        return None if missing else Endpoint(**cast("dict[str, Any]", fields))


def config_path() -> Path:
    """Return the file of the user's settings; it need not be there."""
    return home_dir() / CONFIG_NAME


def read_config(path: Path | None = None) -> Config:
    """Read and check the user's settings; without a file all are the defaults.

    Args:
        path: of the file; None takes `config_path()`.

    Raises:
        UsageError: the file cannot be read, is no TOML, or has an unknown key or a wrong value.
    """
    path = path or config_path()
    values = values_of(read_text(path), path)
    own = {name: value for name, value in values.items() if "." not in name}
    own["mode"] = Mode(own.get("mode", Mode.PRIVATE))
    budget = Budget(**cast("dict[str, Any]", _group(values, "budget")))
    config = Config(budget=budget, values=values, **cast("dict[str, Any]", own))
    is_whole = {"endpoint.url", "endpoint.model"} <= set(values)
    return dataclasses.replace(config, endpoint=config.endpoint_from() if is_whole else None)


def get_value(name: str, path: Path | None = None) -> Value | None:
    """Return what the file sets for a dotted key, or None.

    Raises:
        UsageError: there is no such key, or the file is wrong.
    """
    key_of(name)
    return read_config(path).values.get(name)


def set_value(name: str, typed: str | None, path: Path | None = None) -> None:
    """Set a dotted key in the file, or with None take it out; comments and order stay.

    Args:
        name: one of `KEYS`.
        typed: the value as on a command line.
        path: of the file; None takes `config_path()`.

    Raises:
        UsageError: there is no such key, this is no value for it, or the file is wrong or cannot be
            written.
        DoesNotFit: the disk is full.
    """
    key = key_of(name)
    path = path or config_path()
    value = None if typed is None else parse(name, key, typed)
    try:
        with _held(path.resolve()) as file:  # a link to a file kept elsewhere stays one
            text = edited(read_text(file), name, value, file)
            values_of(text, file)
            write_atomic(file, text.encode())
    except (OSError, RuntimeError) as err:  # the latter of links that lead in a circle
        raise UsageError(
            f"the settings cannot be written: {getattr(err, 'strerror', None) or err}",
            path=path,
            hint="export EDGELLM_HOME=/some/folder that you may write to",
        ) from err


@contextlib.contextmanager
def _held(path: Path) -> Iterator[Path]:
    """Give a file to this process alone."""
    private_dir(path.parent)
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    fd = os.open(path.with_name(f".{path.name}.lock"), flags, 0o600)
    try:
        lock_file(fd, wait=True)
        yield path
    finally:
        os.close(fd)


def _group(values: Mapping[str, Value], group: str) -> dict[str, Value]:
    """Return the settings of one table by their names in it."""
    return {
        name.removeprefix(f"{group}."): value
        for name, value in values.items()
        if name.startswith(f"{group}.")
    }
