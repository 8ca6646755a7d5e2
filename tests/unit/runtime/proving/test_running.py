"""Children of a proof: what they get of the user's environment, what they may touch, how they end."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from edgellm.core import Done, Message, Request, Sampling, Tier
from edgellm.errors import EngineFailed, ModelNotFound
from edgellm.runtime.local import open_session
from edgellm.runtime.proving import namespace, proof, running
from edgellm.runtime.proving.orders import Order
from edgellm.runtime.proving.running import Children, child_environment
from edgellm.runtime.proving.sink import Sink
from edgellm.runtime.proving.tiny import write_tiny_model
from edgellm.runtime.session import SessionOptions

ORDER = Order("private", (), "/somewhere/of/the/proof", "/model", "CANARY 00")


def test_nothing_of_edgellm_s_own_is_inherited() -> None:
    """No home, key or mode of the user's; proxies and others' keys stay, they must change nothing."""
    names = {
        "EDGELLM_HOME": "/home/me/.local/share/edgellm",
        "EDGELLM_API_KEY": "sk-mine",
        "EDGELLM_OFFLINE": "1",
        "EDGELLM_ISA": "scalar",
        "HTTPS_PROXY": "http://proxy:3128",
        "TMPDIR": "/tmp/mine",  # noqa: S108
    }
    got = child_environment(ORDER, names)
    assert "sk-mine" not in got.values()
    assert "EDGELLM_OFFLINE" not in got
    assert (got["EDGELLM_HOME"], got["TMPDIR"]) == (
        *(ORDER.folder, str(Path(ORDER.folder, "tmp"))),
    )
    assert (got["EDGELLM_ISA"], got["HTTPS_PROXY"]) == ("scalar", "http://proxy:3128")


def test_a_child_says_why_it_could_do_nothing(tmp_path) -> None:
    """An error of ours is its report; the folder is made."""
    order = Order("private", (), str(tmp_path / "run"), str(tmp_path / "no.gguf"), "CANARY 00")
    with Children() as children:
        ran = children.run(order)
    assert (ran.report.code, (tmp_path / "run" / "tmp").is_dir()) == ("model_not_found", True)


def test_a_child_without_a_report_is_an_error(tmp_path, monkeypatch) -> None:
    """With its last words."""
    monkeypatch.setattr(running, "CHILD", "edgellm.there_is_none")
    order = Order("private", (), str(tmp_path), "/model", "CANARY 00")
    with Children() as children, pytest.raises(EngineFailed, match="there_is_none"):
        children.run(order)


def test_children_end_with_the_proof(tmp_path) -> None:
    """Who breaks a proof off leaves no process, and a child that waited its turn never starts."""
    model = tmp_path / "tiny.gguf"
    write_tiny_model(model)
    order = Order("private", ("D1", "M5"), str(tmp_path / "run"), str(model), "CANARY 00")
    raised: list[str] = []

    def run(children: Children) -> None:
        try:
            children.run(order)
        except EngineFailed as err:
            raised.append(err.message)

    with Children() as children:
        thread = threading.Thread(target=run, args=(children,))
        thread.start()
        deadline_s = time.monotonic() + 10
        while not children._running and time.monotonic() < deadline_s:
            time.sleep(0.01)
    thread.join(5)
    assert not thread.is_alive()
    run(children)
    assert ["ended with code -9" in raised[0], raised[1]] == [True, "the proof was given up"]


def test_a_model_that_is_not_there(tmp_path) -> None:
    """It is said before anything is started."""
    with pytest.raises(ModelNotFound):
        next(proof.prove(tmp_path / "none.gguf"))


def test_the_tiny_model_answers_anything(tmp_path, monkeypatch) -> None:
    """Any text is a prompt, and the same file is written every time."""
    paths = [tmp_path / name for name in ("one.gguf", "two.gguf")]
    for path in paths:
        write_tiny_model(path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    with open_session(paths[0], SessionOptions(snapshot=Tier.OFF)) as session:
        said = (Message("user", "h\u00e9llo \U0001f44b <|im_end|>"),)
        end = session.generate(Request(said, max_tokens=3, sampling=Sampling(temperature=0)))
    assert isinstance(end, Done)
    assert end.usage.completion_tokens == 3


def test_a_sink_keeps_what_it_was_sent_and_answers() -> None:
    """Also what is no request; the connection alone counts."""
    import socket

    with Sink() as sink:
        with socket.create_connection(("127.0.0.1", sink.port)) as line:
            line.sendall(b"POST /v1 HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody")
            answer = b""
            while piece := line.recv(4096):
                answer += piece
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert b"[DONE]" in answer
        assert (sink.n_connections, sink.received[-4:]) == (1, b"body")
        sink.clear()
        assert (sink.n_connections, sink.received) == (0, b"")


def test_a_namespace_is_linux_s(monkeypatch) -> None:
    """Elsewhere it is said, and nothing is tried."""
    monkeypatch.setattr(namespace.sys, "platform", "darwin")
    assert namespace.enter() == "network namespaces are Linux's"
    assert not namespace.open_loopback()
