"""One file over HTTP into a partial file beside its place: resumable, and named only when proven.

The partial file's name is the hash that the content must have, so that what another run left of it
can be gone on with. A length or hash that is wrong deletes it: what is kept is never in doubt twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final, NoReturn

from edgellm.catalog.answers import answered, open_client
from edgellm.errors import FetchError, UsageError
from edgellm.fileio import fsync_dir, lock_file, no_room
from edgellm.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import httpx

    Advance = Callable[[int], None]

PARTIAL_SUFFIX: Final = ".edgellm-partial"
_CHUNK_BYTES: Final = 1 << 20
_MAX_TRIES: Final = 5
_FIRST_PAUSE_S: Final = 0.5
_PROGRESS_S: Final = 60.0  # in which a transfer brings at least so much more
_PROGRESS_BYTES: Final = 32 << 10
_MODE: Final = 0o666  # less the umask, as the rest of that cache
_BUSY: Final = (408, 429, 500, 502, 503, 504)
_REFUSALS: Final = (401, 403)
_WHOLE, _PARTIAL, _NO_RANGE = 200, 206, 416
_GIT_DIGITS: Final = 40
_HASH: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_CONTENT_RANGE: Final = re.compile(r"bytes ([0-9]{1,19})-[0-9]{1,19}/([0-9]{1,19}|\*)")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file to be fetched and what it must be.

    Attributes:
        name: for messages.
        url: where it is; redirects are followed.
        n_bytes: its length.
        digest: 64 hex digits of SHA-256, or 40 of git's SHA-1 over a blob.
    """

    name: str
    url: str
    n_bytes: int
    digest: str


class _Cut(Exception):
    """The transfer ended early; what came is kept."""


class Downloader:
    """Fetches files one after the other over one connection; use it in a `with` block.

    Args:
        headers: sent to the first server only, not where it redirects to.
        pause: waits between tries, given seconds.
    """

    def __init__(
        self, headers: dict[str, str], *, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._pause = pause
        self._client = open_client(headers)

    def __enter__(self) -> Downloader:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def fetch(self, file: RemoteFile, target: Path, advance: Advance) -> None:
        """Bring a file to `target`, going on with what an earlier run left of it.

        Args:
            file: what to fetch.
            target: its final name; the folder exists. Nothing happens if it is there.
            advance: called with the bytes gained, less than 0 when some are thrown away.

        Raises:
            FetchError: the network failed, or the bytes are not those announced; says which.
            UsageError: the server does not let this user have it.
            DoesNotFit: the disk is full.
        """
        path = target.with_name(file.digest + PARTIAL_SUFFIX)
        try:
            with _owned(path, target) as out:
                if out is None:
                    advance(file.n_bytes)
                    return
                self._complete(_Part(file, path, out, advance))
                if os.name != "nt":  # under the lock, which another run may be waiting for
                    path.replace(target)
            if os.name == "nt":  # which renames no open file
                path.replace(target)
            fsync_dir(target.parent)
        except OSError as err:
            have_bytes = path.stat().st_size if path.exists() else 0
            if (problem := no_room(err, path, have_bytes)) is not None:
                problem.hint = f"{problem.hint}; run it again and it goes on from there"
                raise problem from err
            raise FetchError(f"cannot be written: {err.strerror or err}", path=path) from err

    def _complete(self, part: _Part) -> None:
        """Append until the length is right, over as many responses as it takes; then check all."""
        if part.n_bytes > part.file.n_bytes:
            part.out.truncate(0)
        part.advance(part.n_bytes)
        n_tries = 0
        while part.n_bytes < part.file.n_bytes:
            before_bytes = part.n_bytes
            try:
                self._transfer(part)
            except _Cut as err:
                gained = part.n_bytes - before_bytes >= _PROGRESS_BYTES
                n_tries = 1 if gained else n_tries + 1
                if n_tries >= _MAX_TRIES:
                    kept = f"{format_bytes(part.n_bytes)} of {format_bytes(part.file.n_bytes)}"
                    raise FetchError(
                        f"{part.file.name}: {err}; {kept} are kept",
                        hint="run the same command again: it goes on from there",
                    ) from err
                self._pause(_FIRST_PAUSE_S * 2 ** (n_tries - 1))
        os.fsync(part.out.fileno())
        part.prove()

    def _transfer(self, part: _Part) -> None:
        """Append what one response gives.

        Raises:
            _Cut: it ended early, or the server is busy.
            FetchError, UsageError: it cannot become the file.
        """
        import httpx

        start = part.out.seek(0, os.SEEK_END)
        headers = {"range": f"bytes={start}-"} if start else {}
        try:
            with answered(self._client, part.file.url, headers) as response:
                _check_status(part, response)
                _check_tags(part, response)
                _check_range(part, response, start)
                pace = _Pace()
                for chunk in response.iter_raw():  # as it comes: what is gathered is lost by a cut
                    part.append(chunk)
                    pace.advance(len(chunk))
        except httpx.HTTPError as err:
            raise _Cut(f"the connection failed ({type(err).__name__})") from err
        if part.n_bytes < part.file.n_bytes:
            raise _Cut(f"the transfer ended at byte {part.n_bytes} of {part.file.n_bytes}")


class _Pace:
    """Ends a transfer whose bytes come, each in time, but too slowly ever to be all there."""

    def __init__(self) -> None:
        self._start_s = time.monotonic()
        self._n_bytes = 0

    def advance(self, n_bytes: int) -> None:
        """Count what came.

        Raises:
            _Cut: it was too little for too long.
        """
        self._n_bytes += n_bytes
        if self._n_bytes >= _PROGRESS_BYTES:
            self._start_s, self._n_bytes = time.monotonic(), 0
        elif time.monotonic() - self._start_s > _PROGRESS_S:
            raise _Cut(f"only {self._n_bytes} bytes came in {_PROGRESS_S:g} seconds")


@dataclass(frozen=True, slots=True)
class _Part:
    """What there is of a file so far: `out` is open, unbuffered, and this process's alone."""

    file: RemoteFile
    path: Path
    out: BinaryIO
    advance: Advance

    @property
    def n_bytes(self) -> int:
        return os.fstat(self.out.fileno()).st_size

    def append(self, chunk: bytes) -> None:
        if self.out.tell() + len(chunk) > self.file.n_bytes:
            self.reject(f"more than its {self.file.n_bytes} bytes came")
        view = memoryview(chunk)
        while view:
            view = view[self.out.write(view) :]
        self.advance(len(chunk))

    def restart(self) -> None:
        """Throw away what there is."""
        self.advance(-self.n_bytes)
        self.out.truncate(0)
        self.out.seek(0)

    def reject(self, why: str) -> NoReturn:
        """Delete what was fetched, and say so."""
        self.out.truncate(0)
        with contextlib.suppress(OSError):  # Windows keeps the name while it is open
            self.path.unlink()
        raise FetchError(
            f"{self.file.name}: {why}; what was fetched of it is deleted",
            hint="run it again; if that repeats, something on the way changes the file",
        )

    def prove(self) -> None:
        """Compare the hash of what is on the disk with the one announced."""
        wanted = self.file.digest
        is_git = len(wanted) == _GIT_DIGITS
        digest = hashlib.sha1(usedforsecurity=False) if is_git else hashlib.sha256()
        if is_git:
            digest.update(b"blob %d\0" % self.file.n_bytes)
        self.out.seek(0)
        while piece := self.out.read(_CHUNK_BYTES):
            digest.update(piece)
        if digest.hexdigest() != wanted:
            found = digest.hexdigest()
            self.reject(f"its hash is {found[:16]}..., the hub says {wanted[:16]}...")


def _check_status(part: _Part, response: httpx.Response) -> None:
    status = response.status_code
    if status in _REFUSALS:
        raise UsageError(
            f"{part.file.name}: the hub does not let you have it (HTTP {status})",
            hint="accept the model's terms on its page, then run `hf auth login`",
        )
    if status in _BUSY:
        raise _Cut(f"the server is busy or failing (HTTP {status})")
    if status not in (_WHOLE, _PARTIAL, _NO_RANGE):
        raise FetchError(f"{part.file.name}: the server answers with HTTP {status}")


def _check_tags(part: _Part, response: httpx.Response) -> None:
    """Refuse content that the server itself calls another one; foreign kinds of tag say nothing."""
    wanted = part.file.digest
    for answer in (*response.history, response):
        for key in ("x-linked-etag", "etag"):
            tag = answer.headers.get(key, "").removeprefix("W/").strip('"')
            if len(tag) == len(wanted) and _HASH.fullmatch(tag) and tag != wanted:
                part.reject(f"the server has {tag[:16]}..., not {wanted[:16]}...")


def _check_range(part: _Part, response: httpx.Response, start: int) -> None:
    """Make sure that the body is what is missing; what there is goes if the server sends it all."""
    status, headers = response.status_code, response.headers
    if status == _NO_RANGE:
        part.restart()
        raise _Cut("the server does not have that part of it")
    if start and status == _WHOLE:  # it ignores ranges: this is all of it
        part.restart()
        start = 0
    elif start:
        told = headers.get("content-range", "none")
        found = _CONTENT_RANGE.fullmatch(told)
        if found is None or int(found[1]) != start or found[2] not in ("*", str(part.file.n_bytes)):
            part.reject(f"asked from byte {start} on, the server gives the range {told[:60]!r}")
    due_bytes = part.file.n_bytes - start
    told = headers.get("content-length", str(due_bytes))
    if told != str(due_bytes):
        part.reject(f"{due_bytes} bytes are due, the server sends {told[:20]}")


@contextlib.contextmanager
def _owned(partial: Path, target: Path) -> Iterator[BinaryIO | None]:
    """Open the partial file for this process alone; None when another run has finished the target.

    A second run waits here for the first. Where the system has no such locks, two runs may write
    over each other: the hash then refuses the mixture.
    """
    while True:
        if target.exists():
            yield None
            return
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(partial, flags, _MODE), "r+b", buffering=0) as out:
            lock_file(out.fileno(), wait=True)
            if _is_still(partial, out) and not target.exists():
                yield out
                return


def _is_still(partial: Path, out: BinaryIO) -> bool:
    """Return whether a name still leads to the open file: another run may have renamed it."""
    try:
        return os.path.samestat(partial.stat(), os.fstat(out.fileno()))
    except FileNotFoundError:
        return False
