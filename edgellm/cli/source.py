"""Where a conversion's source comes from: a path here, or a model of the hub that is fetched first."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

from edgellm.catalog.hub import fetch, parse_name
from edgellm.errors import UsageError

if TYPE_CHECKING:
    from edgellm.runtime.conversion import ConvertOptions


def find_source(
    text: str, options: ConvertOptions, *, dry_run: bool, quiet: bool
) -> ConvertOptions:
    """Return the options of a conversion whose source lies on this disk.

    A model of the hub is fetched, once it is sure that the output may be written.

    Args:
        text: what the user named.
        options: the conversion; its `src` is `text` taken for a path.
        dry_run: nothing will be written, so the output may be there.
        quiet: show no progress.

    Raises:
        UsageError: the name is empty, the output may not be written, or the hub refuses.
        EdgeLLMError: see `catalog.hub.fetch`.
    """
    if not text:  # as a path it would be the current folder
        raise UsageError("the name is empty", hint="name a checkpoint folder, a GGUF or org/name")
    name = parse_name(text)
    if name is None:
        return options
    from edgellm.cli import render
    from edgellm.cli.progress import ByteProgress
    from edgellm.cli.variables import offline_variable
    from edgellm.runtime.conversion_out import check_out

    if not dry_run:
        check_out(options)
    progress = ByteProgress(f"fetching {name}", quiet=quiet)
    try:
        found = fetch(name, offline=offline_variable(os.environ), progress=progress)
    finally:
        progress.close()
    if not quiet:
        render.write_err(f"{name}: commit {found.commit[:12]}, in {found.folder}\n")
    return dataclasses.replace(options, src=found.folder, origin=found.url)
