"""`edgellm config`: the settings of the user, in one file of few keys."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import typer

from edgellm.errors import EXIT_NOT_FOUND, EdgeLLMError

if TYPE_CHECKING:
    from edgellm.config import Config, Value

EXAMPLES: Final = """
edgellm config list
edgellm config set endpoint.url http://127.0.0.1:8080/v1
edgellm config set budget.usd_per_day 0.50
edgellm config get mode
"""
GET_EXAMPLES: Final = """
edgellm config get mode
edgellm config get endpoint.url --json
"""
SET_EXAMPLES: Final = """
edgellm config set mode prefer-local
edgellm config set endpoint.url http://127.0.0.1:8080/v1
edgellm config set endpoint.model smollm2
edgellm config set endpoint.usd_per_mtok_in 0.15
"""
UNSET_EXAMPLES: Final = """
edgellm config unset endpoint.ca_file
edgellm config unset mode --json
"""
PATH_EXAMPLES: Final = """
edgellm config path
cat "$(edgellm config path)"
"""
LIST_EXAMPLES: Final = """
edgellm config list
edgellm config list --json
"""

Setting = Annotated[str, typer.Argument(metavar="SETTING", help="As `edgellm config list` has it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]


class NotSet(EdgeLLMError):
    """A setting has no value, and there is no usual one."""

    code = "not_set"
    exit_code: ClassVar[int] = EXIT_NOT_FOUND


def get(name: Setting, *, as_json: AsJson = False) -> None:
    """Print the value of a setting, or the usual one where the file sets none; exits 3 without."""
    from edgellm.cli import render
    from edgellm.config import KEYS, config_path, read_config
    from edgellm.config.keys import key_of

    key_of(name)
    row = setting(name, read_config())
    if row["value"] is None and not as_json:
        hint = f"`edgellm config set {name} ...`: {KEYS[name].meaning}"
        raise NotSet(f"{name} is not set", path=config_path(), hint=hint)
    if as_json:
        render.json_line({"type": "setting", **row})
    else:
        render.write_out(f"{spelled(row['value'])}\n")


def set_(
    name: Setting,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="A word, number or address.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Set a setting; comments and order of the file stay."""
    from edgellm.config import set_value

    set_value(name, value)
    _shown(name, as_json=as_json)


def unset(name: Setting, *, as_json: AsJson = False) -> None:
    """Take a setting out of the file, so that the usual value counts again."""
    from edgellm.config import set_value

    set_value(name, None)
    _shown(name, as_json=as_json)


def path(*, as_json: AsJson = False) -> None:
    """Print the path of the file; it need not be there."""
    from edgellm.cli import render
    from edgellm.config import config_path

    if as_json:
        render.json_line({"type": "path", "path": str(config_path())})
    else:
        render.write_out(f"{config_path()}\n")


def list_(*, as_json: AsJson = False) -> None:
    """List all settings: those that are set, the usual values in parentheses, and what they mean."""
    from edgellm.cli import render
    from edgellm.config import KEYS, allowed_mode, read_config

    config = read_config()
    rows = [setting(name, config) for name in KEYS]
    if as_json:
        for row in rows:
            render.json_line({"type": "setting", **row})
    else:
        cells = [(row["key"], _cell(row), row["meaning"]) for row in rows]
        render.table([("SETTING", "VALUE", "MEANING"), *cells])
    mode = allowed_mode(config.mode)
    if mode is not config.mode:
        render.write_err(
            f"mode {mode.value} counts: EDGELLM_OFFLINE or the administrator says so\n"
        )


def setting(name: str, config: Config) -> dict[str, Any]:
    """Return what is known of a setting, as plain values."""
    from edgellm.config import KEYS

    kept = config.values.get(name)
    usual = _usual(name)
    return {
        "key": name,
        "value": usual if kept is None else kept,
        "is_set": kept is not None,
        "default": usual,
        "choices": list(KEYS[name].choices),
        "meaning": KEYS[name].meaning,
    }


def spelled(value: Value) -> str:
    """Return a value as it is typed on a command line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _shown(name: str, *, as_json: bool) -> None:
    """Say what counts now: a script reads it, a person need not."""
    from edgellm.cli import render
    from edgellm.config import read_config

    if as_json:
        render.json_line({"type": "setting", **setting(name, read_config())})


def _cell(row: dict[str, Any]) -> str:
    if row["value"] is None:
        return "-"
    text = spelled(row["value"])
    return text if row["is_set"] else f"({text})"


def _usual(name: str) -> Value | None:
    """Return the value of a setting that nobody set, None where there is none."""
    from edgellm.config import Config
    from edgellm.core import Mode
    from edgellm.routing import Budget, Endpoint

    group, _, field_name = name.rpartition(".")
    kind: Any = {"": Config, "endpoint": Endpoint, "budget": Budget}[group]
    value = {field.name: field.default for field in dataclasses.fields(kind)}[field_name]
    if isinstance(value, Mode):
        return value.value
    return None if value in (dataclasses.MISSING, None, "") else value
