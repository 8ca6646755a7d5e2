"""LLM and `edgellm.load`: strings in, answers out, and typed errors for what cannot be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import edgellm
from edgellm import Done, Message, Request, Sampling, Token
from edgellm.errors import (
    EdgeLLMError,
    ModelCorrupt,
    ModelError,
    ModelNotFound,
    TemplateError,
    UsageError,
)
from edgellm.runtime.llm import LLM

GREEDY = Sampling(temperature=0)
ANSWER = "Yes, so it is."
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def llm(start):
    """Make a model with a system prompt; `.engine` is the engine behind it."""

    def make(system: str | None = None, script: str = ANSWER) -> LLM:
        session, engine = start(script)
        made = LLM(session, system)
        made.engine = engine
        return made

    return make


def read(llm: LLM) -> str:
    """Return what is in memory, control tokens left out."""
    return bytes(t for t in llm.engine._memory.tokens() if t < 256).decode()


def test_a_string_is_a_question(llm) -> None:
    """The system prompt goes before it."""
    model = llm("Be brief.")
    done = model.generate("Why?", sampling=GREEDY)
    assert (ANSWER, "stop") == (done.text, done.finish_reason)
    assert f"system\nBe brief.\nuser\nWhy?\nassistant\n{ANSWER}" == read(model)


def test_without_a_system_prompt_there_is_none(llm) -> None:
    """Nothing is made up."""
    model = llm()
    model.generate("Why?", sampling=GREEDY)
    assert f"user\nWhy?\nassistant\n{ANSWER}" == read(model)


def test_documents_follow_the_system_prompt(start) -> None:
    """In its message, each parted by a blank line."""
    session, engine = start(ANSWER)
    model = LLM(session, "Be brief.", ["One.", "Two."])
    model.engine = engine
    model.generate("Why?", sampling=GREEDY)
    assert read(model).startswith("system\nBe brief.\n\nOne.\n\nTwo.\nuser\nWhy?\n")


def test_documents_are_texts(tiny_models: Path) -> None:
    """One text alone would be taken for its letters."""
    for wrong in ("One.", [1]):
        with pytest.raises(UsageError, match="documents"):
            edgellm.load(tiny_models / "tiny-llama.gguf", documents=wrong)


def test_tools_that_the_template_ignores_are_told(llm) -> None:
    """The model sees none of them, which a warning says once."""
    model = llm("Be brief.")
    said = [
        event.message
        for _ in range(2)
        for event in model.stream("Why?", sampling=GREEDY, tools=[{"name": "f"}])
        if isinstance(event, edgellm.Warn)
    ]
    assert 1 == sum("does not write tools" in message for message in said)


@pytest.mark.parametrize("kind", [list, tuple])
def test_messages_are_a_conversation(llm, kind: type) -> None:
    """The system prompt goes before them, unless they bring one."""
    said = [Message("user", "a"), Message("assistant", "b"), Message("user", "c")]
    model = llm("Be brief.")
    model.generate(kind(said), sampling=GREEDY)
    assert read(model).startswith("system\nBe brief.\nuser\na\nassistant\nb\nuser\nc\nassistant\n")
    model.generate(kind([Message("system", "Be long."), *said]), sampling=GREEDY)
    assert read(model).startswith("system\nBe long.\nuser\na\n")


def test_a_request_is_taken_as_it_is(llm) -> None:
    """It says everything itself, the system prompt included."""
    model = llm("Be brief.")
    request = Request((Message("user", "Why?"),), max_tokens=3, sampling=GREEDY)
    assert (ANSWER[:3], "length") == (
        *(model.generate(request).text, model.generate(request).finish_reason),
    )
    assert read(model).startswith("user\nWhy?\n")
    for options in ({"max_tokens": 5}, {"stop": ["a"]}, {"sampling": GREEDY}):
        with pytest.raises(UsageError, match="carries its own"):
            model.generate(request, **options)


def test_options_reach_the_answer(llm) -> None:
    """Length, stop texts and sampling."""
    model = llm()
    assert "Yes" == model.generate("Why?", max_tokens=3, sampling=GREEDY).text
    assert "Yes" == model.generate("Why?", stop=[", "], sampling=GREEDY).text
    wild = Sampling(temperature=100, seed=3, top_k=0, top_p=1, min_p=0)
    first, second = (model.generate("Why?", max_tokens=20, sampling=wild) for _ in range(2))
    assert (3, first.text) == (first.seed, second.text)
    assert first.text != ANSWER


def test_one_stop_text_is_one_stop_text(llm) -> None:
    """A string is not taken for its characters."""
    assert "Yes" == llm().generate("Why?", stop=", so", sampling=GREEDY).text


def test_streaming_gives_the_same_text(llm) -> None:
    """Token by token, then `Done`."""
    *tokens, done = llm().stream("Why?", sampling=GREEDY)
    assert {Token} == {type(event) for event in tokens}
    assert isinstance(done, Done)
    assert ANSWER == done.text == "".join(token.text for token in tokens)


@pytest.mark.parametrize(
    "prompt", [(), [], ["Why?"], [{"role": "user", "content": "Why?"}], 5, None, b"Why?"]
)
@pytest.mark.parametrize("system", [None, "Be brief."])
def test_what_is_no_prompt_is_refused(llm, prompt: Any, system: str | None) -> None:
    """In one way, at the call, and before anything is computed."""
    model = llm(system)
    with pytest.raises(UsageError):
        model.generate(prompt)
    with pytest.raises(UsageError):
        model.stream(prompt)
    assert [] == model.engine.log


def test_a_model_closes_with_its_block(llm) -> None:
    """And answers no more; what it is can still be asked."""
    with llm() as model:
        assert "scripted" == model.model.architecture
        assert "scripted" == model.facts().engine
        model.cancel()
    assert model.engine._closed
    with pytest.raises(EdgeLLMError, match="closed"):
        model.generate("Why?")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_ctx": 0}, "n_ctx must be"),
        ({"n_ctx": -5}, "n_ctx must be"),
        ({"n_ctx": "4096"}, "n_ctx must be"),
        ({"n_batch": 0}, "n_batch must be"),
        ({"n_batch": 1 << 31}, "n_batch must be"),
        ({"n_batch": None}, "n_batch must be"),
        ({"n_threads": -1}, "n_threads must be"),
        ({"n_threads": 2.0}, "n_threads must be"),
        ({"n_gpu_layers": -1}, "n_gpu_layers must be"),
        ({"n_gpu_layers": True}, "n_gpu_layers must be"),
        ({"kv_type": "q3_K"}, "q3_K"),
        ({"kv_type": None}, "None"),
        ({"flash_attention": "yes"}, "flash_attention must be one of auto, on, off"),
        ({"snapshot": "q3"}, "snapshot must be one of off, auto, exact, q8, q6, q5, q4"),
        ({"snapshot": True}, "snapshot must be one of"),
        ({"mode": "public"}, "mode must be one of offline, private"),
        ({"isolation": "process"}, "isolation must be one of worker, none"),
        ({"system": 5}, "system must be text"),
        ({"chat_template": Path("a.jinja")}, "chat_template must be text"),
    ],
)
def test_options_are_checked_by_name(
    tiny_models: Path, options: dict[str, Any], words: str
) -> None:
    """Each wrong value is named, whatever the model."""
    with pytest.raises(UsageError, match=words):
        edgellm.load(tiny_models / "tiny-llama.gguf", **options)


def test_options_are_checked_before_the_file(tmp_path: Path) -> None:
    """A slip in the call is said at once, not after a model was loaded."""
    with pytest.raises(UsageError, match="n_ctx"):
        edgellm.load(tmp_path / "missing.gguf", n_ctx=0)


def test_what_is_no_model_is_refused_by_type(tmp_path: Path) -> None:
    """Missing, a folder, a text, an empty file: each with its path and the exit code of its kind."""
    text, empty, cut = tmp_path / "a.txt", tmp_path / "empty.gguf", tmp_path / "cut.gguf"
    text.write_text("Not a model, only words. " * 10)
    empty.write_bytes(b"")
    cut.write_bytes(b"GGUF\x03\x00\x00\x00")
    for path, error, exit_code in (
        (tmp_path / "missing.gguf", ModelNotFound, 3),
        (tmp_path, ModelError, 2),
        (text, ModelError, 2),
        (empty, ModelError, 2),
        (cut, ModelCorrupt, 2),
    ):
        with pytest.raises(error) as caught:
            edgellm.load(path)
        assert exit_code == caught.value.exit_code
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("as_text", [False, True])
def test_a_tiny_model_answers(tiny_models: Path, edgellm_home: Path, as_text: bool) -> None:
    """The real engine behind the same words; a path may be text."""
    path = tiny_models / "tiny-llama.gguf"
    with edgellm.load(str(path) if as_text else path, system="Be brief. " * 40) as model:
        cold = model.generate("Why?", max_tokens=4, sampling=GREEDY)
        assert model.model.path == str(path)
    with edgellm.load(path, system="Be brief. " * 40) as model:
        warm = model.generate("Why?", max_tokens=4, sampling=GREEDY)
    assert cold.text == warm.text
    assert 1 == len(list(edgellm_home.rglob("*.ekv")))
    assert warm.usage.reused_tokens > 128


def test_a_template_that_does_not_parse_is_refused_at_once(tiny_models: Path) -> None:
    """Before the first request."""
    with pytest.raises(TemplateError):
        edgellm.load(tiny_models / "tiny-llama.gguf", chat_template="{% for %}")


def test_a_wrong_home_is_said_before_the_model_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs nothing to find out, and loading may take a minute."""
    monkeypatch.setenv("EDGELLM_HOME", "relative")
    with pytest.raises(UsageError, match="EDGELLM_HOME"):
        edgellm.load(tmp_path / "missing.gguf")


NO_ENGINE = """
import sys
import edgellm
from edgellm.errors import EdgeLLMError
try:
    edgellm.load(sys.argv[1])
except EdgeLLMError as err:
    print(type(err).__name__, err.exit_code, err)
"""


@pytest.fixture
def no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no process find the engine's library, neither the program nor its worker."""
    folder = tmp_path / "none"
    folder.mkdir()
    (folder / "llama_cpp.py").write_text("raise ModuleNotFoundError(__name__, name=__name__)\n")
    inherited = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, [inherited])]))


def test_without_an_engine_the_error_names_the_command(
    no_engine: None, tiny_models: Path, tmp_path: Path
) -> None:
    """A good model asks for the engine; what is no model is refused without one."""
    (tmp_path / "a.txt").write_text("words")
    for path, words in (
        (
            tiny_models / "tiny-llama.gguf",
            ("EngineUnavailable 1", "pip install", "llama-cpp-python"),
        ),
        (tmp_path / "missing.gguf", ("ModelNotFound 3", "missing.gguf")),
        (tmp_path / "a.txt", ("a.txt",)),
    ):
        done = subprocess.run(
            [sys.executable, "-c", NO_ENGINE, path],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        )
        for word in words:
            assert word in done.stdout


NO_ENGINE_CLI = """
import sys
from edgellm.cli.app import main
sys.exit(main())
"""


def test_without_an_engine_the_command_line_ends_with_1(no_engine: None, tiny_models: Path) -> None:
    """One line on stderr with the install command, no traceback, nothing on stdout."""
    done = subprocess.run(
        [sys.executable, "-c", NO_ENGINE_CLI, "run", tiny_models / "tiny-llama.gguf", "Why?"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert (1, "") == (done.returncode, done.stdout)
    assert "llama-cpp-python" in done.stderr
    assert "Traceback" not in done.stderr
