"""Where a snapshot lies: computed from the fingerprint and the tokens, so no index is needed.

ROOT/v1/<first 16 hex digits of the fingerprint>/<key>.ekv
key = first 32 hex digits of SHA-256(fingerprint, 32 bytes | identity of the prefix)
identity = token ids, little-endian int32; where the prefix was cut before, -1 and these cuts follow

Rows depend on where decoding began anew, so the same tokens cut elsewhere are another prefix.

Beside a snapshot may lie <text>-<key>.ekt: it can be found by its conversation's text as well.
text = first 32 hex digits of SHA-256(fingerprint, 32 bytes | SHA-256 of the text, 32 bytes)

In a store with a key, all of these are HMACs under it: who can list the folder cannot try prompts on it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from edgellm.store.sealed.keys import StoreKey

TokenIds: TypeAlias = "Sequence[int] | NDArray[np.integer[Any]]"

VERSION_DIR: Final = "v1"
IMPORTS_DIR: Final = "imports"
SUFFIX: Final = ".ekv"
TEXT_SUFFIX: Final = ".ekt"
TOKEN_BYTES: Final = 4
_FOLDER: Final = re.compile(r"[0-9a-f]{16}")
_FILE: Final = re.compile(r"[0-9a-f]{32}\.ekv")
_TEXT: Final = re.compile(r"[0-9a-f]{32}-([0-9a-f]{32})\.ekt")
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_MAX_TOKEN: Final = (1 << 31) - 1
_CUTS_FOLLOW: Final = b"\xff\xff\xff\xff"  # -1, which is no token


def token_ids(tokens: TokenIds) -> bytes:
    """Return token ids as little-endian int32.

    Raises:
        ValueError: there are none, or one is no non-negative 32-bit number.
    """
    wide = np.asarray(tokens)
    if wide.ndim != 1 or not wide.size or wide.dtype.kind not in "iu":
        raise ValueError("tokens must be a non-empty list of whole numbers")
    if wide.min() < 0 or wide.max() > _MAX_TOKEN:
        raise ValueError(f"token ids must be between 0 and {_MAX_TOKEN}")
    return wide.astype("<i4").tobytes()


def cuts_below(cuts: Sequence[int], n_tokens: int) -> tuple[int, ...]:
    """Return those of a prompt's cuts that lie strictly inside a prefix of so many tokens.

    Raises:
        ValueError: they are not positive and ascending.
    """
    found = tuple(int(cut) for cut in cuts)
    if any(b <= a for a, b in zip((0, *found), found)):  # noqa: B905  (ends with the shorter)
        raise ValueError("cuts must be positive and ascending")
    return tuple(cut for cut in found if cut < n_tokens)


def identity_of(ids: bytes, cuts: Sequence[int] = ()) -> bytes:
    """Return what a prefix is known by.

    Args:
        ids: its tokens as little-endian int32.
        cuts: all places strictly inside it where decoding began anew, ascending.
    """
    return ids + _CUTS_FOLLOW + np.asarray(cuts, "<i4").tobytes() if cuts else ids


def prefixes_of(
    ids: bytes, lengths: Sequence[int] | Mapping[int, Sequence[int]]
) -> list[tuple[bytes, tuple[int, ...]]]:
    """Return prefixes of a prompt and the cuts inside each, the longest first.

    Args:
        ids: all tokens of the prompt as little-endian int32.
        lengths: of the prefixes; a mapping says where each was cut before.

    Raises:
        ValueError: there is no such prefix, or cuts are not positive and ascending.
    """
    n_tokens = len(ids) // TOKEN_BYTES
    cuts = lengths if isinstance(lengths, Mapping) else dict.fromkeys(lengths, ())
    if not all(0 < n <= n_tokens for n in cuts):
        raise ValueError(f"cuts {sorted(cuts)} of {n_tokens} tokens")
    return [(ids[: n * TOKEN_BYTES], cuts_below(cuts[n], n)) for n in sorted(cuts, reverse=True)]


def key_of(
    digest: str, ids: bytes, secret: StoreKey | None = None, cuts: Sequence[int] = ()
) -> str:
    """Return the key for a fingerprint's digest (64 hex digits), token ids and earlier cuts."""
    content = bytes.fromhex(digest) + identity_of(ids, cuts)
    if secret is not None:
        return secret.name("tokens", content)[:32]
    return hashlib.sha256(content).hexdigest()[:32]


def text_of(digest: str, text_sha256: str, secret: StoreKey | None = None) -> str:
    """Return the 32 hex digits that stand for a text in the names of its snapshots.

    Args:
        digest: of the fingerprint, 64 hex digits.
        text_sha256: of the text, likewise.
        secret: the key of the store, or None.

    Raises:
        ValueError: the hash of the text is no such number.
    """
    if not _HASH.fullmatch(text_sha256):
        raise ValueError(f"no SHA-256 in lower case hex digits: {text_sha256[:80]!r}")
    content = bytes.fromhex(digest) + bytes.fromhex(text_sha256)
    if secret is not None:
        return secret.name("text", content)[:32]
    return hashlib.sha256(content).hexdigest()[:32]


def folder_of(digest: str, secret: StoreKey | None = None) -> str:
    """Return the name of the folder that holds the snapshots of a fingerprint's digest."""
    name = digest if secret is None else secret.name("fingerprint", bytes.fromhex(digest))
    return name[:16]


def path_of(
    root: Path,
    digest: str,
    ids: bytes,
    secret: StoreKey | None = None,
    cuts: Sequence[int] = (),
) -> Path:
    """Return the only place where that snapshot may lie."""
    name = key_of(digest, ids, secret, cuts) + SUFFIX
    return root / VERSION_DIR / folder_of(digest, secret) / name


def is_folder_name(name: str) -> bool:
    """Return whether a folder name is one that `path_of` makes."""
    return _FOLDER.fullmatch(name) is not None


def is_file_name(name: str) -> bool:
    """Return whether a file name is one that `path_of` makes."""
    return _FILE.fullmatch(name) is not None


def target_name(name: str) -> str | None:
    """Return the name of the snapshot that a text's file leads to; None for any other file."""
    match = _TEXT.fullmatch(name)
    return match.group(1) + SUFFIX if match else None
