"""`edgellm lint-prompt`: what of a system prompt will be another text next time, and what it costs."""

from __future__ import annotations

import dataclasses
from pathlib import Path  # noqa: TC003  # typer reads the annotations at run time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from edgellm.cli.flags import with_options
from edgellm.cli.options import AnswerOptions
from edgellm.errors import EXIT_FAILURE, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgellm.prompt.boundary import Standing
    from edgellm.prompt.lint import Finding

EXAMPLES: Final = """
edgellm lint-prompt --system-file rules.txt
edgellm lint-prompt model.gguf --system-file rules.txt --prefix-file AGENTS.md
edgellm lint-prompt model.gguf --system "Today is 2026-05-17." --json
"""
LINT_FLAGS: Final = frozenset({"system", "system_file", "prefix_file", "chat_template", "json"})
_SHOWN_CHARS: Final = 60


@dataclasses.dataclass(frozen=True, slots=True)
class _Source:
    """One of the texts that make the system message.

    Attributes:
        name: the file or flag it came from.
        text: as it was read.
        start: where it begins in the message, in characters.
        findings: in it.
    """

    name: str
    text: str
    start: int
    findings: tuple[Finding, ...]


@with_options(AnswerOptions, only=LINT_FLAGS)
def lint_prompt(
    model: Annotated[
        Path | None, typer.Argument(metavar="MODEL", help="GGUF file, to count in its tokens.")
    ] = None,
    *,
    options: AnswerOptions,
) -> None:
    """Find text in a system prompt that changes by itself; exits 1 if there is any.

    Dates, clocks, ids, counters, temporary paths, values printed in no order: behind the first of
    them nothing is reused. Hints, such as JSON keys that are not sorted, do not count.
    """
    from edgellm.cli import render

    sources, content = _sources(options)
    places = [source.start + one.start for source in sources for one in source.findings]
    standing = None if model is None else _standing(model, options, content, places)
    befores = list(standing.before) if standing else [None] * len(places)
    rows = [(source, one) for source in sources for one in source.findings]
    for (source, one), before in zip(rows, befores, strict=True):
        if options.json:
            render.json_line(_plain(source, one, before))
        else:
            render.write_out(f"{_shown(source, one, before)}\n")
    firm = [n for n, (_, one) in enumerate(rows) if not one.is_hint]
    _sum_up(options, content, [places[n] for n in firm], [befores[n] for n in firm], standing)
    if firm or (standing is not None and standing.volatile):
        raise typer.Exit(EXIT_FAILURE)


def _sources(options: AnswerOptions) -> tuple[list[_Source], str]:
    """Return the texts with what is found in each, and the message that they make.

    Raises:
        UsageError: there is none.
        OSError: a file cannot be read.
    """
    from edgellm.prompt.documents import system_message
    from edgellm.prompt.lint import lint

    system, documents = options.system_text(), options.documents()
    message = system_message(system, documents)
    if message is None:
        raise UsageError("no system prompt", hint="give --system-file FILE or --system TEXT")
    name = "--system" if options.system_file is None else str(options.system_file)
    texts = [] if system is None else [(name, system)]
    texts += zip(map(str, options.prefix_file or ()), documents, strict=True)
    sources, at = [], 0
    for name, text in texts:
        start = message.content.find(text, at)
        if start >= 0:  # a blank document is left out
            sources.append(_Source(name, text, start, lint(text)))
            at = start + len(text)
    return sources, message.content


def _standing(model: Path, options: AnswerOptions, content: str, places: Sequence[int]) -> Standing:
    from edgellm.core import Message
    from edgellm.runtime.linting import standing

    return standing(model, options.session_options(), Message("system", content), places)


def _shown(source: _Source, one: Finding, before: int | None) -> str:
    """Return a finding as one line: file, line and column as editors read them."""
    from edgellm.cli import streams

    text = one.text if len(one.text) <= _SHOWN_CHARS else one.text[:_SHOWN_CHARS] + "..."
    label = f"hint: {one.kind}" if one.is_hint else one.kind
    token = "" if before is None else f" (behind token {before})"
    place = f"{source.name}:{one.line}:{one.column}"
    return streams.one_line(f"{place}: {label}: {text}{token}: {one.fix}")


def _plain(source: _Source, one: Finding, before: int | None) -> dict[str, Any]:
    return {
        "type": "finding",
        "source": source.name,
        **dataclasses.asdict(one),
        "stable_tokens": before,
    }


def _sum_up(
    options: AnswerOptions,
    content: str,
    places: Sequence[int],
    befores: Sequence[int | None],
    standing: Standing | None,
) -> None:
    """Say how much stays: in characters, and in tokens where a model counts them."""
    from edgellm.cli import render

    n_chars = min(places, default=len(content))
    n_tokens = None
    if standing is not None:
        n_tokens = min([standing.n_tokens, *(n for n in befores if n is not None)])
    if options.json:
        render.json_line(
            {
                "type": "lint",
                "findings": len(places),
                "template_writes_time": bool(standing and standing.volatile),
                "stable_chars": n_chars,
                "chars": len(content),
                "stable_tokens": n_tokens,
                "tokens": standing.n_tokens if standing else None,
            }
        )
        return
    facts = [
        ("findings", str(len(places))),
        ("stable", f"{n_chars} of {len(content)} characters"),
    ]
    if standing is not None:
        facts.append(
            ("stable tokens", f"{n_tokens} of {standing.n_tokens}, the template's included")
        )
    if standing is not None and standing.volatile:
        facts.append(("template", "writes the time: the stable prefix ends before it"))
    render.facts(facts)
