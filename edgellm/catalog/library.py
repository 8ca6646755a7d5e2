"""The door to huggingface_hub: its settings, its token, its cache; nothing else imports it.

What it offers under a public name since version 0.24 is used, and no more of it. It sends nothing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from edgellm.catalog.answers import LOGIN, ask_object
from edgellm.catalog.download import PARTIAL_SUFFIX, Downloader, RemoteFile
from edgellm.catalog.listing import read_listing
from edgellm.errors import DoesNotFit, FetchError, MissingExtra, UsageError
from edgellm.fileio import fsync_dir, temp_name, write_atomic
from edgellm.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgellm.catalog.listing import ListedFile, Listing

_FILE_MODE: Final = 0o666  # less the umask, as the rest of that cache


def load_library() -> Any:
    """Return the module huggingface_hub, its `utils` and `constants` loaded.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.utils
    except ImportError as err:
        raise MissingExtra(
            "no such folder here, and a model of the hub needs the package huggingface_hub",
            hint="install it with `pip install 'edgellm[hub]'`",
        ) from err
    return huggingface_hub


def ask_listing(repo_id: str, revision: str | None) -> Listing:
    """Ask the hub what a revision means and which files it has.

    Raises:
        ModelNotFound, UsageError, FetchError: see `hub.fetch`.
    """
    hub = load_library()
    name = repo_id if revision is None else f"{repo_id}@{revision}"
    try:
        hub.utils.validate_repo_id(repo_id)
    except hub.utils.HFValidationError as err:
        raise UsageError(f"{name}: no name of a repository") from err
    place = f"/revision/{quote(revision, safe='')}" if revision is not None else ""
    url = f"{hub.constants.ENDPOINT}/api/models/{repo_id}{place}?blobs=true"
    told = ask_object(url, _request_headers(hub), name)
    return read_listing(told.get("sha"), told.get("siblings"))


class HubCache:
    """One commit of a repository in huggingface_hub's cache: `blobs/HASH`, `snapshots/COMMIT/NAME`."""

    def __init__(self, repo_id: str, revision: str, commit: str) -> None:
        self._hub = load_library()
        self._repo_id = repo_id
        self._revision = revision
        self._commit = commit
        folder = "--".join(["models", *repo_id.split("/")])
        self._root = Path(self._hub.constants.HF_HUB_CACHE) / folder
        self._blobs = self._root / "blobs"

    def downloader(self) -> Downloader:
        """Make the folder for blobs, and what fills it."""
        try:
            self._blobs.mkdir(parents=True, exist_ok=True)
        except OSError as err:
            raise FetchError(
                f"cannot be made: {err.strerror or err}",
                path=self._blobs,
                hint="HF_HOME names another place",
            ) from err
        return Downloader(_request_headers(self._hub))

    def blob(self, file: ListedFile) -> Path:
        """Return where the content of a file lies."""
        return self._blobs / file.digest

    def missing_bytes(self, files: list[ListedFile]) -> int:
        """Return how many bytes of these files are still to be fetched."""
        missing = 0
        for file in {file.digest: file for file in files}.values():
            if not self.blob(file).exists():
                part = self._blobs / (file.digest + PARTIAL_SUFFIX)
                have = part.stat().st_size if part.exists() else 0
                missing += file.n_bytes - min(have, file.n_bytes)
        return missing

    def check_space(self, need_bytes: int) -> None:
        """Raise `DoesNotFit` unless so many bytes more fit on the disk."""
        free_bytes = shutil.disk_usage(self._blobs).free
        if free_bytes < need_bytes:
            raise DoesNotFit(
                f"{self._repo_id} needs {format_bytes(need_bytes)} more, "
                f"{format_bytes(free_bytes)} are free",
                path=self._blobs,
                hint="free some space, or let HF_HOME name another disk",
                need_bytes=need_bytes,
                have_bytes=free_bytes,
            )

    def bring(
        self, downloader: Downloader, file: ListedFile, advance: Callable[[int], None]
    ) -> None:
        """Fetch a file's content unless it is there; see `Downloader.fetch`."""
        url = self._hub.hf_hub_url(
            self._repo_id,
            file.name,
            revision=self._commit,
            endpoint=self._hub.constants.ENDPOINT,
        )
        remote = RemoteFile(file.name, url, file.n_bytes, file.digest)
        downloader.fetch(remote, self.blob(file), advance)

    def give_names(self, files: list[ListedFile]) -> Path:
        """Link the blobs to their names, or copy them where there are no links.

        Only then does the revision's name lead to this commit: what it leads to is whole. The
        library would do it with a request for each file; the layout is the one it documents
        (https://huggingface.co/docs/huggingface_hub/guides/manage-cache).
        """
        folder = self._root / "snapshots" / self._commit
        links = not getattr(self._hub.constants, "HF_HUB_DISABLE_SYMLINKS", False)
        ref = self._root / "refs" / self._revision
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for file in files:
                _give_name(folder / file.name, self.blob(file), links=links)
            fsync_dir(folder)
            if self._revision != self._commit:
                ref.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(ref, self._commit.encode(), mode=_FILE_MODE)
        except OSError as err:
            raise FetchError(
                f"the cache cannot be used: {err.strerror or err}", path=err.filename or folder
            ) from err
        return folder


def _request_headers(hub: Any) -> dict[str, str]:
    """Return the user's token, from the library's own places, and a name for us."""
    headers = {"user-agent": f"edgellm; hf_hub/{hub.__version__}"}
    if hub.constants.HF_HUB_DISABLE_IMPLICIT_TOKEN:
        return headers
    try:
        token = hub.get_token()
    # It may ask for a new token: the errors' base is that of the HTTP library below it.
    except (OSError, ValueError, *hub.utils.HfHubHTTPError.__bases__) as err:
        raise FetchError(
            f"the token for the hub cannot be had ({type(err).__name__})", hint=LOGIN
        ) from err
    if token and not (token.isascii() and token.isprintable()):
        raise UsageError("the token for the hub has characters that no token has", hint=LOGIN)
    return {**headers, "authorization": f"Bearer {token}"} if token else headers


def _give_name(name: Path, blob: Path, *, links: bool) -> None:
    """Let a name lead to a blob, or be a copy of it where there are no links, in one step."""
    with contextlib.suppress(FileNotFoundError):
        if name.samefile(blob):
            return
        if not name.is_symlink() and name.stat().st_size == blob.stat().st_size:
            return  # a copy, made where there are no links
    temp = temp_name(name)
    try:
        if not (links and _link(temp, blob)):
            shutil.copyfile(blob, temp)
        temp.replace(name)
    finally:
        temp.unlink(missing_ok=True)


def _link(link: Path, blob: Path) -> bool:
    """Make a link relative to its folder, so that the cache may be moved; tell whether it could."""
    try:
        link.symlink_to(os.path.relpath(blob, link.parent))
    except (OSError, NotImplementedError, ValueError):
        return False  # no right or no such thing as links; ValueError: another drive of Windows
    return True
