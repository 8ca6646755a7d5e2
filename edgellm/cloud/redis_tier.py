"""RedisTier: snapshots on a Redis server, one string a snapshot.

Every command has a limit of time and of bytes, and is sent once. What the server sends is bytes of a
stranger: lengths are held against what was asked, and the store checks the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

from edgellm.cloud.guard import Guard, GuardedSocket
from edgellm.errors import FetchError, MissingExtra, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CONNECT_TIMEOUT_S: Final = 1.0
COMMAND_TIMEOUT_S: Final = 5.0
KEEP_S: Final = 7 * 24 * 3600
"""How long a value is kept after it was written; whoever still uses it writes it again."""

SCHEMES: Final = ("redis", "rediss", "unix")
_PREFIX: Final = "edgellm:1:"
_AROUND_BYTES: Final = (
    4096  # of an answer beside its content, greetings of a new connection included
)
T = TypeVar("T")


class RedisTier:
    """A `RemoteTier` over one connection, made at the first command.

    Args:
        url: `redis://[user:password@]host[:port][/db]`, `rediss://` for TLS, or `unix:///path`.
        keep_s: seconds a written value is kept.

    Raises:
        UsageError: the URL is none of these.
        MissingExtra: redis-py is not installed.
    """

    def __init__(self, url: str, *, keep_s: int = KEEP_S) -> None:
        self.where = _without_secrets(url)
        try:
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        except ImportError as err:
            raise MissingExtra(
                "the shared tier needs redis-py", hint="pip install 'edgellm[redis]'"
            ) from err
        # What is no Redis at the other end also makes redis-py fail in ways of its own.
        self._failures = (redis.RedisError, OSError, ValueError, TypeError, LookupError)
        self._keep_s = keep_s
        self._guard = Guard()
        try:
            pool = redis.ConnectionPool.from_url(
                url,
                socket_connect_timeout=CONNECT_TIMEOUT_S,
                socket_timeout=COMMAND_TIMEOUT_S,
                protocol=2,  # no greeting: a server is asked what is wanted, and nothing before
                retry=Retry(NoBackoff(), 0),
                decode_responses=False,
                max_connections=2,
            )
        except ValueError as err:
            raise UsageError(f"the URL of the shared tier cannot be read: {err}") from err
        pool.connection_class = _guarded(pool.connection_class, self._guard)
        self._client: Any = redis.Redis(connection_pool=pool)

    def size(self, name: str) -> int | None:
        """Return the length of a value in bytes, or None without one."""
        n_bytes: object = self._ask(lambda: self._client.strlen(_PREFIX + name))
        if not isinstance(n_bytes, int) or n_bytes < 0:
            raise FetchError(f"{self.where} sent something else than a length")
        return n_bytes or None

    def read(self, name: str, start: int, n_bytes: int) -> bytes:
        """Return a piece of a value; shorter where it ends, empty where it is gone."""
        end = start + n_bytes - 1
        piece = self._ask(lambda: self._client.getrange(_PREFIX + name, start, end), n_bytes)
        if not isinstance(piece, bytes) or len(piece) > n_bytes:
            raise FetchError(f"{self.where} sent something else than {n_bytes} bytes")
        return piece

    def write(self, name: str, pieces: Sequence[bytes | bytearray]) -> None:
        """Keep a value for `keep_s` seconds."""
        # redis-py joins what it sends: one value, one command, so that nobody sees half of it.
        value = b"".join(pieces)
        if not self._ask(lambda: self._client.set(_PREFIX + name, value, ex=self._keep_s)):
            raise FetchError(f"{self.where} did not take a value of {len(value)} bytes")

    def close(self) -> None:
        """Close the connections."""
        self._client.connection_pool.disconnect()

    def _ask(self, command: Callable[[], T], n_bytes: int = 0) -> T:
        """Run a command whose answer has at most `n_bytes` of content."""
        try:
            with self._guard.command(COMMAND_TIMEOUT_S, n_bytes + _AROUND_BYTES):
                return command()
        except self._failures as err:
            # The message of an error may repeat what was sent: its kind is enough.
            raise FetchError(f"{self.where}: {type(err).__name__}") from err


def _guarded(connection: Any, guard: Guard) -> Any:
    """Return a connection class of redis-py whose sockets are guarded."""

    def connect(self: Any) -> GuardedSocket:
        return GuardedSocket(connection._connect(self), guard)  # noqa: SLF001  # the one seam there is

    return type("GuardedConnection", (connection,), {"_connect": connect})


def _without_secrets(url: str) -> str:
    """Return scheme, host and port: no user, no password, no query.

    Raises:
        UsageError: it is no URL of a Redis server.
    """
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError as err:
        raise UsageError(f"the URL of the shared tier cannot be read: {err}") from err
    database = parts.path.removeprefix("/")
    if parts.scheme not in SCHEMES:
        raise UsageError(
            f"a shared tier is one of {', '.join(f'{s}://' for s in SCHEMES)}, not this URL",
            hint="for instance redis://127.0.0.1:6379/0",
        )
    if parts.scheme == "unix":
        return f"unix://{parts.path}"
    if database and not (database.isascii() and database.isdigit()):
        raise UsageError("the database of a Redis URL is a number, as in redis://127.0.0.1/0")
    return f"{parts.scheme}://{parts.hostname or ''}{port}"
