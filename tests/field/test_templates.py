"""Chat templates of the field samples, on the control model: from the command line and in a session."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from edgellm.core import Message, Request, Sampling, Warn
from edgellm.engines.base import EngineSettings
from edgellm.engines.llamacpp import LlamaCppEngine
from edgellm.errors import EXIT_BAD_INPUT, TemplateError
from edgellm.formats.gguf import read_header
from edgellm.prompt.template import make_prompter
from edgellm.runtime.local import LocalSession
from edgellm.runtime.session import SessionOptions
from edgellm.store.snapshots import SnapshotStore

TURNS = (
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n"
    "<|im_start|>user\nand then?<|im_end|>\n"
)
OPENING = "<|im_start|>assistant\n"
# What two turns become, on a Monday in May.
RENDERS = {
    "00_chatml_ok.jinja": f"{TURNS}{OPENING}",
    "01_strftime_day.jinja": f"Today: 18 May 2026\n{TURNS}{OPENING}",
    "02_strftime_seconds.jinja": f"Now: 2026-05-18 09:30:12\n{TURNS}{OPENING}",
    "04_tojson_tools.jinja": f"{TURNS}{OPENING}",
    "05_loopcontrols.jinja": "hiyesand then?",
    "06_generation_tag.jinja": "hiyesand then?",
    "07_bos_in_template.jinja": f"<s>{TURNS}{OPENING}",
    "08_no_generation_prompt.jinja": TURNS,
    "19_named_list.json": f"{TURNS}{OPENING}",
}
REFUSED = {
    "09_syntax_error.jinja": "unexpected '}'",
    "10_unknown_filter.jinja": "No filter named 'shout'",
    "11_ssti_mro.jinja": "'__class__' is not allowed",
    "12_ssti_cycler_os.jinja": "'__init__' is not allowed",
    "13_ssti_lipsum.jinja": "'lipsum' is undefined",
    "14_ssti_format_string.jinja": "may not reach into a value",
    "15_ssti_include_file.jinja": "include, import and extends are not allowed",
    "16_mutates_messages.jinja": "'append' is not allowed",
    "17_cpu_bomb.jinja": "too much work",
    "18_memory_bomb.jinja": "too much text",
}
MAX_CPU_S = 2.0
MAX_CONVERT_CPU_S = 5.0
MAX_BYTES = 200 << 20
BOS = 1  # of the control model
CONTROL = "gguf/00_ok_control.gguf"
MONDAY = datetime(2026, 5, 18, 9, 30, 12)  # noqa: DTZ001
SYSTEM = "You answer in one sentence. " * 4

Open = Callable[..., LocalSession]
Call = Callable[..., Any]


@pytest.fixture
def open_control(field_samples: Path, tmp_path: Path) -> Iterator[Open]:
    """Open the control model with a template of the samples, a clock and a store."""
    opened: list[LocalSession] = []

    def open_one(
        name: str,
        clock: Callable[[], datetime] = lambda: MONDAY,
        *,
        stores: bool = True,
        lead: str = "",
    ) -> LocalSession:
        template = source_of(field_samples, name).replace("Today: ", f"{lead}Today: ")
        session = LocalSession(
            LlamaCppEngine(field_samples / CONTROL, EngineSettings(n_threads=1)),
            SessionOptions(n_ctx=1024, chat_template=template),
            store=SnapshotStore(tmp_path / "store") if stores else None,
            clock=clock,
            min_snapshot_tokens=4,
        )
        opened.append(session)
        return session

    yield open_one
    for session in opened:
        session.close()


def source_of(field_samples: Path, name: str) -> str:
    return (field_samples / "templates" / name).read_text("utf-8")


def ask(*turns: str, system: str | None = SYSTEM) -> Request:
    roles = ("user", "assistant")
    messages = [Message(roles[n % 2], text) for n, text in enumerate(turns)]
    if system is not None:
        messages.insert(0, Message("system", system))
    return Request(tuple(messages), max_tokens=2, sampling=Sampling(temperature=0))


def memory_of(session: LocalSession, request: Request) -> tuple[int, ...]:
    """Answer a request and return the tokens that were its prompt."""
    done = session.generate(request)
    live = session.live
    assert live is not None
    return live.tokens[: done.usage.prompt_tokens]


def text_of(session: LocalSession, tokens: tuple[int, ...]) -> str:
    pieces = b"".join(map(session.engine.vocab().piece, tokens))
    return pieces.decode().replace("\N{LOWER ONE EIGHTH BLOCK}", " ")


@pytest.mark.parametrize("name", RENDERS)
def test_a_template_renders_this(field_samples: Path, name: str) -> None:
    """Letter for letter, with the clock it is given; loops are left and begun again where it says."""
    prompter = make_prompter(source_of(field_samples, name), bos_text="<s>", eos_text="</s>")
    chat = [Message("user", "hi"), Message("assistant", "yes"), Message("user", "and then?")]
    assert prompter.render(chat, now=MONDAY) == RENDERS[name]
    if name == "05_loopcontrols.jinja":
        longer = [Message("system", "no"), *chat, *chat]
        assert prompter.render(longer, now=MONDAY) == "hiyesand then?"


@pytest.mark.parametrize("name", RENDERS)
def test_the_model_reads_what_was_rendered(open_control: Open, name: str) -> None:
    """Control tokens have no text of their own; all else stands in the memory as it was rendered.

    But for blanks: this vocabulary puts one in front of each text between control tokens.
    """
    session = open_control(name, stores=False)
    tokens = memory_of(session, ask("hi", "yes", "and then?", system=None))
    rendered = RENDERS[name]
    for control in ("<s>", "<|im_start|>", "<|im_end|>"):
        rendered = rendered.replace(control, "")
    assert text_of(session, tokens).replace(" ", "") == rendered.replace(" ", "")


@pytest.mark.parametrize("name", RENDERS)
def test_a_template_that_renders_chats(run_edgellm, field_samples: Path, name: str) -> None:
    """Two turns are answered; a template without the opening of answers is told of once."""
    template = field_samples / "templates" / name
    args = ("chat", field_samples / CONTROL, "--chat-template", template, "-n", 2, "--ctx", 1024)
    done = run_edgellm(
        *args, "--json", "--snapshot", "off", "--threads", 1, stdin=b"hi\nand then?\n"
    )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert (0, 2) == (done.returncode, sum(event["type"] == "done" for event in events))
    warned = [e["message"] for e in events if e["type"] == "warning"]
    ignored = [message for message in warned if "ignores add_generation_prompt" in message]
    assert (name == "08_no_generation_prompt.jinja") == (len(ignored) == 1)


@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_or_broken_template_is_one_line(
    run_edgellm, field_samples: Path, make_control: Callable[..., Path], name: str
) -> None:
    """From the model's own file: exit 2 with the template's line, and nothing of it ran."""
    model = make_control(source_of(field_samples, name))
    done = run_edgellm("run", model, "-p", "hi", "-n", 2)
    assert (EXIT_BAD_INPUT, "") == (done.returncode, done.stdout.strip())
    said = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert 1 == len(said)
    assert "chat template, line 1: " in said[0]
    assert REFUSED[name] in said[0]
    assert "0x" not in done.stderr


@pytest.mark.parametrize("name", [name for name in REFUSED if name >= "11"])
def test_a_hostile_template_is_converted_as_text(
    call_edgellm: Call, field_samples: Path, tmp_path: Path, name: str
) -> None:
    """It is carried over and told of once; neither `convert` nor `info` lets it do anything.

    All the work there is, the process of the proof included, is less than five seconds.
    """
    folder, out = tmp_path / "checkpoint", tmp_path / "model.gguf"
    shutil.copytree(field_samples / "hf" / "00_ok_control", folder)
    source = source_of(field_samples, name)
    (folder / "chat_template.jinja").write_text(source, "utf-8")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = call_edgellm("convert", folder, "-o", out, "--type", "f16", "--json")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    children_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert done.returncode == 0, done.stderr
    assert done.cpu_s + children_s < MAX_CONVERT_CPU_S
    (warning,) = json.loads(done.stdout.splitlines()[-1])["warnings"]
    assert warning.startswith("the chat template fails on a plain conversation: ")
    assert REFUSED[name] in warning
    assert done.stderr.count("warning: ") == 1
    shown = call_edgellm("info", out, "--json")
    assert (0, source) == (shown.returncode, json.loads(shown.stdout)["template"])
    assert shown.cpu_s < 1


def test_a_template_s_own_refusal_reaches_the_user(run_edgellm, field_samples: Path) -> None:
    """In its words, without advice to replace it."""
    template = field_samples / "templates" / "03_raise_exception.jinja"
    args = ("run", field_samples / CONTROL, "-p", "hi", "--chat-template", template)
    done = run_edgellm(*args, "--system", "be brief")
    assert (2, "error: chat template, line 1: roles must alternate") == (
        done.returncode,
        done.stderr.strip(),
    )
    assert 0 == run_edgellm(*args, "-n", 2).returncode


CHILD = """
import json, sys, time
from edgellm.core import Message
from edgellm.errors import TemplateError
from edgellm.formats.gguf import read_header
from edgellm.prompt.template import make_prompter
from pathlib import Path
slowest_s = 0.0
for source in json.load(sys.stdin):
    started_s = time.process_time()
    try:
        make_prompter(source).render([Message("user", "hi")])
    except TemplateError:
        slowest_s = max(slowest_s, time.process_time() - started_s)
peak = next(line for line in Path("/proc/self/status").open() if line.startswith("VmHWM:"))
print(slowest_s, peak.split()[1])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory in KiB, as on Linux")
def test_bombs_are_stopped_early(field_samples: Path) -> None:
    """Within two seconds of work and 200 MB, all of them in one process."""
    sources = [source_of(field_samples, name) for name in REFUSED]
    child = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=json.dumps(sources),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    slowest_s, peak_kib = map(float, child.stdout.split())
    assert slowest_s < MAX_CPU_S
    assert peak_kib * 1024 < MAX_BYTES


def test_the_caller_s_messages_are_not_changed(field_samples: Path) -> None:
    """By a template that tries to add one."""
    messages = [Message("user", "hi")]
    with pytest.raises(TemplateError):
        make_prompter(source_of(field_samples, "16_mutates_messages.jinja")).render(messages)
    assert [Message("user", "hi")] == messages


def test_a_template_that_writes_the_beginning_gets_no_other(open_control: Open) -> None:
    """One beginning-of-sequence, as without it."""
    for name in ("00_chatml_ok.jinja", "07_bos_in_template.jinja"):
        tokens = memory_of(open_control(name), ask("hi"))
        assert (BOS, 1) == (tokens[0], tokens.count(BOS))


def test_of_named_templates_the_default_is_used(open_control: Open) -> None:
    """No tools can be given yet, so the one for tools has no use."""
    session = open_control("19_named_list.json")
    plain = open_control("00_chatml_ok.jinja")
    assert memory_of(plain, ask("hi")) == memory_of(session, ask("hi"))


def test_a_list_of_named_templates_is_converted(
    run_edgellm, field_samples: Path, tmp_path: Path
) -> None:
    """In a checkpoint the default becomes the model's own template; the rest keep their names."""
    folder, out = tmp_path / "checkpoint", tmp_path / "model.gguf"
    shutil.copytree(field_samples / "hf" / "00_ok_control", folder)
    config = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    config["chat_template"] = json.loads(source_of(field_samples, "19_named_list.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    assert 0 == run_edgellm("convert", folder, "-o", out, "--type", "f16").returncode
    metadata = read_header(out).metadata
    assert source_of(field_samples, "00_chatml_ok.jinja") == metadata["tokenizer.chat_template"]
    assert str(metadata["tokenizer.chat_template.tool_use"]).startswith("TOOLS")
    assert 0 == run_edgellm("run", out, "-p", "hi", "-n", 2).returncode


def test_json_of_a_template_is_not_escaped(field_samples: Path) -> None:
    """Hangul and `<` stay as they are."""
    source = source_of(field_samples, "04_tojson_tools.jinja")
    said = make_prompter(
        source.replace("tools |", "messages |").replace("if tools", "if messages")
    ).render([Message("user", "날씨 <b>")])
    assert '"content": "날씨 <b>"' in said


LEAD = "A long introduction, the same every day. "


@pytest.mark.parametrize("lead", ["", LEAD])
def test_a_day_in_a_template_keeps_what_stands_before_it(open_control: Open, lead: str) -> None:
    """A snapshot of yesterday is used up to the date alone, and the user is told how far.

    Before the date of the sample are fewer tokens than are worth a file, so that nothing is reused.
    """
    yesterday = open_control("01_strftime_day.jinja", lead=lead)
    events = list(yesterday.stream(ask("hi")))
    said = [event.message for event in events if isinstance(event, Warn)]
    assert any("writes the time into the system prompt" in message for message in said)
    yesterday.close()
    today = open_control("01_strftime_day.jinja", lambda: MONDAY + timedelta(days=1), lead=lead)
    done = today.generate(ask("hi"))  # the first request here: it meets the file of yesterday
    live = today.live
    assert live is not None
    assert f"{lead}Today: 19 May 2026" in text_of(today, live.tokens)
    before_the_day = len(f" {lead}Today: ".replace(" ", "\u2581").encode()) + len([BOS])
    if lead:
        assert 0 < done.usage.reused_tokens <= before_the_day
        assert done.snapshot.key
    else:
        assert (0, "") == (done.usage.reused_tokens, done.snapshot.key)
        assert "tokens are fewer than" in done.snapshot.reason


def test_a_clock_is_put_in_once_a_conversation(open_control: Open) -> None:
    """Turns go on with the time the conversation began at; a new one gets its own."""
    times = iter(MONDAY + timedelta(seconds=n) for n in range(100))
    session = open_control("02_strftime_seconds.jinja", lambda: next(times))
    first = session.generate(ask("hi"))
    held = session.engine.position
    tokens = memory_of(session, ask("hi", first.text, "and then?"))
    assert "Now: 2026-05-18 09:30:12" in text_of(session, tokens)
    later = session.generate(ask("hi", first.text, "and then?", "so", "and now?"))
    assert later.usage.reused_tokens >= held - 1
    tokens = memory_of(session, ask("something else"))
    assert "Now: 2026-05-18 09:30:13" in text_of(session, tokens)


@pytest.mark.parametrize("name", ["01_strftime_day.jinja", "02_strftime_seconds.jinja"])
def test_a_stale_clock_is_never_reused(open_control: Open, name: str) -> None:
    """A warm run at another time reads what a cold one reads."""
    warm = open_control(name)
    warm.generate(ask("hi"))
    warm.close()
    later = MONDAY + timedelta(days=1, seconds=1)
    again, cold = (open_control(name, lambda: later, stores=stores) for stores in (True, False))
    answers = [session.generate(ask("hi")).text for session in (again, cold)]
    assert answers[0] == answers[1]
    assert again.live == cold.live
