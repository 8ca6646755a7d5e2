"""The flags of routes, and what a person is told of a change of route."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgellm.core import Message, Mode, Switch
from edgellm.routing import Budget, Endpoint

URL = "http://127.0.0.1:8080/v1"
OUT = {"source": "local", "target": "cloud", "reason": "memory ran out"}
DEGRADED = "it may differ from the undisturbed one"
USE = {
    "origin": "http://127.0.0.1:8080",
    "model": "m",
    "prompt_tokens": 12,
    "cached_tokens": 4,
    "completion_tokens": 30,
    "usd": 0.000013,
    "bytes_out": 512,
}


def test_the_flags_reach_the_session(cli: Any, fake_model: Callable[..., Path]) -> None:
    """Every flag arrives where it belongs."""
    flags = [
        *("--mode", "prefer-local", "--endpoint", URL, "--endpoint-model", "m"),
        *("--budget-usd", "0.5", "--budget-tokens", "1000", "--isolation", "worker"),
        *("--on-failure", "restart", "--deadline", "2.5", "--force", "--private"),
    ]
    assert cli("run", fake_model(), "hi", *flags).code == 0
    (session,) = cli.sessions
    options = session.options
    assert (options.mode, options.isolation, options.on_failure) == (
        *(Mode.PREFER_LOCAL, "worker", "restart"),
    )
    assert (options.deadline_s, options.force, options.app) == (2.5, True, "edgellm")
    assert options.cloud.endpoint == Endpoint(URL, "m")
    assert options.cloud.budget == Budget(usd_per_day=0.5, tokens_per_day=1000)
    (message,) = session.requests[0].messages
    assert message == Message("user", "hi", sensitivity="private")


def test_chat_keeps_a_private_conversation_private(
    cli: Any, fake_model: Callable[..., Path]
) -> None:
    """Each turn is marked, the ones before as well."""
    cli("chat", fake_model(), "--private", stdin=b"one\ntwo\n")
    (session,) = cli.sessions
    users = [m for m in session.requests[-1].messages if m.role == "user"]
    assert [(m.content, m.sensitivity) for m in users] == [("one", "private"), ("two", "private")]


def test_the_settings_count_without_flags(cli: Any, fake_model: Callable[..., Path]) -> None:
    """As `edgellm config` set them; a flag comes first."""
    cli("config", "set", "mode", "prefer-local")
    cli("config", "set", "on_failure", "stop")
    cli("run", fake_model(), "hi")
    cli("run", fake_model(), "hi", "--mode", "private")
    first, second = (session.options for session in cli.sessions)
    assert (first.mode, first.on_failure) == (Mode.PREFER_LOCAL, "stop")
    assert (second.mode, second.on_failure) == (Mode.PRIVATE, "stop")


@pytest.mark.parametrize(
    "flags",
    [
        ["--endpoint", URL],
        ["--endpoint", "nowhere", "--endpoint-model", "m"],
        ["--endpoint", URL, "--endpoint-model", "m", "--budget-usd", "nan"],
        ["--budget-tokens", "-1"],
        ["--deadline", "-1"],
        ["--isolation", "box"],
        ["--on-failure", "cry"],
    ],
)
def test_wrong_flags_are_told_before_a_model_is_opened(
    cli: Any, fake_model: Callable[..., Path], flags: list[str]
) -> None:
    """Exit 2, one line."""
    result = cli("run", fake_model(), "hi", *flags)
    assert (result.code, result.out, cli.sessions) == (2, "", [])


def test_an_endpoint_in_a_closed_mode_is_said_to_be_idle(
    cli: Any, fake_model: Callable[..., Path], caplog
) -> None:
    """Who names one expects something; the mode stays."""
    cli("run", fake_model(), "hi", "--endpoint", URL, "--endpoint-model", "m")
    assert "mode private: the endpoint is not asked; prefer-local would" in caplog.text
    assert cli.sessions[0].options.mode is Mode.PRIVATE


@pytest.mark.parametrize(
    ("switch", "early", "out", "told"),
    [
        (OUT, True, "One two\n", "the answer is made at the endpoint: memory ran out"),
        (OUT, False, "One two\n", "the answer goes on at the endpoint: memory ran out"),
        (
            OUT | {"discard_from_seq": 0},
            False,
            "One \ntwo\n",
            "discard the text above, the answer begins anew at the endpoint: memory ran out",
        ),
        (
            OUT | {"degraded": True},
            False,
            "One two\n",
            f"the answer goes on at the endpoint: memory ran out; {DEGRADED}",
        ),
        (
            {"source": "local", "target": "local", "reason": "the worker was killed"},
            False,
            "One two\n",
            "the answer goes on in a new process on this machine: the worker was killed",
        ),
        (
            {"source": "cloud", "target": "local", "reason": "the endpoint failed"},
            True,
            "One two\n",
            "the answer is made on this machine: the endpoint failed",
        ),
    ],
)
def test_a_switch_is_one_line_on_stderr(
    cli: Any,
    fake_model: Callable[..., Path],
    switch: dict[str, Any],
    early: bool,
    out: str,
    told: str,
) -> None:
    """Where the answer goes on, why, and whether text is to be discarded or may differ."""
    model = fake_model(pieces=["One ", "two"], switch=switch, early=early)
    result = cli("run", model, "hi")
    assert (result.code, result.out, result.err) == (0, out, f"switch: {told}\n")
    lines = cli("run", model, "hi", "--json").lines
    (event,) = [line for line in lines if line["type"] == "switch"]
    assert event == {"type": "switch", **Switch(**switch).to_wire()}


def test_stats_show_route_tokens_and_cost(cli: Any, fake_model: Callable[..., Path]) -> None:
    """And the record that `edgellm why` explains."""
    err = cli("run", fake_model(route="cloud", cloud=USE), "hi", "--stats").err
    assert "stop, cloud" in err
    assert (
        "http://127.0.0.1:8080, m: 12 tokens read (4 cached), 30 made, $0.000013, 512 B sent" in err
    )
    assert "record:      3-ab12" in err
    unknown = USE | {"usd": None, "estimated": True}
    err = cli("run", fake_model(route="cloud", cloud=unknown), "hi", "--stats").err
    assert "about 12 tokens read" in err
    assert "price not known" in err


def test_an_answer_that_an_endpoint_cut_is_said(cli: Any, fake_model: Callable[..., Path]) -> None:
    """Its context is not ours: --ctx would not help."""
    model = fake_model(route="cloud", finish="length")
    assert "cut by the endpoint" in cli("run", model, "hi").err
    assert cli("run", model, "hi", "-n", "2").err == ""


def test_a_switch_has_a_line_of_its_own_where_both_streams_are_one(
    fake_process: Callable[..., Any], fake_model: Callable[..., Path]
) -> None:
    """In a log of stdout and stderr, too, as on a terminal; in two files nothing is added."""
    model = fake_model(pieces=["One ", "two"], switch=OUT)
    both, _ = fake_process("run", model, "hi", stderr=subprocess.STDOUT).communicate()
    told = b"switch: the answer goes on at the endpoint: memory ran out\n"
    assert both.replace(b"\r", b"") == b"One \n" + told + b"two\n"
    out, err = fake_process("run", model, "hi").communicate()
    assert (out, err) == (b"One two\n", told)
