"""The shared tier end to end: two homes, one Redis server, the real command."""

from __future__ import annotations

import json
import os
import select
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.redis

SYSTEM = "\n".join(f"Rule {n}: whoever reads this line knows number {n * 7}." for n in range(40))


class Home:
    """One machine: a home of its own, the same model and secret."""

    def __init__(self, folder: Path, model: Path, url: str, warm_start: Any) -> None:
        self.folder, self._model, self.url = folder, model, url
        self._warm_start = warm_start
        folder.mkdir()
        self.secret = folder / "secret"
        self.secret.write_text("5" * 64, encoding="ascii")
        self.secret.chmod(0o600)

    def run(self, *more: str, mode: str = "prefer-local", share: bool = True) -> Any:
        """Ask one question; return the `done` line, with the warnings as `said`."""
        words = ["run", self._model, "Hello", "--system", SYSTEM, "--temperature", "0"]
        words += ["-n", "4", "--json", "--mode", mode]
        if share:
            words += ["--snapshot-share", self.url, "--snapshot-share-write"]
        given = {"EDGELLM_HOME": str(self.folder), "EDGELLM_SHARE_SECRET_FILE": str(self.secret)}
        child = self._warm_start.run(
            [*words, *more], cwd=self.folder, timeout=120, env=os.environ | given
        )
        lines = [json.loads(line) for line in child.stdout.splitlines()]
        assert lines, child.stderr
        said = [line["message"] for line in lines if line["type"] == "warning"]
        return lines[-1] | {"said": said, "exit": child.returncode}


class CuttingProxy:
    """Stands between a client and the server, which it kills once so many bytes have come from it."""

    def __init__(self, server: Any, path: Path, *, after_bytes: int) -> None:
        self._server, self._left = server, after_bytes
        self._path = path
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        return f"unix://{self._path}"

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)

    def _serve(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return
        with client, socket.socket(socket.AF_UNIX) as server:
            server.connect(self._server.url.removeprefix("unix://"))
            while self._left > 0:
                for ready in select.select([client, server], [], [])[0]:
                    content = ready.recv(1 << 14)
                    if not content:
                        return
                    if ready is server:
                        content = content[: self._left]
                        self._left -= len(content)
                    (client if ready is server else server).sendall(content)
            self._server.kill()


@pytest.fixture
def homes(
    tmp_path: Path, tiny_models: Path, redis_server: Any, warm_start: Any
) -> tuple[Home, Home]:
    model = tiny_models / "tiny-gemma3.gguf"
    here, there = (
        Home(tmp_path / name, model, redis_server.url, warm_start) for name in ("here", "there")
    )
    return here, there


def keys(server: Any) -> list[bytes]:
    import redis

    with redis.Redis.from_url(server.url, protocol=2) as client:
        return sorted(client.keys("*"))


def test_two_homes_share_one_prefix(homes: tuple[Home, Home], redis_server: Any) -> None:
    """What one home read, the other restores, with the same answer as one that shares nothing."""
    here, there = homes
    alone = here.run("--snapshot", "off", share=False)
    first, second = here.run(), there.run()
    assert first["usage"]["reused_tokens"] == 0
    assert second["usage"]["reused_tokens"] > 500
    assert second["snapshot"]["code"] == "hit"
    assert first["text"] == second["text"] == alone["text"]
    assert all(name.startswith(b"edgellm:1:") for name in keys(redis_server))


@pytest.mark.parametrize("mode", ["private", "offline"])
def test_a_closed_mode_shares_nothing(
    homes: tuple[Home, Home], redis_server: Any, mode: str
) -> None:
    """Neither a get nor a put reaches the server, and the user is told why."""
    here, there = homes
    here.run()
    before = keys(redis_server)
    answer = there.run(mode=mode)
    assert answer["usage"]["reused_tokens"] == 0
    assert any(mode in said for said in answer["said"])
    assert keys(redis_server) == before


@pytest.mark.parametrize("damage", ["truncated", "flipped", "foreign"])
def test_a_bad_value_is_a_miss(homes: tuple[Home, Home], redis_server: Any, damage: str) -> None:
    """The prompt is read again and the answer is right."""
    import redis

    here, there = homes
    first = here.run()
    with redis.Redis.from_url(redis_server.url, protocol=2) as client:
        for name in client.keys("*"):
            value = client.get(name)
            assert isinstance(value, bytes)
            changed = {
                "truncated": value[: len(value) // 2],
                "flipped": value[:-99] + bytes([value[-99] ^ 4]) + value[-98:],
                "foreign": b"something else entirely" * 100,
            }[damage]
            client.set(name, changed)
    second = there.run()
    assert second["usage"]["reused_tokens"] == 0
    assert second["text"] == first["text"]


def test_a_server_that_dies_costs_one_prefill(homes: tuple[Home, Home], redis_server: Any) -> None:
    """No error, no hang: a warning, and the next start restores from its own disk."""
    here, there = homes
    first = here.run()
    redis_server.kill()
    second = there.run()
    assert second["exit"] == 0
    assert second["usage"]["reused_tokens"] == 0
    assert any("not shared" in said for said in second["said"])
    third = there.run()
    assert third["usage"]["reused_tokens"] > 500
    assert first["text"] == second["text"] == third["text"]


def test_a_server_that_dies_in_the_middle_costs_one_prefill(
    homes: tuple[Home, Home], redis_server: Any, tmp_path: Path
) -> None:
    """The connection ends inside a value: the prompt is read once, with the same answer."""
    here, there = homes
    first = here.run()
    with CuttingProxy(redis_server, tmp_path / "proxy", after_bytes=100_000) as url:
        there.url = url
        second = there.run()
    assert second["exit"] == 0
    assert second["usage"]["reused_tokens"] == 0
    assert any("not shared" in said for said in second["said"])
    assert redis_server.process.poll() is not None
    third = there.run()
    assert third["usage"]["reused_tokens"] > 500
    assert first["text"] == second["text"] == third["text"]


def test_another_secret_finds_nothing(homes: tuple[Home, Home], redis_server: Any) -> None:
    """Names are made with the secret: who has another one asks for other names."""
    here, there = homes
    here.run()
    there.secret.write_text("6" * 64, encoding="ascii")
    assert there.run()["usage"]["reused_tokens"] == 0
