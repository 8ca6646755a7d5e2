"""Which routes a session may take: flags or arguments, then the user's file, capped by the lock."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import edgellm
from edgellm.config import config_path, set_value
from edgellm.core import Mode
from edgellm.errors import ModelNotFound, NoRoute, UsageError
from edgellm.routing import Budget, Endpoint
from edgellm.runtime.routes import RouteWishes, with_routes
from edgellm.runtime.session import CloudOptions, SessionOptions

URL = "http://127.0.0.1:8080/v1"


def routes(**wishes: Any) -> SessionOptions:
    return with_routes(SessionOptions(), RouteWishes(**wishes))


def configure(**values: str) -> None:
    for name, value in values.items():
        set_value(name.replace("__", "."), value)


@pytest.fixture
def lock(monkeypatch, tmp_path: Path) -> Path:
    """The file of an administrator."""
    path = tmp_path / "lock.toml"
    monkeypatch.setattr("edgellm.config.modes.lock_places", lambda: (path,))
    return path


def test_without_a_word_answers_stay_here() -> None:
    """No file, no flag: private, a worker, no endpoint, and nothing is written."""
    found = routes()
    assert (found.mode, found.isolation, found.cloud) == (Mode.PRIVATE, "worker", None)
    assert (found.on_failure, found.deadline_s, found.app) == ("resume-local", None, "edgellm")
    assert not config_path().exists()


def test_the_file_counts_where_nobody_else_says() -> None:
    """Each setting arrives."""
    configure(
        mode="prefer-local",
        isolation="none",
        on_failure="restart",
        deadline_s="2.5",
        endpoint__url=URL,
        endpoint__model="m",
        budget__usd_per_day="0.5",
    )
    found = routes()
    assert (found.mode, found.isolation, found.on_failure) == (
        *(Mode.PREFER_LOCAL, "none", "restart"),
    )
    assert found.deadline_s == 2.5
    assert found.cloud is not None
    assert found.cloud.endpoint == Endpoint(URL, "m")
    assert found.cloud.budget == Budget(usd_per_day=0.5)


def test_a_flag_or_an_argument_comes_before_the_file() -> None:
    """Each on its own: what is not said stays the file's."""
    configure(
        mode="private",
        on_failure="stop",
        endpoint__url=URL,
        endpoint__model="m",
        endpoint__usd_per_mtok_in="1",
        budget__usd_per_day="0.5",
        budget__bytes_per_day="1000",
    )
    found = routes(
        mode=Mode.PREFER_CLOUD,
        endpoint_model="n",
        budget=Budget(usd_per_day=0.1, tokens_per_day=7),
        isolation="none",
        deadline_s=1.0,
        force=True,
        app="editor",
    )
    assert (found.mode, found.isolation, found.on_failure) == (Mode.PREFER_CLOUD, "none", "stop")
    assert (found.deadline_s, found.force, found.app) == (1.0, True, "editor")
    assert found.cloud is not None
    assert found.cloud.endpoint == Endpoint(URL, "n", usd_per_mtok_in=1)
    assert found.cloud.budget == Budget(usd_per_day=0.1, tokens_per_day=7, bytes_per_day=1000)


def test_another_origin_takes_no_price_over() -> None:
    """A price is one server's; an `Endpoint` is taken as it is."""
    configure(endpoint__url=URL, endpoint__model="m", endpoint__usd_per_mtok_in="0")
    found = routes(endpoint="https://api.example.com/v1", endpoint_model="n").cloud
    assert found is not None
    assert found.endpoint == Endpoint("https://api.example.com/v1", "n")
    own = Endpoint("https://api.example.com", "x", usd_per_mtok_in=2)
    for model, expected in ((None, "x"), ("y", "y")):
        found = routes(endpoint=own, endpoint_model=model).cloud
        assert found is not None
        assert (found.endpoint.model, found.endpoint.usd_per_mtok_in) == (expected, 2)


@pytest.mark.parametrize("wished", [None, *Mode])
@pytest.mark.parametrize("locked", ["offline", "private", "prefer-local"])
def test_nobody_loosens_the_lock(lock: Path, wished: Mode | None, locked: str) -> None:
    """Not the file and not a flag; either may be stricter."""
    configure(mode="prefer-cloud")
    lock.write_text(f'mode = "{locked}"\n', encoding="utf-8")
    order = list(Mode)
    expected = min(order.index(wished or Mode.PREFER_CLOUD), order.index(Mode(locked)))
    assert routes(mode=wished).mode is order[expected]


def test_the_environment_opens_no_route(monkeypatch) -> None:
    """A key or a proxy changes nothing; EDGELLM_OFFLINE closes every route."""
    configure(endpoint__url=URL, endpoint__model="m")
    for name in ("EDGELLM_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL", "EDGELLM_MODE"):
        monkeypatch.setenv(name, "prefer-cloud")
    assert routes().mode is Mode.PRIVATE
    monkeypatch.setenv("EDGELLM_OFFLINE", "1")
    assert routes(mode=Mode.PREFER_CLOUD).mode is Mode.OFFLINE


def test_the_key_is_looked_up_when_it_is_needed(monkeypatch) -> None:
    """Not when a session is opened, and it shows in no text of the options."""
    monkeypatch.setenv("EDGELLM_API_KEY", "sk-early")
    cloud = routes(endpoint=URL, endpoint_model="m", mode=Mode.PREFER_LOCAL).cloud
    assert isinstance(cloud, CloudOptions)
    monkeypatch.setenv("EDGELLM_API_KEY", " sk-late\n")
    assert callable(cloud.api_key)
    assert cloud.api_key() == "sk-late"
    given = routes(endpoint=URL, endpoint_model="m", api_key="sk-own").cloud
    assert given is not None
    assert given.api_key == "sk-own"
    assert "sk-" not in repr(given)


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"endpoint": URL}, "model is not known"),
        ({"endpoint_model": "m"}, "url is not known"),
        ({"endpoint": "ftp://a/b", "endpoint_model": "m"}, "no scheme http"),
        ({"endpoint": "https://me:secret@a/b", "endpoint_model": "m"}, "name or password"),
        ({"deadline_s": -1.0}, "deadline_s must be"),
        ({"app": ""}, "app must be"),
        ({"app": "a\nb"}, "app must be"),
        ({"endpoint": Endpoint(URL, "m"), "budget": Budget(usd_per_day=-1)}, "budget.usd_per_day"),
        (
            {"endpoint": Endpoint(URL, "m"), "budget": Budget(usd_per_day=float("nan"))},
            "budget.usd_per_day",
        ),
    ],
)
def test_a_wrong_wish_is_named(wishes: dict[str, Any], words: str) -> None:
    """Before a model is looked at, and without a word of a password."""
    with pytest.raises(UsageError, match=words) as caught:
        routes(**wishes)
    assert "secret" not in str(caught.value)


def test_a_damaged_file_is_no_guess() -> None:
    """The mode stands in it, so nothing is answered."""
    config_path().parent.mkdir(parents=True)
    config_path().write_text('mode = "privat"\n', encoding="utf-8")
    with pytest.raises(UsageError, match=r"config\.toml:1: mode must be one of"):
        routes()


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"mode": Mode.PRIVATE, "endpoint": URL, "endpoint_model": "m"}, "is not asked"),
        ({"mode": Mode.PREFER_LOCAL, "isolation": "none"}, "answers stay in this process"),
    ],
)
def test_what_is_in_vain_is_said(wishes: dict[str, Any], words: str, caplog) -> None:
    """An endpoint that the mode closes, and one that nobody would ask."""
    with caplog.at_level(logging.WARNING):
        routes(**wishes)
    assert words in caplog.text


def test_load_takes_the_same_words(tmp_path: Path) -> None:
    """Each argument is checked by name; a model that is not there leaves the endpoint."""
    missing = tmp_path / "none.gguf"
    for options, words in (
        ({"endpoint": 5}, "endpoint must be"),
        ({"endpoint_model": 5}, "endpoint_model must be text"),
        ({"budget": 0.5}, "budget must be Budget"),
        ({"api_key": 5}, "api_key must be"),
        ({"on_failure": "again"}, "on_failure must be one of"),
        ({"app": None}, "app must be text"),
        ({"deadline_s": "soon"}, "deadline_s must be"),
    ):
        with pytest.raises(UsageError, match=words):
            edgellm.load(missing, **options)  # type: ignore[arg-type]
    with pytest.raises(NoRoute) as caught:
        edgellm.load(missing, mode="prefer-local", endpoint=URL, endpoint_model="m")
    assert caught.value.hint


@pytest.mark.parametrize("mode", ["offline", "private", "prefer-local", "prefer-cloud"])
def test_no_key_is_looked_up_without_a_leave(tmp_path: Path, mode: str) -> None:
    """Not in a closed mode, and not in an open one before the user has consented."""
    asked: list[str] = []

    def key() -> str:
        asked.append(mode)
        return "sk-1"

    with pytest.raises((ModelNotFound, NoRoute)):
        edgellm.load(
            tmp_path / "none.gguf", mode=mode, endpoint=URL, endpoint_model="m", api_key=key
        )
    assert asked == []
