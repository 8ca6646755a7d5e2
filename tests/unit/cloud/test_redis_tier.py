"""The Redis adapter against a real server, a dead one, and one that is none."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import tracemalloc
from typing import Any

import pytest

from edgellm.cloud import redis_tier
from edgellm.cloud.redis_tier import RedisTier
from edgellm.errors import FetchError, UsageError


@pytest.mark.redis
def test_a_value_comes_back_in_pieces(redis_server: Any) -> None:
    """What was written is there to the byte, in whatever pieces it is read, and nowhere else."""
    tier = RedisTier(redis_server.url)
    assert tier.size("a") is None
    assert tier.read("a", 0, 10) == b""
    tier.write("a", [b"seal", bytes(range(256)) * 5])
    assert tier.size("a") == 4 + 1280
    whole = b"".join(tier.read("a", start, 500) for start in (0, 500, 1000))
    assert whole == b"seal" + bytes(range(256)) * 5
    assert tier.read("a", 1284, 10) == b""
    tier.write("a", [b"new"])
    assert tier.size("a") == 3
    tier.close()
    tier.close()


@pytest.mark.redis
def test_values_do_not_stay_for_ever(redis_server: Any) -> None:
    """A machine that is gone leaves nothing behind for good."""
    tier = RedisTier(redis_server.url, keep_s=1234)
    tier.write("a", [b"x"])
    assert 0 < tier._client.ttl("edgellm:1:a") <= 1234
    tier.close()


@pytest.mark.redis
def test_a_server_that_dies_is_a_typed_error(redis_server: Any) -> None:
    """Each command fails by itself, at once and without the URL's secrets."""
    tier = RedisTier(redis_server.url)
    tier.write("a", [b"x"])
    redis_server.kill()
    for ask in (lambda: tier.size("a"), lambda: tier.read("a", 0, 1), lambda: tier.write("a", [])):
        with pytest.raises(FetchError, match="unix://"):
            ask()
    tier.close()


def test_a_server_that_never_answers_costs_one_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener that takes connections and is silent."""
    monkeypatch.setattr(redis_tier, "COMMAND_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        tier = RedisTier(f"redis://me:hunter2@127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(FetchError) as caught:
            tier.size("a")
        assert "hunter2" not in str(caught.value)
        tier.close()


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"$9999999999\r\n", b":-1\r\n", b"\0\xff" * 8]
)
def test_a_server_that_speaks_otherwise_is_a_typed_error(
    answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever comes over the socket, nothing but a `FetchError` comes out of `read`."""
    monkeypatch.setattr(redis_tier, "COMMAND_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(answer)
                peer.recv(4096)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        tier = RedisTier(f"redis://127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(FetchError):
            tier.read("a", 0, 10)
        tier.close()
        thread.join(5)


def serve(answer: bytes, *, pause_s: float, repeat: bool) -> tuple[socket.socket, threading.Thread]:
    """Answer the first client with some bytes, then with the same ones again and again."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        peer, _ = listener.accept()
        with peer, contextlib.suppress(OSError):
            peer.recv(4096)
            while True:
                peer.sendall(answer)
                time.sleep(pause_s)
                if not repeat:
                    peer.recv(4096)
                    return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return listener, thread


@pytest.mark.parametrize(
    ("answer", "pause_s"),
    [(b"+" + b"y" * 65536, 0), (b"$99999999999\r\n" + b"y" * 65536, 0), (b"y", 0.05)],
    ids=["an endless line", "a huge length", "a drip"],
)
def test_an_answer_without_end_is_cut_off(
    answer: bytes, pause_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the time of one command, or the bytes that were asked for, whichever is first."""
    monkeypatch.setattr(redis_tier, "COMMAND_TIMEOUT_S", 0.5)
    listener, thread = serve(answer, pause_s=pause_s, repeat=True)
    with listener:
        tier = RedisTier(f"redis://127.0.0.1:{listener.getsockname()[1]}")
        tracemalloc.start()
        started = time.monotonic()
        with pytest.raises(FetchError):
            tier.read("a", 0, 1000)
        took_s, (_, peak) = time.monotonic() - started, tracemalloc.get_traced_memory()
        tracemalloc.stop()
        tier.close()
    thread.join(5)
    assert peak < 4 << 20
    assert took_s < 5


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1", "127.0.0.1:6379", "", "redis://h:port", "rediss://[bad", "redis://h/abc"],
)
def test_other_urls_are_refused(url: str) -> None:
    """Before anything is connected, and without repeating what may hold a password."""
    with pytest.raises(UsageError):
        RedisTier(url)
