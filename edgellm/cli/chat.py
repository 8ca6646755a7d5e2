"""`edgellm chat`: a conversation, turn by turn, over one loaded model."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path  # noqa: TC003  # typer reads the annotations at run time
from typing import TYPE_CHECKING, Final

import typer

from edgellm.cli.options import AnswerOptions, with_options
from edgellm.cli.run import ModelArgument  # noqa: TC001  # typer reads the annotations at run time
from edgellm.cli.variables import HISTORY_VARIABLE, history_variable
from edgellm.core import Message
from edgellm.errors import EXIT_INTERRUPTED, EdgeLLMError, UsageError

if TYPE_CHECKING:
    from edgellm.cli.answer import Status
    from edgellm.cli.lines import Lines
    from edgellm.core import Done, Tools
    from edgellm.runtime.session import Session

EXAMPLES: Final = """
edgellm chat model.gguf --system "You answer in one sentence"
edgellm chat model.gguf --system-file rules.txt --prefix-file AGENTS.md --stats
printf 'Name a river\\nAnd another\\n' | edgellm chat model.gguf
"""

HELP: Final = f'''/clear          forget the conversation, keep the system prompt
/system [TEXT]  show the system prompt, or set it and start anew
/stats          figures of the last answer
/bye            leave (so do /exit and Ctrl-D)
"""             open a block of several lines; """ again closes it
\\ at line end   go on with the next line
Ctrl-C          end the answer; at the prompt, clear the line; twice, leave
Any other text is sent, also when it starts with a slash and goes on.
What you type is kept in the file `history` of edgellm's folder, for the arrow keys and your
eyes alone; {HISTORY_VARIABLE}=off keeps nothing.
'''
_COMMAND: Final = re.compile(r"/([\w?-]+)(?:\s+(.*))?", re.DOTALL)


@with_options(AnswerOptions)
def chat(model: ModelArgument, *, options: AnswerOptions) -> None:
    """Chat with a model; each line of stdin is a turn. Type /help for the commands.

    On a terminal typed lines are kept for the arrow keys; EDGELLM_HISTORY=off keeps none.
    """
    raise typer.Exit(chat_with(model, options))


@dataclass(slots=True)
class Conversation:
    """What was said so far; a turn without an answer leaves no trace."""

    system: str | None = None
    documents: tuple[str, ...] = ()
    turns: list[Message] = field(default_factory=list)

    def asking(self, question: Message) -> tuple[Message, ...]:
        """Return the messages of a request that asks a question next."""
        from edgellm.prompt.documents import system_message

        head = system_message(self.system, self.documents)
        return (*([] if head is None else [head]), *self.turns, question)

    def anew(self, system: str | None) -> Conversation:
        """Return one that has not begun, with the same documents."""
        return Conversation(system, self.documents)

    def answered(self, question: Message, answer: str) -> None:
        """Keep a turn and its answer, whole or cut short."""
        if answer:
            self.turns += [question, Message("assistant", answer)]


class Chat:
    """The loop between a person's lines and a session."""

    def __init__(
        self,
        session: Session,
        lines: Lines,
        options: AnswerOptions,
        *,
        talk: Conversation,
        tools: Tools = (),
        status: Status,
    ) -> None:
        self._session = session
        self._lines = lines
        self._options = options
        self._status = status
        self._talk = talk
        self._tools = tools
        self._done: Done | None = None
        self._first_age_s: float | None = None

    def loop(self) -> int:
        """Answer turns until there are no more and return the exit code.

        Raises:
            EdgeLLMError: a turn failed and nobody is there to try another.
        """
        from edgellm.cli import render
        from edgellm.cli.lines import read_turn

        interrupted = False
        while True:
            try:
                text = read_turn(self._lines)
            except KeyboardInterrupt:
                if interrupted or not self._lines.interactive:
                    render.write_err("\n")
                    return EXIT_INTERRUPTED
                interrupted = True
                render.write_err("\n(Ctrl-C again leaves)\n")
                continue
            except UsageError as err:  # a line that is not UTF-8: a person types it again
                if not self._lines.interactive:
                    raise
                render.warning(str(err))
                continue
            interrupted = False
            if text is None:
                return 0
            code = self._turn(text)
            if code is not None:
                return code

    def _turn(self, text: str) -> int | None:
        if not text.strip():
            return None
        command = command_in(text)
        if command:
            return self._command(*command)
        try:
            return self._answer(text)
        except EdgeLLMError as err:
            if not self._lines.interactive:
                raise
            from edgellm.cli import render

            render.report(err, as_json=self._options.json)
            return None

    def _answer(self, text: str) -> int | None:
        from edgellm.cli import render
        from edgellm.cli.answer import FirstToken, note_cut, stream_answer
        from edgellm.cli.stats import process_age_s
        from edgellm.core import Failure

        question = self._options.question(text)
        request = self._options.request(self._talk.asking(question), self._tools)
        printer = FirstToken(render.printer(as_json=self._options.json), process_age_s)
        last = stream_answer(self._session, request, printer, self._status)
        if isinstance(last, Failure):
            return None if self._lines.interactive else last.exit
        note_cut(last, request, "/clear starts anew, or leave and give a larger --ctx")
        self._talk.answered(question, last.text)
        self._first_age_s = printer.at_s if self._done is None else None
        self._done = last
        if self._options.stats:
            self._stats()
        if last.finish_reason == "cancelled" and not self._lines.interactive:
            return EXIT_INTERRUPTED
        return None

    def _command(self, name: str, rest: str) -> int | None:
        from edgellm.cli import render

        if name in ("bye", "exit", "quit"):
            return 0
        if name in ("help", "?"):
            render.write_err(HELP)
        elif name == "clear":
            self._talk = self._talk.anew(self._talk.system)
        elif name == "system" and rest:
            self._talk = self._talk.anew(rest)
        elif name == "system":
            render.write_err(f"{self._talk.system or '(no system prompt)'}\n")
        elif name == "stats":
            self._stats()
        else:
            render.warning(f"/{name} is no command; /help lists them")
        return None

    def _stats(self) -> None:
        from edgellm.cli import render
        from edgellm.cli.stats import print_stats

        if self._done is None:
            render.write_err("(no answer yet)\n")
        else:
            print_stats(self._done, self._session.facts(), self._first_age_s)


def command_in(text: str) -> tuple[str, str] | None:
    """Return the command that a turn is and the text behind it, or None for a message.

    A word behind a slash is a command, known or mistyped, when it stands alone; only /system takes
    a text. So "/etc is a folder" and a pasted "/bin/ls ..." are messages.
    """
    found = _COMMAND.fullmatch(text.strip())
    if found is None or (found[2] and found[1] != "system"):
        return None
    return found[1], found[2] or ""


def chat_with(model: Path, options: AnswerOptions) -> int:
    """Open a model, chat, and return the exit code.

    Raises:
        EdgeLLMError: the model cannot be opened or a flag is wrong.
    """
    from edgellm.cli.answer import Status, open_model
    from edgellm.cli.lines import PipedLines, TerminalLines
    from edgellm.paths import history_file

    if sys.stdin is None:
        raise UsageError("stdin is closed", hint="give it lines, or use `edgellm run MODEL PROMPT`")
    history = history_file() if history_variable(os.environ) else None
    typed = sys.stdin.isatty()
    lines: Lines = TerminalLines(history) if typed else PipedLines(sys.stdin.buffer)
    status = Status(quiet=options.json)
    # Wrong flags and files are told before the model is read.
    talk, tools = Conversation(options.system_text(), options.documents()), options.tool_list()
    settings = options.session_options()
    options.request((options.question("?"),), tools)
    try:
        with open_model(model, settings, status) as session:
            if lines.interactive:
                status.note(f"{session.model.name}: /help lists the commands, /bye leaves")
            return Chat(session, lines, options, talk=talk, tools=tools, status=status).loop()
    finally:
        lines.close()
