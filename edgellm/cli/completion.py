"""`edgellm completion`: the scripts for shells, and what they ask when Tab is pressed.

A script runs `edgellm __complete words WORD...`, whose last word is at the cursor, and reads lines:
first the kind of files that the shell shall offer, or `-`, and the word at the cursor; then `VALUE
TAB HELP` for each word that may stand there. In place of `words`, `fresh` means that the word at
the cursor is yet empty, and `line` that the text of the line follows, up to the cursor.
"""

from __future__ import annotations

import enum
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ASKING: Final = "__complete"
EXAMPLES: Final = """
echo 'eval "$(edgellm completion bash)"' >> ~/.bashrc
echo 'eval "$(edgellm completion zsh)"' >> ~/.zshrc      # below compinit
edgellm completion fish > ~/.config/fish/completions/edgellm.fish
edgellm completion powershell >> $PROFILE
"""
_FOLDER: Final = Path(__file__).with_name("shells")


class Shell(str, enum.Enum):
    """The shells that there are scripts for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"
    POWERSHELL = "powershell"


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish|powershell", help="For whom.")],
) -> None:
    """Print the script for completion with Tab.

    Commands, options, types and tiers, snapshot keys, and model files before others. The script
    asks the installed edgellm, so it stays right when that is upgraded.
    """
    from edgellm.cli import render

    script = (_FOLDER / f"edgellm.{shell.value}").read_text(encoding="utf-8")
    render.write_out(script)


def answer(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Answer a script: print what can stand at the cursor.

    Args:
        app: the whole program.
        arguments: `words`, `fresh` or `line`, and what it says.

    Raises:
        StdoutClosed: the shell did not wait.
    """
    from edgellm.cli import render
    from edgellm.cli.candidates import complete
    from edgellm.cli.tree import tree_of

    how, *words = arguments or ["fresh"]
    if how == "fresh":
        words.append("")
    elif how == "line":
        words = split_line(" ".join(words))[1:]
    found = complete(tree_of(app), words, snapshot_keys)
    lines = [f"{found.files or '-'}\t{found.word}"]
    lines += [f"{candidate.value}\t{candidate.help}" for candidate in found.words]
    render.write_out("".join(f"{line}\n" for line in lines))
    return 0


def split_line(line: str) -> list[str]:
    """Return the words of a line as a shell would split it; the last is the one being typed."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
    lexer.whitespace_split = True
    lexer.commenters = ""
    words: list[str] = []
    try:
        words.extend(lexer)
    except ValueError:  # an open quote, or a backslash at the end
        words.append(lexer.token or "")
        return words
    if not line or (line[-1].isspace() and not line.endswith("\\ ")):
        words.append("")
    return words


def snapshot_keys() -> Iterator[str]:
    """Give the keys in the store by the names of its files: loading the store loads numpy."""
    from edgellm.paths import snapshots_dir

    return (path.stem for path in snapshots_dir().glob("v1/*/*.ekv"))
