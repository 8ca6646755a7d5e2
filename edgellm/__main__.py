"""`python -m edgellm` is the `edgellm` command."""

from __future__ import annotations

import sys

from edgellm.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
