"""Where files lie: EDGELLM_HOME decides, and nothing is made by asking."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgellm import paths
from edgellm.errors import UsageError


def test_everything_lies_below_the_home(edgellm_home: Path) -> None:
    """One variable moves all state, and asking makes no folder."""
    assert edgellm_home == paths.home_dir()
    assert edgellm_home / "snapshots" == paths.snapshots_dir()
    assert edgellm_home / "history" == paths.history_file()
    assert edgellm_home / "cache" == paths.cache_dir()
    assert not edgellm_home.exists()


@pytest.mark.parametrize("value", [None, ""])
def test_without_the_variable_the_platform_decides(
    value: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unset and empty are the same: the user's data folder."""
    monkeypatch.delenv(paths.HOME_VARIABLE)
    if value is not None:
        monkeypatch.setenv(paths.HOME_VARIABLE, value)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    home = paths.home_dir()
    assert home.is_relative_to(tmp_path)
    assert home.name == "edgellm"
    assert not home.exists()


def test_a_tilde_is_the_users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configuration files, unlike shells, pass `~` on as it is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(paths.HOME_VARIABLE, "~/state")
    assert tmp_path / "state" == paths.home_dir()


@pytest.mark.parametrize("value", ["state", "./state", "../state", "~nobody-of-that-name/state"])
def test_a_relative_home_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be another folder for every working directory; the error names the variable."""
    monkeypatch.setenv(paths.HOME_VARIABLE, value)
    with pytest.raises(UsageError, match=paths.HOME_VARIABLE) as caught:
        paths.home_dir()
    assert 2 == caught.value.exit_code


def test_a_file_is_no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said at once, not when the first snapshot fails."""
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv(paths.HOME_VARIABLE, str(file))
    with pytest.raises(UsageError, match="not a folder"):
        paths.home_dir()


def test_a_name_that_no_folder_can_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the system refuses to look at is an error of ours, not its own."""
    monkeypatch.setenv(paths.HOME_VARIABLE, "/" + "a" * 300)
    with pytest.raises(UsageError, match=paths.HOME_VARIABLE):
        paths.home_dir()


def test_a_wrong_home_is_one_line_and_exit_2(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The command line says it without a traceback."""
    monkeypatch.setenv(paths.HOME_VARIABLE, "state")
    done = subprocess.run(
        [sys.executable, "-m", "edgellm", "snapshots", "ls"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (2, "") == (done.returncode, done.stdout)
    assert paths.HOME_VARIABLE in done.stderr
    assert "Traceback" not in done.stderr
    assert [] == list(Path(tmp_path).iterdir())


@pytest.mark.parametrize("raises", [True, False])
def test_a_user_without_a_home_has_a_folder_that_cannot_be_made(
    monkeypatch: pytest.MonkeyPatch, raises: bool
) -> None:
    """A `~` that nobody can resolve makes no folder of that name in the working directory."""

    def unresolved(*_: object, **__: object) -> str:
        if raises:
            raise RuntimeError("could not determine the home directory")
        return "~/.local/share/edgellm"

    monkeypatch.delenv(paths.HOME_VARIABLE)
    monkeypatch.setattr("platformdirs.user_data_dir", unresolved)
    assert paths.NOWHERE / "edgellm" == paths.home_dir()


@pytest.mark.parametrize(
    ("value", "cap_bytes"),
    [
        ("", None),
        ("20GB", 20_000_000_000),
        ("0", 0),
        ("off", paths.NO_CAP),
        (" OFF ", paths.NO_CAP),
    ],
)
def test_a_variable_says_how_much_snapshots_may_take(
    monkeypatch: pytest.MonkeyPatch, value: str, cap_bytes: int | None
) -> None:
    """Empty says nothing, and `off` is no limit."""
    monkeypatch.setenv(paths.CAP_VARIABLE, value)
    assert cap_bytes == paths.snapshots_cap_bytes()


def test_a_cap_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variable and what it may hold."""
    monkeypatch.setenv(paths.CAP_VARIABLE, "lots")
    with pytest.raises(UsageError, match=r"EDGELLM_SNAPSHOTS_MAX: 'lots' .*`20GB`"):
        paths.snapshots_cap_bytes()
