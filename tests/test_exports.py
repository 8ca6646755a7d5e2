"""What `import edgellm` gives: exactly what `__all__` lists, and every name explains itself."""

from __future__ import annotations

import inspect
import subprocess
import sys

import edgellm

_PROGRAM = "import edgellm; print(*(n for n in vars(edgellm) if not n.startswith('_')))"


def test_all_lists_every_public_name() -> None:
    """No name is there by accident, and none is promised that is not there.

    A fresh process: the test run itself has imported rooms, which then hang on the package.
    """
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True
    )
    named = {name for name in edgellm.__all__ if not name.startswith("_")}
    rooms = {name for name in done.stdout.split() if inspect.ismodule(getattr(edgellm, name))}
    assert named == set(done.stdout.split()) - rooms - {"annotations", "TYPE_CHECKING"}


def test_every_listed_name_is_there() -> None:
    """`from edgellm import *` works."""
    for name in edgellm.__all__:
        assert hasattr(edgellm, name), name


def test_all_is_sorted_without_repeats() -> None:
    """A list that people read."""
    assert list(edgellm.__all__) == sorted(set(edgellm.__all__))


def test_every_public_name_has_a_docstring() -> None:
    """Classes and functions of the API say what they are, in their own words."""
    bare = [
        name
        for name in edgellm.__all__
        if (inspect.isclass(public := getattr(edgellm, name)) or inspect.isfunction(public))
        and not (public.__doc__ or "").strip()
    ]
    assert bare == []
