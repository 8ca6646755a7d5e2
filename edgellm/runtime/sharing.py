"""Sharing: from what the user said of a shared tier to a store that reads through it.

The cloud room speaks to the server, the policy room says whether it may, the store checks what comes:
they meet here. The secret is read from a private file that an environment variable names.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from edgellm.errors import UsageError
from edgellm.fileio import open_regular
from edgellm.paths import SHARE_SECRET_VARIABLE
from edgellm.policy.permits import may_share
from edgellm.routing import ShareOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgellm.core import Mode
    from edgellm.store.shared.read_through import ReadThroughStore

_MAX_SECRET_BYTES: Final = 1 << 10
_OPEN_TO_OTHERS: Final = 0o077
_MAKE_ONE: Final = "make one: (umask 077; openssl rand -hex 32 > FILE), the same for all machines"


def open_shared(root: Path, options: ShareOptions, mode: Mode, **how: Any) -> ReadThroughStore:
    """Return a store with a shared tier behind it; nothing is connected before it is needed.

    Args:
        root: the folder of the store.
        options: of the tier.
        mode: which routes the session allows; a closed one lets nothing through.
        how: the other arguments of `SnapshotStore`.

    Raises:
        UsageError: the URL or the secret cannot be used, or the store is to be encrypted.
        MissingExtra: redis-py is not installed.
    """
    from edgellm.cloud.redis_tier import RedisTier
    from edgellm.store.shared.read_through import ReadThroughStore
    from edgellm.store.shared.remote import Seals

    def refusal() -> str:
        return may_share(mode, options.url, trusted=options.trusted).reason

    return ReadThroughStore(
        root,
        RedisTier(options.url),
        Seals(options.secret),
        refusal=refusal,
        max_bytes=options.max_bytes,
        writes_back=options.writes_back,
        **how,
    )


def share_options(
    url: str | None,
    *,
    trusted: bool = False,
    writes_back: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> ShareOptions | None:
    """Return the options for a URL of the command line, or None without one.

    Raises:
        UsageError: the secret is missing, or its file cannot be read, is open to others or too long.
    """
    if url is None:
        return None
    named = environ.get(SHARE_SECRET_VARIABLE)
    if not named:
        raise UsageError(
            f"a shared tier needs a secret: {SHARE_SECRET_VARIABLE} names no file", hint=_MAKE_ONE
        )
    try:
        secret = _read_secret(Path(named))
    except OSError as err:
        raise UsageError(
            f"{SHARE_SECRET_VARIABLE} names a file that cannot be read: {err.strerror or err}",
            path=named,
            hint=_MAKE_ONE,
        ) from err
    return ShareOptions(url, secret, trusted, writes_back)


def _read_secret(path: Path) -> bytes:
    with open_regular(path, follow=True) as (file, status):
        if os.name != "nt" and status.st_mode & _OPEN_TO_OTHERS:
            mode = stat.S_IMODE(status.st_mode)
            raise UsageError(
                f"{path}: others may read the shared secret (mode {mode:04o})",
                hint=f"chmod 600 {path}",
            )
        secret = file.read(_MAX_SECRET_BYTES + 1)
    if len(secret) > _MAX_SECRET_BYTES:
        raise UsageError(f"{path}: more than {_MAX_SECRET_BYTES} bytes are no secret")
    return secret.strip()
