"""The key of an endpoint: from the environment or the system's keyring, and only when it is needed.

Nobody is asked for a key while no route leaves this machine, and having one changes no mode. It is
held by the process that asked, and never by one that holds a model.
"""

from __future__ import annotations

import contextlib
import logging
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

KEY_VARIABLE: Final = "EDGELLM_API_KEY"
SERVICE: Final = "edgellm"
_LOG: Final = logging.getLogger(__name__)


def api_key(origin: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the key for an endpoint, or None where there is none.

    A keyring that cannot be asked is no key, and a warning says so: a server on this machine needs none.

    Args:
        origin: scheme, host and port; the name of its entry under the service `edgellm`.
        environ: the environment, whose `EDGELLM_API_KEY` comes first.
    """
    return environ.get(KEY_VARIABLE, "").strip() or _from_keyring(origin)


def _from_keyring(origin: str) -> str | None:
    with contextlib.suppress(ImportError):  # an extra that is not installed holds no key
        import keyring
        from keyring import errors

        try:
            found = keyring.get_password(SERVICE, origin)
        except errors.NoKeyringError:
            return None
        except (errors.KeyringError, OSError, RuntimeError) as err:
            _LOG.warning(
                "the keyring cannot be asked for the key of %s: %s; %s sets one",
                origin,
                type(err).__name__,
                KEY_VARIABLE,
            )
            return None
        return found or None
    return None
