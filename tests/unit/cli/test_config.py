"""`edgellm config`: get, set, unset, path and list over one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgellm.config import KEYS, config_path


def test_set_get_and_unset(cli: Any) -> None:
    """What was set is got, quietly; what was unset is as usual again."""
    for name, typed, got in (
        ("mode", "prefer-local", "prefer-local"),
        ("endpoint.usd_per_mtok_in", "0.15", "0.15"),
        ("budget.tokens_per_day", "100000", "100000"),
        ("endpoint.uses_proxy", "on", "true"),
        ("endpoint.url", "http://127.0.0.1:8080/v1", "http://127.0.0.1:8080/v1"),
    ):
        assert (cli("config", "set", name, typed).code, cli("config", "get", name).out) == (
            *(0, f"{got}\n"),
        )
    result = cli("config", "unset", "mode")
    assert (result.code, result.out, result.err) == (0, "", "")
    assert cli("config", "get", "mode").out == "private\n"


def test_what_has_no_value_is_not_found(cli: Any) -> None:
    """Exit 3 and how to set it; as JSON it is null."""
    result = cli("config", "get", "endpoint.url")
    assert (result.code, result.out) == (3, "")
    assert "endpoint.url is not set" in result.err
    (row,) = cli("config", "get", "endpoint.url", "--json").lines
    assert (row["type"], row["value"], row["is_set"]) == ("setting", None, False)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["get", "endpoint.uri"], "did you mean `endpoint.url`?"),
        (["set", "mode", "public"], "mode must be one of offline, private"),
        (["set", "endpoint.url", "example.com"], "no scheme http or https"),
        (["set", "endpoint.api_key", "sk-1"], "secrets are not kept in this file"),
        (["set", "deadline_s", "soon"], "deadline_s must be a number"),
    ],
)
def test_wrong_words_change_nothing(cli: Any, arguments: list[str], words: str) -> None:
    """Exit 2, and no file is made."""
    result = cli("config", *arguments)
    assert (result.code, result.out) == (2, "")
    assert words in result.err
    assert not config_path().exists()


def test_comments_stay(cli: Any) -> None:
    """The file is the user's; it is closed to others when we make it."""
    cli("config", "set", "mode", "prefer-local")
    path = Path(cli("config", "path").out.strip())
    assert path == config_path()
    assert path.stat().st_mode & 0o077 == 0
    path.write_text(f"# mine\n{path.read_text()}", encoding="utf-8")
    cli("config", "set", "mode", "offline")
    assert path.read_text() == '# mine\nmode = "offline"\n'
    assert cli("config", "path", "--json").lines == [{"type": "path", "path": str(path)}]


def test_list_names_every_setting(cli: Any, monkeypatch) -> None:
    """Set values plain, usual ones in parentheses; a stricter mode that counts is said."""
    cli("config", "set", "mode", "prefer-cloud")
    result = cli("config", "list")
    heading, *rows = result.out.splitlines()
    assert heading.split() == ["SETTING", "VALUE", "MEANING"]
    assert [row.split()[0] for row in rows] == list(KEYS)
    shown = {row.split()[0]: row.split()[1] for row in rows}
    assert (shown["mode"], shown["isolation"], shown["endpoint.url"]) == (
        *("prefer-cloud", "(worker)", "-"),
    )
    assert result.err == ""
    assert [row["key"] for row in cli("config", "list", "--json").lines] == list(KEYS)
    monkeypatch.setenv("EDGELLM_OFFLINE", "1")
    assert "mode offline counts" in cli("config", "list").err


def test_a_damaged_file_names_its_line(cli: Any) -> None:
    """Every command that would read it ends with exit 2, and it stays as it is."""
    config_path().parent.mkdir(parents=True)
    config_path().write_text('mode = "private"\nmodel = 3\n', encoding="utf-8")
    for arguments in (["get", "mode"], ["list"], ["set", "mode", "offline"]):
        result = cli("config", *arguments)
        assert (result.code, result.out) == (2, "")
        assert f"{config_path()}:2: there is no setting 'model'" in result.err
    assert config_path().read_text() == 'mode = "private"\nmodel = 3\n'
