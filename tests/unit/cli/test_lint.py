"""`edgellm lint-prompt`: what is found where, what it costs in tokens, and the exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

RULES = "You are a helpful assistant. Answer in short sentences.\n" * 12
DATED = (
    "{{ strftime_now('%H:%M') }}{% for m in messages %}{{ m.role + ': ' + m.content }}{% endfor %}"
)


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """A system prompt with a date on its second to last line."""
    file = tmp_path / "rules.txt"
    file.write_text(RULES + "Today is 2026-05-17.\nBe kind.\n", encoding="utf-8")
    return file


def test_a_clean_prompt_ends_with_zero(cli: Any) -> None:
    """All of it stays."""
    result = cli("lint-prompt", "--system", "You are kind.")
    assert (result.code, result.err) == (0, "")
    assert result.out == "findings: 0\nstable:   13 of 13 characters\n"


def test_hints_alone_are_clean(cli: Any) -> None:
    """They are told, and change nothing."""
    result = cli("lint-prompt", "--system", '{"b": 1, "a": 2}')
    assert result.code == 0
    assert result.out.startswith('--system:1:1: hint: unsorted keys: {"b": 1, "a": 2}: ')
    assert "findings: 0\nstable:   16 of 16 characters\n" in result.out


def test_a_finding_has_its_file_line_and_column(cli: Any, rules: Path) -> None:
    """As editors and compilers write them, with the kind, the text and the fix."""
    result = cli("lint-prompt", "--system-file", rules)
    assert result.code == 1
    assert result.out.startswith(f"{rules}:13:10: date: 2026-05-17: move it behind")
    assert f"stable:   {len(RULES) + 9} of {len(RULES) + 29} characters\n" in result.out


def test_documents_are_looked_at_each_in_its_own_lines(
    cli: Any, rules: Path, tmp_path: Path
) -> None:
    """A place is one of the file, characters that stay are those of the whole message."""
    notes = tmp_path / "notes.md"
    notes.write_text("Rules.\n\nTurn: 7", encoding="utf-8")
    clean = ("--system", "Be kind.")
    first, last = cli("lint-prompt", *clean, "--prefix-file", notes, "--json").lines
    assert (first["source"], first["kind"], first["line"], first["column"]) == (
        *(str(notes), "counter", 3, 7),
    )
    assert first["text"] == "7"
    assert last["stable_chars"] == len("Be kind.\n\nRules.\n\nTurn: ")
    both = cli("lint-prompt", "--system-file", rules, "--prefix-file", notes, "--json").lines
    assert [line.get("kind") for line in both] == ["date", "counter", None]
    assert both[-1]["findings"] == 2


def test_stdin_is_read_once(cli: Any) -> None:
    """`-` is a file like any other."""
    result = cli("lint-prompt", "--system-file", "-", stdin=b"Today is 2026-05-17.")
    assert result.code == 1
    assert "-:1:10: date" in result.out


def test_without_a_prompt_there_is_nothing_to_look_at(cli: Any) -> None:
    """Exit 2, and what to give."""
    result = cli("lint-prompt")
    assert result.code == 2
    assert "give --system-file FILE or --system TEXT" in result.err


def test_a_finding_on_a_terminal_is_one_line(cli: Any) -> None:
    """Whatever stands in it, control characters too."""
    result = cli("lint-prompt", "--system", "{'a\x1b[2J', 'b'} Session\nid: 1234")
    assert "\x1b" not in result.out
    assert len(result.out.splitlines()) == 3


@pytest.mark.model
def test_a_model_counts_the_tokens_that_stay(cli: Any, rules: Path, smollm2_gguf: Path) -> None:
    """Up to the first finding, of all up to the user's words."""
    finding, last = cli("lint-prompt", smollm2_gguf, "--system-file", rules, "--json").lines
    assert 100 < last["stable_tokens"] < last["tokens"] < 200
    assert finding["stable_tokens"] == last["stable_tokens"]
    shown = cli("lint-prompt", smollm2_gguf, "--system-file", rules).out
    stable, tokens = last["stable_tokens"], last["tokens"]
    assert f"date: 2026-05-17 (behind token {stable}): " in shown
    assert f"stable tokens: {stable} of {tokens}, the template's included\n" in shown


@pytest.mark.model
def test_a_template_that_writes_the_time_is_a_finding(
    cli: Any, tmp_path: Path, smollm2_gguf: Path
) -> None:
    """The best of prompts is read anew behind it."""
    template = tmp_path / "dated.jinja"
    template.write_text(DATED, encoding="utf-8")
    flags = ("--system", "Be kind.", "--chat-template", template)
    result = cli("lint-prompt", smollm2_gguf, *flags)
    assert result.code == 1
    assert "template:      writes the time" in result.out


def test_a_model_that_is_none_is_told(cli: Any, tmp_path: Path) -> None:
    """With the exit code of a missing file."""
    assert cli("lint-prompt", tmp_path / "no.gguf", "--system", "Be kind.").code == 3
