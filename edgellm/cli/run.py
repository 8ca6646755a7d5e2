"""`edgellm run`: one prompt, one answer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from edgellm.cli.inputs import one_prompt
from edgellm.cli.options import AnswerOptions, with_options
from edgellm.errors import EXIT_INTERRUPTED

EXAMPLES: Final = """
edgellm run model.gguf "Name three rivers"
edgellm run model.gguf --system-file rules.txt --prompt-file - < question.txt
edgellm run model.gguf "What changed?" --system-file rules.txt --prefix-file AGENTS.md --prefix-file log.md
edgellm run model.gguf -p "Sum up" --temperature 0 -n 200 --stats
edgellm run model.gguf "As data, please" --json
edgellm run model.gguf "Why?" --mode prefer-local --endpoint http://127.0.0.1:8080 --endpoint-model m
"""

ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="GGUF file.")]


@with_options(AnswerOptions)
def run(
    model: ModelArgument,
    prompt: Annotated[str | None, typer.Argument(metavar="PROMPT", help="What to answer.")] = None,
    *,
    prompt_flag: Annotated[
        str | None, typer.Option("--prompt", "-p", metavar="TEXT", help="The same, as a flag.")
    ] = None,
    prompt_file: Annotated[
        Path | None, typer.Option("--prompt-file", metavar="FILE", help="UTF-8 text; - is stdin.")
    ] = None,
    options: AnswerOptions,
) -> None:
    """Answer one prompt; without one, on a terminal, chat.

    The prompt comes from PROMPT, --prompt, --prompt-file or, when there is none of these, from
    stdin. The answer goes to stdout, all else to stderr.
    """
    text = one_prompt(prompt, prompt_flag, prompt_file)
    if text is None:
        from edgellm.cli.chat import chat_with

        code = chat_with(model, options)
    else:
        code = answer_once(model, text, options)
    raise typer.Exit(code)


def answer_once(model: Path, prompt: str, options: AnswerOptions) -> int:
    """Print the answer to `prompt` and return the exit code.

    Raises:
        EdgeLLMError: the model cannot be opened or the request is wrong.
    """
    from edgellm.cli import render
    from edgellm.cli.answer import FirstToken, Status, note_cut, open_model, stream_answer
    from edgellm.cli.stats import print_stats, process_age_s
    from edgellm.core import Failure

    system = options.system_message()
    messages = [] if system is None else [system]
    request = options.request((*messages, options.question(prompt)), options.tool_list())
    printer = FirstToken(render.printer(as_json=options.json), process_age_s)
    status = Status(quiet=options.json)
    with open_model(model, options.session_options(), status) as session:
        last = stream_answer(session, request, printer, status)
        if isinstance(last, Failure):
            return last.exit
        note_cut(last, request, "give a larger --ctx")
        if options.stats:
            print_stats(last, session.facts(), printer.at_s)
    return EXIT_INTERRUPTED if last.finish_reason == "cancelled" else 0
