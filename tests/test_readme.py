"""The README cannot lie: its help texts, its program and its commands are checked."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
GROUPS = ("snapshots", "config", "consent", "audit", "breaker")
HELP = re.compile(r"<!-- help: edgellm (.*?) -->\n```\n(.*?)```\n<!-- /help -->", re.DOTALL)


def edgellm(*arguments: str) -> str:
    """Run the command line as a user does, 80 columns wide."""
    done = subprocess.run(
        [sys.executable, "-m", "edgellm", *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "80"},
    )
    return done.stdout


def test_there_is_a_help_text():
    """The pattern below finds something to check."""
    assert HELP.findall(README)


@pytest.mark.parametrize(("arguments", "shown"), HELP.findall(README))
def test_help_texts_are_what_the_program_prints(arguments, shown):
    """Each `--help` block is the output of the command named above it."""
    printed = edgellm(*arguments.split())
    assert [line.rstrip() for line in shown.splitlines()] == [
        line.rstrip() for line in printed.splitlines()
    ]


def test_commands_use_flags_that_exist():
    """Every flag of every `edgellm` command in a shell block is in that command's help."""
    blocks = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("edgellm ")]
    assert len(lines) > 3
    for line in lines:
        words = shlex.split(line, comments=True)
        flags = [word for word in words if word.startswith("--")]
        command = words[1:3] if words[1] in GROUPS else words[1:2]
        text = edgellm(*command, "--help")
        assert [flag for flag in flags if flag not in text] == []


def test_linked_files_exist():
    """No link of the README leads nowhere."""
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / target).exists(), target


def test_python_program_is_valid_and_uses_the_api():
    """The example compiles, and the names it takes from edgellm are there."""
    import edgellm as package

    program = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert program
    compile(program.group(1), "README.md", "exec")
    for name in re.findall(r"edgellm\.(\w+)", program.group(1)):
        assert hasattr(package, name)
