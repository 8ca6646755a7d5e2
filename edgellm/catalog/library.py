"""The door to huggingface_hub: its settings, its API, its cache, its errors; nothing else imports it.

What it offers under a public name since version 0.24 is used, and no more of it.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from edgellm.catalog.download import PARTIAL_SUFFIX, Downloader, RemoteFile
from edgellm.catalog.listing import read_listing
from edgellm.errors import DoesNotFit, FetchError, MissingExtra, ModelNotFound, UsageError
from edgellm.fileio import write_atomic
from edgellm.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from edgellm.catalog.listing import ListedFile, Listing

_TIMEOUT_S: Final = 30.0
_FILE_MODE: Final = 0o666  # less the umask, as the rest of that cache
_UNAUTHORIZED, _FORBIDDEN = 401, 403
_LOGIN: Final = "run `hf auth login` with an account that may read it"


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
    with hub_errors(name):
        info = hub.HfApi().model_info(
            repo_id, revision=revision, files_metadata=True, timeout=_TIMEOUT_S
        )
        commit, siblings = info.sha, list(info.siblings or ())
    return read_listing(commit, siblings)


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
        return Downloader(self._hub.utils.build_hf_headers(library_name="edgellm"))

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
        url = self._hub.hf_hub_url(self._repo_id, file.name, revision=self._commit)
        remote = RemoteFile(file.name, url, file.n_bytes, file.digest)
        downloader.fetch(remote, self.blob(file), advance)

    def give_names(self, files: list[ListedFile]) -> Path:
        """Let the library link the blobs to their names, or copy them where there are no links.

        Only then does the revision's name lead to this commit: what it leads to is whole.
        """
        self._hub.utils.disable_progress_bars()
        with hub_errors(self._repo_id):
            for file in files:
                self._hub.hf_hub_download(self._repo_id, file.name, revision=self._commit)
            ref = self._root / "refs" / self._revision
            if ref.name != self._commit:
                ref.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(ref, self._commit.encode(), mode=_FILE_MODE)
        return self._root / "snapshots" / self._commit


@contextlib.contextmanager
def hub_errors(name: str) -> Iterator[None]:
    """Turn huggingface_hub's errors, and those of the HTTP library below it, into ours."""
    utils = load_library().utils
    try:
        yield
    except utils.HFValidationError as err:
        raise UsageError(f"{name}: no name of a repository") from err
    except utils.GatedRepoError as err:
        raise UsageError(
            f"{name} is gated: its terms must be accepted first",
            hint=f"accept them on the model's page, then {_LOGIN}",
        ) from err
    except utils.RevisionNotFoundError as err:
        raise ModelNotFound(f"{name}: the repository has no such revision") from err
    except utils.RepositoryNotFoundError as err:
        # The hub answers 401 for what is not there too, but only where no valid token was sent.
        if _status(err) == _UNAUTHORIZED and load_library().get_token():
            _raise_status(name, err)
        raise ModelNotFound(
            f"{name}: no such folder here, and no such model on the hub, or it is private",
            hint=f"check the spelling, or {_LOGIN}",
        ) from err
    except utils.HfHubHTTPError as err:
        _raise_status(name, err)
    # The HTTP library below it changes from version to version: its errors' base is among these.
    except (OSError, *utils.HfHubHTTPError.__bases__) as err:
        _raise_no_network(name, err)
    except (ValueError, TypeError, LookupError, AttributeError) as err:
        raise FetchError(
            f"{name}: what answers is no hub ({type(err).__name__})",
            hint="what does HF_ENDPOINT name? is there a proxy that asks for a login?",
        ) from err


def _status(err: Any) -> Any:
    return getattr(err.response, "status_code", "?")


def _raise_status(name: str, err: Any) -> NoReturn:
    status = _status(err)
    if status in (_UNAUTHORIZED, _FORBIDDEN):
        raise UsageError(
            f"{name}: the hub does not let you have it (HTTP {status})", hint=_LOGIN
        ) from err
    raise FetchError(
        f"{name}: the hub answers with HTTP {status}", hint="try it again later"
    ) from err


def _raise_no_network(name: str, err: Exception) -> NoReturn:
    path = getattr(err, "filename", None)
    if path is not None:
        raise FetchError(f"{name}: the cache cannot be used ({err})", path=path) from err
    raise FetchError(
        f"{name}: the hub cannot be reached ({type(err).__name__})",
        hint="is there a network? HF_HUB_OFFLINE=1 uses what was fetched before",
    ) from err
