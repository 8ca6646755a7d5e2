"""What the user settled once: `config.toml` below `EDGELLM_HOME`, and the administrator's lock.

Every key stands in `KEYS` with its kind and range; an unknown one is refused, since a misspelt limit
would be none. No variable of the environment loosens anything: `EDGELLM_OFFLINE=1` tightens the
mode, and the lock caps it whoever asks. No secret is kept here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast, get_args

from edgellm.core import Mode
from edgellm.errors import UsageError
from edgellm.fileio import lock_file, open_regular, private_dir, write_atomic
from edgellm.paths import APP_NAME, home_dir
from edgellm.routing import MAX_USD, Budget, Continuation, Endpoint, OnFailure, origin_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Isolation = Literal["worker", "none"]
Kind = Literal["text", "url", "number", "whole", "switch", "choice"]
Value = str | int | float | bool

CONFIG_NAME: Final = "config.toml"
LOCK_NAME: Final = "lock.toml"
OFFLINE_VARIABLE: Final = "EDGELLM_OFFLINE"
_ON: Final = ("1", "true", "on")
_OFF: Final = ("0", "false", "off")
_MAX_FILE_BYTES: Final = 1 << 20
_MAX_TEXT: Final = 2048
_MAX_COUNT: Final = 1 << 50
_MAX_SECONDS: Final = 24 * 3600.0
_MODES: Final = tuple(mode.value for mode in Mode)  # the strictest stands first


@dataclass(frozen=True, slots=True)
class Key:
    """One setting.

    Attributes:
        kind: what its value is.
        meaning: one phrase for the person reading.
        choices: the only values of a `choice`.
        high: the largest number; the smallest is 0.
    """

    kind: Kind
    meaning: str
    choices: tuple[str, ...] = ()
    high: float = 0


KEYS: Final[Mapping[str, Key]] = {
    "mode": Key("choice", "which routes an answer may take", _MODES),
    "on_failure": Key("choice", "what becomes of an answer that breaks off", get_args(OnFailure)),
    "deadline_s": Key("number", "seconds to the first token, or ask elsewhere", high=_MAX_SECONDS),
    "isolation": Key("choice", "where the engine runs", get_args(Isolation)),
    "local_usd_per_mtok": Key("number", "what a million tokens cost here, as power", high=MAX_USD),
    "endpoint.url": Key("url", "an OpenAI-compatible server"),
    "endpoint.model": Key("text", "what it calls the model"),
    "endpoint.usd_per_mtok_in": Key("number", "price of a million prompt tokens", high=MAX_USD),
    "endpoint.usd_per_mtok_out": Key("number", "of a million answer tokens", high=MAX_USD),
    "endpoint.continues": Key("choice", "how it goes on with a begun text", get_args(Continuation)),
    "endpoint.ca_file": Key("text", "certificates to trust in place of the system's"),
    "endpoint.uses_proxy": Key("switch", "whether the proxy variables count"),
    "endpoint.connect_s": Key("number", "longest wait for a connection", high=_MAX_SECONDS),
    "endpoint.first_byte_s": Key("number", "from there to the first byte", high=_MAX_SECONDS),
    "endpoint.idle_s": Key("number", "between two bytes", high=_MAX_SECONDS),
    "budget.usd_per_day": Key("number", "the most to spend from midnight UTC", high=MAX_USD),
    "budget.usd_per_request": Key("number", "the most to spend on one answer", high=MAX_USD),
    "budget.tokens_per_day": Key("whole", "prompts and answers together", high=_MAX_COUNT),
    "budget.bytes_per_day": Key("whole", "bytes sent out", high=_MAX_COUNT),
    "budget.allow_unpriced": Key("switch", "whether a server of unknown price may be asked"),
}


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
            raise UsageError(
                f"the endpoint's {missing[0]} is not known",
                hint=f"`edgellm config set endpoint.{missing[0]} ...`",
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
    values = _values(_read_text(path), path)
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
    _key(name)
    return read_config(path).values.get(name)


def set_value(name: str, text: str | None, path: Path | None = None) -> None:
    """Set a dotted key in the file, or with None take it out; comments and order stay.

    Raises:
        UsageError: there is no such key, the text is no value for it, or the file is wrong.
        DoesNotFit: the disk is full.
    """
    key = _key(name)
    path = path or config_path()
    value = None if text is None else _parse(name, key, text)
    path = path.resolve()  # a link to a file kept elsewhere stays one
    private_dir(path.parent)
    fd = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        lock_file(fd, wait=True)
        edited = _edited(_read_text(path), name, value, path)
        _values(edited, path)
        write_atomic(path, edited.encode())
    finally:
        os.close(fd)


def stricter(first: Mode, second: Mode) -> Mode:
    """Return the one of two modes that allows less."""
    return min(first, second, key=lambda mode: _MODES.index(mode.value))


def allowed_mode(wished: Mode, lock_files: Sequence[Path] | None = None) -> Mode:
    """Return the mode that counts: the wish, capped by the lock and by `EDGELLM_OFFLINE`.

    Raises:
        UsageError: the lock or the variable cannot be understood; nobody guesses what it meant.
    """
    locked = locked_mode(lock_files)
    if locked is not None:
        wished = stricter(wished, locked)
    word = os.environ.get(OFFLINE_VARIABLE, "").strip().lower()
    if word in _ON:
        return Mode.OFFLINE
    if word and word not in _OFF:
        raise UsageError(
            f"{OFFLINE_VARIABLE}={word!r} is none of {', '.join(_OFF)}, {', '.join(_ON)}",
            hint=f"export {OFFLINE_VARIABLE}=1 or unset it",
        )
    return wished


def locked_mode(lock_files: Sequence[Path] | None = None) -> Mode | None:
    """Return the loosest mode that the administrator allows, or None where nobody says.

    Args:
        lock_files: where to look; None means the system's own places. The strictest counts.

    Raises:
        UsageError: a lock is there and cannot be read or understood.
    """
    locked: Mode | None = None
    for path in lock_places() if lock_files is None else lock_files:
        values = _values(_read_text(path), path, keys={"mode": KEYS["mode"]})
        if "mode" in values:
            mode = Mode(values["mode"])
            locked = mode if locked is None else stricter(locked, mode)
    return locked


def lock_places() -> tuple[Path, ...]:
    """Return where an administrator's lock may lie.

    `XDG_CONFIG_DIRS` may name a further place and hides none: it could take the lock away.
    """
    import platformdirs

    named = Path(platformdirs.site_config_dir(APP_NAME, appauthor=False)) / LOCK_NAME
    if os.name != "posix" or sys.platform == "darwin":
        return (named,)
    fixed = tuple(Path(folder) / APP_NAME / LOCK_NAME for folder in ("/etc/xdg", "/etc"))
    return fixed if named in fixed else (*fixed, named)


def _key(name: str, keys: Mapping[str, Key] = KEYS) -> Key:
    """Return what is known of a dotted key.

    Raises:
        UsageError: nothing is; the nearest name is in the hint.
    """
    if name in keys:
        return keys[name]
    if name.rpartition(".")[2] in ("api_key", "key", "token", "password"):
        raise UsageError(
            f"{name!r} is no setting: secrets are not kept in this file",
            hint="export EDGELLM_API_KEY, or keep the key in the system's keyring",
        )
    near = difflib.get_close_matches(name, keys, n=1, cutoff=0.5)
    hint = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(keys)}"
    raise UsageError(f"there is no setting {name!r}", hint=hint)


def _read_text(path: Path) -> str:
    """Return a small file's text, "" where there is none.

    Raises:
        UsageError: it is there and cannot be read, is too long, or is no UTF-8.
    """
    try:
        with open_regular(path, follow=True) as (file, status):
            if status.st_size > _MAX_FILE_BYTES:
                raise UsageError(f"a file of settings has {status.st_size} bytes", path=path)
            return file.read(_MAX_FILE_BYTES).decode()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, UnicodeDecodeError) as err:
        raise UsageError(f"cannot be read: {err}", path=path) from err


def _values(text: str, path: Path, keys: Mapping[str, Key] = KEYS) -> dict[str, Value]:
    """Return the settings in a file's text, checked, by dotted key.

    Raises:
        UsageError: it is no TOML, or a key or a value is wrong; names the line where it can.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as err:
        raise UsageError(f"is no TOML: {err}", path=path) from err
    values: dict[str, Value] = {}
    for name, value in _flat(document):
        where = f"{path}:{_line_of(text, name)}"
        try:
            values[name] = _checked(name, _key(name, keys), value)
        except UsageError as err:
            raise UsageError(err.message, path=where, hint=err.hint) from err
    return values


def _flat(document: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Give the settings of a document; a table that is none of ours is a wrong key itself."""
    groups = {name.partition(".")[0] for name in KEYS if "." in name}
    for name, value in document.items():
        if name in groups and isinstance(value, dict):
            yield from ((f"{name}.{inner}", one) for inner, one in value.items())
        else:
            yield name, value


def _line_of(text: str, name: str) -> int:
    """Return the line that sets a key, as near as a look at the text can tell; 1 for unknown."""
    last = name.rpartition(".")[2]
    for n, line in enumerate(text.splitlines(), start=1):
        if line.split("=")[0].strip().strip("\"'").rpartition(".")[2] == last:
            return n
    return 1


def _checked(name: str, key: Key, value: object) -> Value:
    """Return a value if it is one for that key.

    Raises:
        UsageError: it is not.
    """
    if key.kind == "switch" and isinstance(value, bool):
        return value
    if key.kind == "choice" and value in key.choices:
        return str(value)
    if key.kind in ("text", "url") and isinstance(value, str) and 0 < len(value) <= _MAX_TEXT:
        if key.kind == "url":
            origin_of(value)
        return value
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if key.kind == "number" and is_number and 0 <= cast("float", value) <= key.high:
        return cast("float", value)
    if key.kind == "whole" and is_number and isinstance(value, int) and 0 <= value <= key.high:
        return value
    raise UsageError(f"{name} must be {_wanted(key)}, not {str(value)[:80]!r}")


def _wanted(key: Key) -> str:
    if key.kind == "choice":
        return f"one of {', '.join(key.choices)}"
    number = "a whole number" if key.kind == "whole" else "a number"
    named = {"switch": "true or false", "text": "text, not empty", "url": "a URL"}
    return named.get(key.kind, f"{number} between 0 and {key.high:g}")


def _parse(name: str, key: Key, text: str) -> Value:
    """Return a value as typed on a command line.

    Raises:
        UsageError: it is none for that key.
    """
    value: object = text
    word = text.strip().lower()
    if key.kind == "switch":
        value = True if word in _ON else False if word in _OFF else text
    elif key.kind in ("number", "whole"):
        for read in (int, float):
            with contextlib.suppress(ValueError):
                value = read(word)
                break
    return _checked(name, key, value)


def _edited(text: str, name: str, value: Value | None, path: Path) -> str:
    """Return a file's text with one key set, or taken out."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    group, _, last = name.rpartition(".")
    try:
        document: Any = tomlkit.parse(text)
        if group and value is not None and group not in document:
            document[group] = tomlkit.table()
        table = document.get(group, {}) if group else document
        if value is None:
            table.pop(last, None)
        else:
            table[last] = value
        return tomlkit.dumps(document)
    except (TOMLKitError, TypeError, AttributeError) as err:  # the last two: the group is no table
        raise UsageError(f"cannot be edited: {err}", path=path) from err


def _group(values: Mapping[str, Value], group: str) -> dict[str, Value]:
    """Return the settings of one table by their names in it."""
    return {
        name.removeprefix(f"{group}."): value
        for name, value in values.items()
        if name.startswith(f"{group}.")
    }
