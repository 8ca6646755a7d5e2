"""Checkpoints of the Hugging Face hub by name: `org/name`, `org/name@revision`, `hf:org/name`.

A revision is pinned to its commit first, space is checked for all files, and each lies under its name
only when its length and hash are right. The files go into huggingface_hub's own cache.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from edgellm.catalog.library import HubCache, ask_listing, load_library
from edgellm.catalog.listing import INDEX, small_files, weight_files
from edgellm.errors import EdgeLLMError, FetchError, UsageError
from edgellm.formats.checked_json import read_json_object

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgellm.catalog.listing import Listing

    Progress = Callable[[int, int], None]

PREFIX: Final = "hf:"
OFFLINE_VARIABLE: Final = "EDGELLM_OFFLINE"
_PART: Final = r"[A-Za-z0-9_](?:[A-Za-z0-9_.\-]{0,94}[A-Za-z0-9_])?"
_REVISION: Final = r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}"  # no part of it leads out of a folder
_NAME: Final = re.compile(rf"({_PART}/{_PART})(?:@({_REVISION}(?:/{_REVISION}){{0,3}}))?")
_FILE_ENDINGS: Final = (".gguf", ".safetensors", ".bin", ".json")
_DEFAULT_REVISION: Final = "main"


@dataclass(frozen=True, slots=True)
class HubName:
    """A model's repository on the hub, and the branch, tag or commit of it (None: the main one)."""

    repo_id: str
    revision: str | None = None

    def __str__(self) -> str:
        """Return it as a user types it."""
        return self.repo_id if self.revision is None else f"{self.repo_id}@{self.revision}"


@dataclass(frozen=True, slots=True)
class HubCheckpoint:
    """A checkpoint that lies on this disk.

    Attributes:
        folder: its files, all of one commit.
        name: what was asked for.
        commit: 40 hex digits.
        url: its page on the hub, at that commit.
        fetched_bytes: how much of it was not there before.
    """

    folder: Path
    name: HubName
    commit: str
    url: str
    fetched_bytes: int


def parse_name(text: str) -> HubName | None:
    """Return the hub repository that a text names, or None if it means a path.

    A path that exists is one, and so is `x/y` where `x` exists: a slip in a folder's name is not
    sent to a server. `hf:` before a name says that the hub is meant.

    Raises:
        UsageError: it starts with `hf:` and is no name.
    """
    if os.path.lexists(text):
        return None
    forced = text.startswith(PREFIX)
    found = _NAME.fullmatch(text.removeprefix(PREFIX))
    if forced:
        if found is None:
            raise UsageError(
                f"{text[:200]!r} names no repository", hint="write it as hf:org/name@revision"
            )
    elif found is None or text.lower().endswith(_FILE_ENDINGS) or Path(text).parent.is_dir():
        return None
    return HubName(found[1], found[2])


def fetch(
    name: HubName, *, offline: bool = False, progress: Progress | None = None
) -> HubCheckpoint:
    """Bring what a conversion needs of a repository onto this disk; what is there is not fetched.

    Args:
        name: the repository.
        offline: open no socket; use what an earlier run fetched. `HF_HUB_OFFLINE` means the same.
        progress: called with (bytes there, bytes in all).

    Raises:
        MissingExtra: huggingface_hub is not installed.
        ModelNotFound: the hub has no such repository or revision.
        ModelUnsupported: it holds no safetensors.
        UsageError: it is gated or private, or the token is refused.
        DoesNotFit: the disk is too small for it.
        FetchError: offline and not there yet; no network; or the hub's answers contradict.
    """
    try:
        hub = load_library()
        if offline or hub.constants.HF_HUB_OFFLINE:
            return _cached(hub, name, OFFLINE_VARIABLE if offline else "HF_HUB_OFFLINE")
        listing = ask_listing(name.repo_id, name.revision)
        return _fetch_listed(name, listing, progress)
    except EdgeLLMError as err:
        err.path = err.path or str(name)
        raise


def _cached(hub: Any, name: HubName, variable: str) -> HubCheckpoint:
    found = hub.try_to_load_from_cache(
        name.repo_id,
        "config.json",
        cache_dir=hub.constants.HF_HUB_CACHE,
        revision=name.revision or _DEFAULT_REVISION,
    )
    if not isinstance(found, str):
        raise FetchError(
            f"{name} was not fetched before, and {variable} forbids the network",
            hint=f"unset {variable}, or name a folder on this disk",
        )
    folder = Path(found).parent
    return HubCheckpoint(folder, name, folder.name, _url(hub, name, folder.name), 0)


def _fetch_listed(name: HubName, listing: Listing, progress: Progress | None) -> HubCheckpoint:
    cache = HubCache(name.repo_id, name.revision or _DEFAULT_REVISION, listing.commit)
    weight_files(listing, ())  # nothing is fetched of a repository without weights
    small = small_files(listing)
    counter = _Counter(sum(file.n_bytes for file in small), progress)
    with cache.downloader() as downloader:
        shards: set[str] = set()
        if INDEX in listing.files:  # which of the large files are needed stands in it
            cache.bring(downloader, listing.files[INDEX], counter.advance)
            shards = _shards(cache.blob(listing.files[INDEX]))
        weights = weight_files(listing, shards)
        counter.total_bytes += sum(file.n_bytes for file in weights)
        missing_bytes = cache.missing_bytes([*small, *weights])
        cache.check_space(missing_bytes)
        for file in (*small, *weights):
            if file.name != INDEX:
                cache.bring(downloader, file, counter.advance)
    folder = cache.give_names([*small, *weights])
    url = _url(load_library(), name, listing.commit)
    return HubCheckpoint(folder, name, listing.commit, url, missing_bytes)


def _url(hub: Any, name: HubName, commit: str) -> str:
    return f"{hub.constants.ENDPOINT}/{name.repo_id}/tree/{commit}"


def _shards(index: Path) -> set[str]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise FetchError(f"{INDEX} has no weight_map", path=index)
    return {str(shard) for shard in weight_map.values()}


class _Counter:
    """Adds the bytes of all files up."""

    def __init__(self, total_bytes: int, progress: Progress | None) -> None:
        self.total_bytes = total_bytes
        self._done_bytes = 0
        self._progress = progress

    def advance(self, n_bytes: int) -> None:
        self._done_bytes += n_bytes
        if self._progress is not None:
            self._progress(self._done_bytes, self.total_bytes)
