"""One file over HTTP: gone on with where it can be, deleted where it is wrong, whole or not there."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from edgellm.catalog import download
from edgellm.catalog.download import PARTIAL_SUFFIX, Downloader, RemoteFile
from edgellm.errors import DoesNotFit, FetchError, UsageError

CONTENT = bytes(range(256)) * 400
NAME = "model.safetensors"


class Fetch:
    """Fetches the one file of a hub and counts."""

    def __init__(self, hub: Any, folder: Path, loopback: Any) -> None:
        self.hub, self.fault = hub, loopback.Fault
        hub.files, hub.large = {NAME: CONTENT}, {NAME}
        self.target = folder / hub.digest(NAME)
        self.partial = folder / (hub.digest(NAME) + PARTIAL_SUFFIX)
        url = f"{hub.url}/{loopback.REPO}/resolve/{loopback.COMMIT}/{NAME}"
        self.file = RemoteFile(NAME, url, len(CONTENT), hub.digest(NAME))
        self.pauses: list[float] = []
        self.done_bytes = 0

    def __call__(self, **fault: Any) -> None:
        self.hub.faults[NAME] = self.fault(**fault)
        self.hub.asked.clear()
        self.done_bytes = 0
        headers = {"authorization": "Bearer hf_secret"}
        with Downloader(headers, pause=self.pauses.append) as downloader:
            downloader.fetch(self.file, self.target, self._advance)

    def _advance(self, n_bytes: int) -> None:
        self.done_bytes += n_bytes

    def ranges(self) -> list[str]:
        return [asked.range for asked in self.hub.asked if asked.path.startswith("/content")]


@pytest.fixture
def fetch(empty_hub: Any, tmp_path: Path, loopback: Any) -> Fetch:
    return Fetch(empty_hub, tmp_path, loopback)


def test_a_file_is_fetched_once(fetch: Fetch):
    """It lies under its name, whole, and a second call asks nobody."""
    fetch()
    assert fetch.target.read_bytes() == CONTENT
    assert fetch.done_bytes == len(CONTENT)
    assert not fetch.partial.exists()
    fetch()
    assert (fetch.hub.asked, fetch.done_bytes) == ([], len(CONTENT))


def test_the_token_stays_with_the_hub(fetch: Fetch):
    """The server that a large file redirects to does not get it."""
    fetch()
    sent = {asked.path.split("/")[1]: asked.authorization for asked in fetch.hub.asked}
    assert sent == {"maker": "Bearer hf_secret", "content": ""}


def test_a_cut_transfer_goes_on_by_itself(fetch: Fetch):
    """A connection that breaks half-way is made again from the byte reached."""
    fetch(cut_at=len(CONTENT) // 2, n_cuts=1)
    assert fetch.target.read_bytes() == CONTENT
    assert fetch.ranges() == ["", f"bytes={len(CONTENT) // 2}-"]
    assert len(fetch.pauses) == 1
    assert fetch.done_bytes == len(CONTENT)


def test_a_transfer_that_never_gets_on_is_given_up_and_kept(fetch: Fetch):
    """After five tries without progress the error says what is kept; the next run uses it."""
    half = len(CONTENT) // 2
    with pytest.raises(FetchError, match="are kept; run the same command again") as caught:
        fetch(cut_at=half, n_cuts=99)
    assert NAME in str(caught.value)
    assert fetch.partial.read_bytes() == CONTENT[:half]
    fetch()
    assert fetch.ranges() == [f"bytes={half}-"]
    assert fetch.target.read_bytes() == CONTENT


def test_a_transfer_that_drips_is_given_up_and_kept(fetch: Fetch, monkeypatch: Any):
    """Bytes that come one by one, each in time, are no progress; they are kept."""
    monkeypatch.setattr(download, "_PROGRESS_S", 0.1)
    with pytest.raises(FetchError, match=r"in 0\.1 seconds; .* are kept; run the same"):
        fetch(drip_s=0.02)
    assert 0 < fetch.partial.stat().st_size < 1000
    fetch()
    assert fetch.target.read_bytes() == CONTENT


def test_a_server_that_gives_a_byte_at_a_time_is_given_up(fetch: Fetch):
    """A connection cut after each byte is no progress either."""
    with pytest.raises(FetchError, match="are kept"):
        fetch(piece_bytes=1)
    assert fetch.partial.read_bytes() == CONTENT[:5]


def test_a_redirect_without_end_is_left(fetch: Fetch):
    """The body of a redirect is not read, and twenty of them are enough."""
    with pytest.raises(FetchError, match="redirects more than 20 times"):
        fetch(loop=True)
    assert fetch.hub.sent_bytes < 200 << 20


def test_a_server_that_ignores_ranges_sends_it_anew(fetch: Fetch):
    """A 200 where a 206 was asked for replaces what there was; nothing is appended to it."""
    fetch.partial.write_bytes(CONTENT[:5000])
    fetch(ignore_range=True)
    assert fetch.target.read_bytes() == CONTENT
    assert fetch.ranges() == ["bytes=5000-"]
    assert fetch.done_bytes == len(CONTENT)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"told_bytes": 7}, "102400 bytes are due, the server sends 7"),
        ({"told_bytes": 1 << 40}, "102400 bytes are due, the server sends 1099511627776"),
        ({"body": b""}, "102400 bytes are due, the server sends 0"),
        ({"body": CONTENT + b"x"}, "102400 bytes are due, the server sends 102401"),
        ({"body": CONTENT[:-1] + b"x"}, "its hash is "),
        ({"tag": "b" * 64}, "the server has bbbbbbbbbbbbbbbb"),
    ],
)
def test_wrong_content_is_deleted_and_said(fetch: Fetch, fault: dict[str, Any], message: str):
    """A length, a tag or a hash that is not the announced one leaves nothing behind."""
    with pytest.raises(FetchError, match=f"{message}.*is deleted") as caught:
        fetch(**fault)
    assert caught.value.exit_code == 1
    assert list(fetch.target.parent.iterdir()) == []
    fetch()
    assert fetch.target.read_bytes() == CONTENT


def test_a_damaged_part_is_deleted_once_and_not_kept_for_ever(fetch: Fetch):
    """The mismatch does not come again: the next run starts from nothing."""
    fetch.partial.write_bytes(b"\0" * 5000)
    with pytest.raises(FetchError, match=r"its hash is .* is deleted"):
        fetch()
    fetch()
    assert fetch.ranges() == [""]
    assert fetch.target.read_bytes() == CONTENT


@pytest.mark.parametrize("n_bytes", [len(CONTENT), len(CONTENT) + 1])
def test_a_part_of_full_length_or_more(fetch: Fetch, n_bytes: int):
    """One that is all there is only proven, a longer one thrown away."""
    fetch.partial.write_bytes((CONTENT + b"x")[:n_bytes])
    fetch()
    assert fetch.ranges() == ([] if n_bytes == len(CONTENT) else [""])
    assert fetch.target.read_bytes() == CONTENT


@pytest.mark.parametrize("status", [401, 403])
def test_refusal_says_what_to_do(fetch: Fetch, status: int):
    """No access is the user's to mend: exit 2 and the login command, without the token."""
    with pytest.raises(UsageError, match=r"`hf auth login`") as caught:
        fetch(status=status)
    assert "hf_secret" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(("status", "n_asked"), [(404, 1), (410, 1), (429, 5), (503, 5)])
def test_servers_that_are_busy_are_asked_again(fetch: Fetch, status: int, n_asked: int):
    """What may pass is tried five times, with longer and longer pauses; the rest is not."""
    with pytest.raises(FetchError, match=str(status)):
        fetch(status=status)
    assert len(fetch.ranges()) == n_asked
    assert fetch.pauses == [0.5, 1, 2, 4][: n_asked - 1]


def test_nobody_answers(fetch: Fetch, tmp_path: Path):
    """A refused connection is an error of ours that names the file."""
    fetch.file = RemoteFile(NAME, "http://127.0.0.1:9/x", 9, "a" * 64)
    with pytest.raises(FetchError, match=r"model.safetensors: the connection failed"):
        fetch()


def test_a_full_disk_is_told(fetch: Fetch, monkeypatch: pytest.MonkeyPatch):
    """No space: DoesNotFit, with what there is kept to go on from."""

    def full(_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(download.os, "fsync", full)
    with pytest.raises(DoesNotFit, match="disk is full"):
        fetch()
    assert fetch.partial.exists()


def test_two_runs_at_once_fetch_it_once(fetch: Fetch):
    """The second waits for the first and finds the file there."""
    runs = [threading.Thread(target=fetch) for _ in range(3)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert fetch.target.read_bytes() == CONTENT
    assert fetch.hub.sent_bytes == len(CONTENT)
    assert not fetch.partial.exists()
