"""What the command line and the environment say of a shared tier."""

from __future__ import annotations

import pytest

from edgellm.errors import UsageError
from edgellm.runtime.sharing import share_options


@pytest.mark.parametrize("environ", [{}, {"EDGELLM_SHARE_SECRET_FILE": "/no/such/file"}])
def test_a_secret_that_is_not_there_names_the_variable(environ: dict[str, str]) -> None:
    """Who never saw the file has to know where its name comes from."""
    with pytest.raises(UsageError, match="EDGELLM_SHARE_SECRET_FILE"):
        share_options("redis://localhost", environ=environ)
