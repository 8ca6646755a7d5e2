"""The exception tree: how it is drawn, how it reads, and that it crosses a process border."""

from __future__ import annotations

import inspect
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

from edgellm import errors
from edgellm.errors import DoesNotFit, EdgeLLMError, ModelCorrupt

ALL = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, EdgeLLMError)]


def test_the_tree_at_the_head_is_the_tree() -> None:
    """The drawing names every class below the parent that it has."""
    drawn: list[tuple[int, str]] = []
    found = {}
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"([│├└─ ]*)([A-Z]\w+)( {2,}|$)", line)
        if match is None:
            continue
        depth = len(match.group(1)) // 4
        found[match.group(2)] = next((n for d, n in reversed(drawn) if d < depth), "Exception")
        drawn.append((depth, match.group(2)))
    assert {cls.__name__: cls.__base__.__name__ for cls in ALL} == found


def test_codes_are_unique() -> None:
    """`--json` readers tell errors apart by `code`."""
    codes = [cls.code for cls in ALL]
    assert sorted(set(codes)) == sorted(codes)


@pytest.mark.parametrize(
    ("name", "exit_code"),
    [
        ("EdgeLLMError", 1),
        ("UsageError", 2),
        ("ModelCorrupt", 2),
        ("ModelNotFound", 3),
        ("UnknownArchitecture", 2),
        ("VerifyFailed", 5),
        ("PromptTooLong", 2),
        ("SnapshotCorrupt", 1),
        ("DoesNotFit", 4),
        ("EngineUnavailable", 1),
        ("Cancelled", 130),
    ],
)
def test_exit_codes(name: str, exit_code: int) -> None:
    """The documented numbers, on the class: no table elsewhere can disagree."""
    assert exit_code == getattr(errors, name).exit_code


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (EdgeLLMError("it broke"), "it broke"),
        (EdgeLLMError("it broke", hint="try again"), "it broke; try again"),
        (ModelCorrupt("9 bytes", path=Path("a/m.gguf")), "a/m.gguf: 9 bytes"),
        (ModelCorrupt("a/m.gguf: 9 bytes", path="a/m.gguf"), "a/m.gguf: 9 bytes"),
        (
            DoesNotFit("too big", path="x", hint="buy", need_bytes=2, have_bytes=1),
            "x: too big; buy",
        ),
    ],
)
def test_text_says_where_what_and_what_to_do(error: EdgeLLMError, text: str) -> None:
    """Whatever is known, each once."""
    assert text == str(error)


@pytest.mark.parametrize("cls", ALL)
def test_errors_survive_a_pickle(cls: type[EdgeLLMError]) -> None:
    """A worker process hands its errors over with every attribute."""
    error = cls("what", path="where", hint="how")
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301  (our own bytes)
    assert type(copy) is cls
    assert (vars(error), str(error)) == (vars(copy), str(copy))


def test_numbers_of_does_not_fit_survive_too() -> None:
    """They are attributes, not words to be parsed."""
    error = DoesNotFit("big", need_bytes=5, have_bytes=3)
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301  (our own bytes)
    assert (5, 3) == (copy.need_bytes, copy.have_bytes)


def test_the_module_imports_nothing() -> None:
    """Every room may import it, so it may import none."""
    program = "import sys; before = set(sys.modules); import edgellm.errors; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    ours = {name for name in done.stdout.split() if name.startswith("edgellm")}
    assert ours <= {f"edgellm{name}" for name in ("", ".core", ".errors", ".routing", ".wire")}
