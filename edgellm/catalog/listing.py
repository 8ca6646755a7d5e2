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
    from collections.abc import Collection, Iterable

INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\- ]{0,254}")
_DIGEST: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_MAX_BYTES: Final = 1 << 50
_MAX_SMALL_BYTES: Final = 64 << 20  # of a file that is no weights, as the readers have it
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


def read_listing(commit: Any, siblings: Iterable[Any]) -> Listing:
    """Check the hub's list; files in folders are left out.

    Args:
        commit: what the revision means now.
        siblings: rows with `rfilename`, `size`, `blob_id` and, for large files, `lfs.sha256`.

    Raises:
        FetchError: the commit, a length or a hash of a needed file is not told.
    """
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise FetchError(f"the hub names no commit: {str(commit)[:60]!r}")
    files: dict[str, ListedFile] = {}
    for row in siblings:
        name = row.rfilename
        if isinstance(name, str) and _NAME.fullmatch(name) and _may_be_needed(name):
            files[name] = _listed(name, row)
    return Listing(commit, files)


def _may_be_needed(name: str) -> bool:
    return name.endswith((".safetensors", ".gguf", ".bin")) or bool(_SMALL.fullmatch(name))


def _listed(name: str, row: Any) -> ListedFile:
    lfs = row.lfs
    digest = getattr(lfs, "sha256", None) or row.blob_id
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise FetchError(f"{name}: the hub tells no hash of it ({str(digest)[:60]!r})")
    if type(row.size) is not int or not 0 <= row.size <= _MAX_BYTES:
        raise FetchError(f"{name}: the hub tells no length of it ({str(row.size)[:60]!r})")
    if not name.endswith((".safetensors", ".gguf", ".bin")) and row.size > _MAX_SMALL_BYTES:
        raise FetchError(f"{name}: {row.size} bytes; at most {_MAX_SMALL_BYTES} are read")
    return ListedFile(name, row.size, digest)


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
