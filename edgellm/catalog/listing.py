"""Which files of a hub repository a conversion needs, from the hub's own list of them.

The list is a stranger's: names must be plain, lengths and hashes of the right form, before anything
is asked for or written under them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from edgellm.errors import FetchError, ModelUnsupported

if TYPE_CHECKING:
    from collections.abc import Collection

INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\- ]{0,254}")
_DIGEST: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_MAX_BYTES: Final = 1 << 50
_MAX_SMALL_BYTES: Final = 64 << 20  # of a file that is no weights, as the readers have it
_MAX_ROWS: Final = 100_000
_MAX_SMALL_FILES: Final = 64
_MAX_SMALL_SUM_BYTES: Final = 1 << 30
_WEIGHTS: Final = (".safetensors", ".gguf", ".bin")
_SMALL: Final = re.compile(
    r"(config|generation_config|special_tokens_map|added_tokens|tokenizer_config)\.json"
    r"|tokenizer[A-Za-z0-9_\-]*\.(json|model)"
    r"|chat_template[A-Za-z0-9_\-]*\.(jinja|json)"
    r"|.+\.safetensors\.index\.json"
    r"|(README|LICEN[CS]E)(\.(md|txt))?"
)


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of a repository: `digest` is SHA-256 of the content, or git's SHA-1 over its blob."""

    name: str
    n_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class Listing:
    """The files in the top folder of a repository at one commit."""

    commit: str
    files: dict[str, ListedFile]


def read_listing(commit: Any, siblings: Any) -> Listing:
    """Check the hub's list; files in folders are left out.

    Args:
        commit: what the revision means now.
        siblings: rows with `rfilename`, `size`, `blobId` and, for large files, `lfs.sha256`.

    Raises:
        FetchError: the commit, a length or a hash of a needed file is not told, or there are too
            many files, or small ones with too many bytes in all; says how many.
    """
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise FetchError(f"the hub names no commit: {str(commit)[:60]!r}")
    if not isinstance(siblings, list) or not all(isinstance(row, dict) for row in siblings):
        raise FetchError(f"the hub names no files: {str(siblings)[:60]!r}")
    if len(siblings) > _MAX_ROWS:
        raise FetchError(f"it has {len(siblings)} files; at most {_MAX_ROWS} are read")
    files: dict[str, ListedFile] = {}
    for row in siblings:
        name = row.get("rfilename")
        if isinstance(name, str) and _NAME.fullmatch(name) and _may_be_needed(name):
            files[name] = _listed(name, row)
    listing = Listing(commit, files)
    _check_small(small_files(listing))
    return listing


def _check_small(small: list[ListedFile]) -> None:
    """Refuse what no checkpoint has before any of it is fetched."""
    n_bytes = sum(file.n_bytes for file in small)
    if len(small) > _MAX_SMALL_FILES:
        raise FetchError(
            f"it has {len(small)} small files; at most {_MAX_SMALL_FILES} are fetched "
            f"(configuration, tokenizer, templates), such as {small[-1].name[:100]}"
        )
    if n_bytes > _MAX_SMALL_SUM_BYTES:
        raise FetchError(
            f"it has {n_bytes} bytes in small files; at most {_MAX_SMALL_SUM_BYTES} are fetched"
        )


def _may_be_needed(name: str) -> bool:
    return name.endswith(_WEIGHTS) or bool(_SMALL.fullmatch(name))


def _listed(name: str, row: dict[str, Any]) -> ListedFile:
    lfs, size = row.get("lfs"), row.get("size")
    digest = (lfs.get("sha256") if isinstance(lfs, dict) else None) or row.get("blobId")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise FetchError(f"{name}: the hub tells no hash of it ({str(digest)[:60]!r})")
    if type(size) is not int or not 0 <= size <= _MAX_BYTES:
        raise FetchError(f"{name}: the hub tells no length of it ({str(size)[:60]!r})")
    if not name.endswith(_WEIGHTS) and size > _MAX_SMALL_BYTES:
        raise FetchError(f"{name}: {size} bytes; at most {_MAX_SMALL_BYTES} are read")
    return ListedFile(name, size, digest)


def small_files(listing: Listing) -> list[ListedFile]:
    """Return what is needed beside the weights: configuration, tokenizer, templates, card, licence."""
    return [file for name, file in sorted(listing.files.items()) if _SMALL.fullmatch(name)]


def weight_files(listing: Listing, indexed: Collection[str]) -> list[ListedFile]:
    """Return the weights: what the index names, else the one file, else every safetensors file.

    Args:
        listing: the repository.
        indexed: the shards that its index names; empty without an index.

    Raises:
        ModelUnsupported: it has no safetensors; says what it has instead.
        FetchError: shards of the index are not in it.
    """
    there = {name for name in listing.files if name.endswith(".safetensors")}
    lost = sorted(set(indexed) - there)
    if lost:
        raise FetchError(f"{len(lost)} weight files of the index are not there: {lost[0][:100]}")
    if not there:
        raise _no_weights(listing)
    wanted = set(indexed) or ({_SINGLE} & there) or there
    return [listing.files[name] for name in sorted(wanted)]


def _no_weights(listing: Listing) -> ModelUnsupported:
    ggufs = sorted(name for name in listing.files if name.endswith(".gguf"))
    if ggufs:
        return ModelUnsupported(
            f"holds GGUF files already, such as {ggufs[0]}, and no safetensors",
            hint="fetch that file and run it as it is",
        )
    if any(name.endswith(".bin") for name in listing.files):
        return ModelUnsupported(
            "only pickled weights (*.bin), which can run code when they are opened",
            hint="look for a safetensors version of the model",
        )
    return ModelUnsupported("has no *.safetensors file", hint="is it a model's repository?")
