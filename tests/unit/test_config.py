"""config.toml: what is read, what is refused and how, how it is edited; and the mode that counts."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgellm.config import (
    KEYS,
    Config,
    allowed_mode,
    config_path,
    get_value,
    lock_places,
    locked_mode,
    read_config,
    set_value,
    stricter,
)
from edgellm.core import Mode
from edgellm.errors import UsageError
from edgellm.routing import Budget, Endpoint

WHOLE = """\
# what this machine may do
mode = "prefer-local" # asked for on Monday
on_failure = "restart"
deadline_s = 2.5
isolation = "none"
local_usd_per_mtok = 0.02

[endpoint]
url = "http://127.0.0.1:8080/v1"
model = "smollm2"
usd_per_mtok_in = 1
usd_per_mtok_out = 2.5
continues = "trailing"
ca_file = "/etc/ca.pem"
uses_proxy = true
connect_s = 3
first_byte_s = 4
idle_s = 5

[budget]
usd_per_day = 0.5
usd_per_request = 0.1
tokens_per_day = 100000
bytes_per_day = 1000000
allow_unpriced = true
"""


def write(text: str, path: Path | None = None) -> Path:
    path = path or config_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_without_a_file_all_is_private() -> None:
    """A fresh install keeps everything here, and reading it creates nothing."""
    assert Config() == read_config()
    assert Mode.PRIVATE is read_config().mode
    assert not config_path().parent.exists()


def test_every_key_is_read() -> None:
    """Each setting reaches its place, and the sample holds every one there is."""
    write(WHOLE)
    config = read_config()
    assert set(KEYS) == set(config.values)
    assert Endpoint(
        "http://127.0.0.1:8080/v1", "smollm2", 1, 2.5, "trailing", "/etc/ca.pem", True, 3, 4, 5
    ) == (config.endpoint)
    assert Budget(0.5, 0.1, 100000, 1000000, allow_unpriced=True) == config.budget
    assert (Mode.PREFER_LOCAL, "restart", 2.5, "none", 0.02) == (
        config.mode,
        config.on_failure,
        config.deadline_s,
        config.isolation,
        config.local_usd_per_mtok,
    )


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ('\nmod = "private"', 2, "did you mean `mode`"),
        ('[endpoint]\nulr = "http://x"', 2, "did you mean `endpoint.url`"),
        ("[budgets]\nusd_per_day = 1", 1, "'budgets'"),
        ('mode = "privat"', 1, "one of offline, private"),
        ("mode = true", 1, "one of"),
        ('budget = "none"', 1, "no setting 'budget'"),
        ("[budget]\nusd_per_day = nan", 2, "between 0 and"),
        ("[budget]\nusd_per_day = inf", 2, "between 0 and"),
        ("[budget]\nusd_per_day = -1", 2, "between 0 and"),
        ("[budget]\nusd_per_day = true", 2, "between 0 and"),
        ("[budget]\ntokens_per_day = 1.5", 2, "a whole number"),
        ('[budget]\nallow_unpriced = "yes"', 2, "true or false"),
        ('[endpoint]\nurl = "ftp://x"', 2, "http or https"),
        ('[endpoint]\nurl = "https://me:pw@x"', 2, "name or password"),
        ('[endpoint]\nmodel = ""', 2, "not empty"),
        ('[endpoint]\napi_key = "sk-1"', 2, "secrets are not kept"),
        ("[endpoint.more]\nx = 1", 1, "endpoint.more"),
    ],
)
def test_a_wrong_line_is_named(text: str, line: int, said: str) -> None:
    """An unknown key or a wrong value is refused, with file, line, key and what to do."""
    path = write(text)
    with pytest.raises(UsageError) as caught:
        read_config()
    assert f"{path}:{line}" in str(caught.value)
    assert said in str(caught.value)
    assert "pw" not in str(caught.value)
    assert "sk-1" not in str(caught.value)


@pytest.mark.parametrize("content", [b"mode =", b"\xff\xfe", b"a" * (2 << 20), b"[" * 100000])
def test_what_is_no_toml_is_refused(content: bytes) -> None:
    """Bytes that are no settings are an error that names the file."""
    path = write("")
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"config\.toml"):
        read_config()


def test_a_half_named_endpoint_is_none_until_a_flag_completes_it() -> None:
    """One of URL and model alone asks nobody; a flag may give the other."""
    write('[endpoint]\nurl = "http://127.0.0.1:1"\nconnect_s = 3\n')
    config = read_config()
    assert config.endpoint is None
    assert Endpoint("http://127.0.0.1:1", "m", connect_s=3) == config.endpoint_from(model="m")
    with pytest.raises(UsageError, match="endpoint's model"):
        config.endpoint_from()
    assert Config().endpoint_from() is None


def test_prices_and_trust_do_not_move_to_another_place() -> None:
    """A flag that names another origin takes over the waits, and no price, model or ability."""
    write(WHOLE)
    config = read_config()
    there = config.endpoint_from("https://api.example.com/v1", "big")
    assert (
        Endpoint("https://api.example.com/v1", "big", connect_s=3, first_byte_s=4, idle_s=5)
        == there
    )
    with pytest.raises(UsageError, match="endpoint's model"):
        config.endpoint_from("https://api.example.com/v1")
    same = config.endpoint_from("http://127.0.0.1:8080/other")
    assert same is not None
    assert (1, "trailing") == (same.usd_per_mtok_in, same.continues)


def test_setting_keeps_comments_and_order() -> None:
    """An edit changes its own line and adds what is new; the rest stays byte for byte."""
    path = write(WHOLE)
    set_value("mode", "private")
    set_value("budget.usd_per_day", "1.25")
    expected = WHOLE.replace('mode = "prefer-local"', 'mode = "private"').replace(
        "usd_per_day = 0.5", "usd_per_day = 1.25"
    )
    assert expected == path.read_text()
    set_value("deadline_s", None)
    assert expected.replace("deadline_s = 2.5\n", "") == path.read_text()
    assert get_value("deadline_s") is None
    assert 1.25 == get_value("budget.usd_per_day")


def test_a_setting_makes_the_file_for_its_owner_alone() -> None:
    """The first one creates folder and file, 0700 and 0600; a later one keeps that."""
    set_value("endpoint.url", "http://127.0.0.1:8080")
    set_value("endpoint.model", "m")
    set_value("endpoint.uses_proxy", "off")
    path = config_path()
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    assert 0o700 == stat.S_IMODE(path.parent.stat().st_mode)
    assert Endpoint("http://127.0.0.1:8080", "m") == read_config().endpoint


@pytest.mark.parametrize(
    ("name", "typed"),
    [
        ("mode", "PRIVATE!"),
        ("deadline_s", "soon"),
        ("budget.tokens_per_day", "1.5"),
        ("budget.usd_per_day", "1e9"),
        ("endpoint.uses_proxy", "maybe"),
        ("endpoint.url", "localhost:80"),
        ("nothing", "1"),
    ],
)
def test_a_refused_setting_leaves_the_file(name: str, typed: str) -> None:
    """What is no value for a key is refused, and the file stays as it was."""
    path = write(WHOLE)
    with pytest.raises(UsageError):
        set_value(name, typed)
    assert WHOLE == path.read_text()


def test_a_wrong_line_can_be_set_right() -> None:
    """The key that is wrong may be set; another may not, before it is right."""
    write('mode = "privat"\n')
    with pytest.raises(UsageError, match="mode"):
        set_value("deadline_s", "1")
    set_value("mode", "private")
    assert 'mode = "private"\n' == config_path().read_text()


def test_a_linked_file_stays_linked(tmp_path: Path) -> None:
    """Settings kept elsewhere are edited there."""
    kept = write("# mine\n", tmp_path / "dotfiles" / "edgellm.toml")
    config_path().parent.mkdir(parents=True)
    config_path().symlink_to(kept)
    set_value("mode", "offline")
    assert config_path().is_symlink()
    assert '# mine\nmode = "offline"\n' == kept.read_text()


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    """No folder, a lock that is a link, links in a circle: our error, and nothing is made."""
    (tmp_path / "file").write_text("")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / ".config.toml.lock").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for folder in ("file", "linked", "circle"):
        with pytest.raises(UsageError, match="cannot be written"):
            set_value("mode", "private", tmp_path / folder / "config.toml")
    assert not (tmp_path / "elsewhere").exists()


def test_edits_at_the_same_time_all_count() -> None:
    """Each of several threads' settings is there in the end."""
    names = ["connect_s", "first_byte_s", "idle_s"]
    threads = [
        threading.Thread(target=set_value, args=(f"endpoint.{name}", str(n)))
        for n, name in enumerate(names, start=1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {f"endpoint.{name}": n for n, name in enumerate(names, start=1)} == dict(
        read_config().values
    )


@pytest.mark.parametrize("first", list(Mode))
@pytest.mark.parametrize("second", list(Mode))
def test_the_stricter_mode_wins(first: Mode, second: Mode, tmp_path: Path) -> None:
    """A lock caps every wish, whichever way round the two are given."""
    order = [Mode.OFFLINE, Mode.PRIVATE, Mode.PREFER_LOCAL, Mode.PREFER_CLOUD]
    expected = order[min(order.index(first), order.index(second))]
    assert expected is stricter(first, second) is stricter(second, first)
    lock = write(f'mode = "{second.value}"', tmp_path / "lock.toml")
    assert expected is allowed_mode(first, [lock])
    assert second is locked_mode([tmp_path / "none.toml", lock])


@pytest.mark.parametrize("content", ["mode = 1", 'mod = "private"', "mode =", "deadline_s = 1"])
def test_a_lock_that_cannot_be_understood_locks_all(content: str, tmp_path: Path) -> None:
    """Nobody guesses what an administrator meant: nothing runs until the lock is right."""
    lock = write(content, tmp_path / "lock.toml")
    with pytest.raises(UsageError, match=r"lock\.toml"):
        allowed_mode(Mode.PRIVATE, [lock])


def test_a_lock_that_leads_nowhere_locks_all(tmp_path: Path) -> None:
    """A link whose target is gone is no absent lock."""
    (tmp_path / "lock.toml").symlink_to(tmp_path / "gone.toml")
    with pytest.raises(UsageError, match="leads nowhere"):
        locked_mode([tmp_path / "lock.toml"])


@pytest.mark.skipif(os.name == "nt", reason="folders have no such modes there")
def test_a_lock_in_a_closed_folder_locks_all(tmp_path: Path) -> None:
    """A folder that this user may not look into may hold a lock: an error of ours, and no guess."""
    folder = tmp_path / "edgellm"
    folder.mkdir()
    write('mode = "private"', folder / "lock.toml")
    folder.chmod(0)
    is_root = os.geteuid() == 0
    if is_root:  # who may look into every folder
        os.seteuid(65534)
    try:
        with pytest.raises(UsageError, match="cannot be read"):
            allowed_mode(Mode.PREFER_CLOUD, [folder / "lock.toml"])
    finally:
        if is_root:
            os.seteuid(0)
        folder.chmod(0o700)


def test_the_environment_hides_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """`XDG_CONFIG_DIRS` adds a place to look for locks and takes none away."""
    before = lock_places()
    monkeypatch.setenv("XDG_CONFIG_DIRS", "/somewhere/else")
    assert set(before) <= set(lock_places())


def test_offline_in_the_environment_tightens_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """`EDGELLM_OFFLINE` makes any mode offline, its absence or `0` changes none."""
    for mode in Mode:
        monkeypatch.setenv("EDGELLM_OFFLINE", "1")
        assert Mode.OFFLINE is allowed_mode(mode, [])
        monkeypatch.setenv("EDGELLM_OFFLINE", "0")
        assert mode is allowed_mode(mode, [])
    monkeypatch.setenv("EDGELLM_OFFLINE", "yes")
    with pytest.raises(UsageError, match="EDGELLM_OFFLINE"):
        allowed_mode(Mode.PRIVATE, [])


@pytest.mark.parametrize(
    "name",
    [
        "OPENAI_API_KEY",
        "EDGELLM_API_KEY",
        "EDGELLM_MODE",
        "EDGELLM_ENDPOINT",
        "HTTPS_PROXY",
        "OPENAI_BASE_URL",
    ],
)
def test_g5_no_variable_changes_the_mode_or_the_endpoint(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Setting any env var, API key or proxy does not turn a local route into a cloud route."""
    monkeypatch.setenv(name, "prefer-cloud" if "MODE" in name else "http://127.0.0.1:9")
    assert Config() == read_config()
    assert Mode.PRIVATE is allowed_mode(read_config().mode, [])


def test_reading_loads_no_editor() -> None:
    """Reading settings needs no tomlkit and no httpx: every command pays for it."""
    program = (
        "import sys; from edgellm.config import read_config; read_config();"
        "print([m for m in ('tomlkit', 'httpx', 'numpy', 'sqlite3') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ
    )
    assert "[]\n" == done.stdout


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=200) | st.sampled_from(WHOLE.splitlines()).map(lambda line: line * 2))
def test_no_text_is_worse_than_an_error(text: str) -> None:
    """Whatever stands in the file, it is settings or an error that names the file."""
    path = write("")
    path.write_text(text, encoding="utf-8", newline="")
    try:
        config = read_config()
    except UsageError as err:
        said = str(err)
    else:
        said = f"{path} holds {config}"
    assert str(path) in said


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(sorted(KEYS)),
    st.text(max_size=30) | st.floats().map(str) | st.integers().map(str),
)
def test_what_is_set_is_read(name: str, typed: str) -> None:
    """A value that is taken comes back from the file; one that is not leaves none."""
    config_path().unlink(missing_ok=True)
    try:
        set_value(name, typed)
    except UsageError:
        assert get_value(name) is None
    else:
        value = get_value(name)
        assert value is not None
        assert KEYS[name].kind == "switch" or str(value) == typed or float(value) == float(typed)
