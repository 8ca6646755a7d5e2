"""`edgellm doctor`: lines for people, one object for programs, and the exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edgellm.config import config_path, set_value
from edgellm.runtime import doctoring, machine_checks
from edgellm.runtime.doctoring import Check
from edgellm.runtime.engine_probe import EngineProbe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Any

    from edgellm.core import Mode

GOOD = (Check("CPU", "ok", "fast"), Check("endpoint", "skipped", "not asked", "not told"))
BAD = (*GOOD, Check("llama.cpp", "failed", "no libc", "run: pip install x"))
SLOW = (*GOOD, Check("disk", "warning", "slow", "buy one"))


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that says what the checks find."""

    def say(found: tuple[Check, ...]) -> None:
        def checkup(probe: object, mode: Mode) -> Iterator[Check]:
            del probe, mode
            yield from found

        monkeypatch.setattr(doctoring, "checkup", checkup)

    return say


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what takes its time."""
    monkeypatch.setattr(machine_checks, "measure", lambda *_: None)
    monkeypatch.setattr(doctoring, "probe_llama", lambda: EngineProbe(version="1"))


@pytest.mark.parametrize(("found", "code"), [(GOOD, 0), (SLOW, 0), (BAD, 1)])
def test_the_exit_code(cli: Any, checks: Any, found: tuple[Check, ...], code: int) -> None:
    """A failure is 1; a warning and what was not asked for are none."""
    checks(found)
    assert cli("doctor").code == code
    result = cli("doctor", "--json")
    (line,) = result.lines
    assert (result.code, line["type"], line["ok"]) == (code, "doctor", not code)
    assert len(found) == len(line["checks"])


def test_lines_for_people(cli: Any, checks: Any) -> None:
    """What failed stands out, and what to do about it goes to stderr."""
    checks(BAD)
    result = cli("doctor")
    assert "CPU:" in result.out
    assert "FAILED: no libc" in result.out
    assert result.err == "hint: llama.cpp: run: pip install x\n"


@pytest.mark.usefixtures("quick")
def test_damaged_settings_are_a_check_that_fails(cli: Any) -> None:
    """The other checks are made all the same, and no endpoint is asked."""
    config_path().parent.mkdir(parents=True, exist_ok=True)
    config_path().write_text("mode = [")
    result = cli("doctor", "--endpoint", "--json")
    statuses = {check["name"]: check["status"] for check in result.lines[0]["checks"]}
    assert (result.code, statuses["settings"], statuses["endpoint"]) == (1, "failed", "failed")
    assert statuses["memory"] in ("ok", "warning")


@pytest.mark.usefixtures("quick")
def test_a_home_that_is_a_file(cli: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing can be kept there: settings and disk fail, and the rest is told."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("EDGELLM_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(machine_checks, "measure", lambda *_: 9.0)
    result = cli("doctor", "--json")
    found = {check["name"]: check for check in result.lines[0]["checks"]}
    statuses = [found[name]["status"] for name in ("settings", "disk")]
    assert (result.code, statuses) == (1, ["failed", "failed"])
    assert "not kept for plans" in found["bandwidth"]["found"]


def test_the_endpoint_needs_a_mode(cli: Any, quick: None) -> None:
    """The factory default asks nobody, whatever is configured."""
    set_value("endpoint.url", "http://127.0.0.1:9")
    set_value("endpoint.model", "m")
    result = cli("doctor", "--endpoint", "--json")
    (endpoint,) = [check for check in result.lines[0]["checks"] if check["name"] == "endpoint"]
    assert (result.code, endpoint["status"]) == (1, "failed")
    assert "mode private" in endpoint["found"]


@pytest.mark.parametrize(
    ("configured", "words"), [(True, "127.0.0.1:9"), (False, "no endpoint is configured")]
)
def test_the_configured_endpoint_is_asked(
    cli: Any, quick: None, *, configured: bool, words: str
) -> None:
    """It is not there, and that is told; none configured is told as well."""
    if configured:
        set_value("endpoint.url", "http://127.0.0.1:9")
        set_value("endpoint.model", "m")
    set_value("mode", "prefer-local")
    result = cli("doctor", "--endpoint", "--json")
    (endpoint,) = [check for check in result.lines[0]["checks"] if check["name"] == "endpoint"]
    assert (result.code, endpoint["status"]) == (1, "failed")
    assert words in endpoint["found"]
