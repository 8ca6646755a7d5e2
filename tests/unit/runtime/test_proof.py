"""The proof of a written tokenizer, on real files, with real processes that die and hang."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edgellm.converters.gguf_head import pack_head
from edgellm.errors import VerifyFailed
from edgellm.runtime import proof, proof_child
from edgellm.runtime.conversion import ConvertOptions, convert
from edgellm.runtime.proof import prove
from edgellm.runtime.proof_texts import around_added, texts

if TYPE_CHECKING:
    from collections.abc import Callable

CHECKPOINTS = Path(__file__).resolve().parents[2] / "data" / "checkpoints"
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\\n{% endif %}"
)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[..., Path]:
    """Copy a committed checkpoint, with another template and other keys in its JSON files."""

    def make(name: str = "linear-bf16", template: str | None = None, **changes: Any) -> Path:
        folder = tmp_path / "checkpoint"
        shutil.copytree(CHECKPOINTS / name, folder)
        if template is not None:
            (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
        for stem, change in changes.items():
            change_json(folder / f"{stem}.json", **change)
        return folder

    return make


def change_json(path: Path, **keys: Any) -> None:
    value = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps(value | keys), encoding="utf-8")


def written(folder: Path) -> Path:
    """Convert without the proof."""
    out = folder.parent / "m.gguf"
    convert(ConvertOptions(folder, out, "q8_0", prove=False))
    return out


def test_a_faithful_file_is_proven(checkpoint: Callable[..., Path]) -> None:
    """At least 500 texts, four conversations, one decoded token, and nothing to warn of."""
    folder = checkpoint(template=CHATML)
    found = convert(ConvertOptions(folder, folder.parent / "m.gguf", "q8_0")).proof
    assert found.strings >= 500
    assert (found.conversations, found.decoded, found.skipped) == (4, True, "")
    assert found.warnings == ()


def test_a_gguf_is_a_source_too(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    """The engine is held against itself on the file that another was made from."""
    folder = checkpoint()
    source = written(folder)
    out = tmp_path / "again.gguf"
    found = convert(ConvertOptions(source, out, "q4_0")).proof
    assert found.strings >= 500
    assert found.decoded


def test_another_tokenizer_is_no_match_and_leaves_nothing(
    checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    """Ids that the source's library gives otherwise end a conversion with exit 5, and no file."""
    folder = checkpoint()
    path = folder / "tokenizer.json"
    value = json.loads(path.read_text(encoding="utf-8"))
    row = next(row for row in value["added_tokens"] if row["content"] == "Marrow Island")
    row["id"] += 5  # the library gives tokens it is told of the next free id
    value["model"]["vocab"].pop("Marrow Island", None)
    path.write_text(json.dumps(value), encoding="utf-8")
    out = tmp_path / "m.gguf"
    with pytest.raises(VerifyFailed, match="differs from the source's in") as found:
        convert(ConvertOptions(folder, out, "q8_0"))
    assert found.value.exit_code == 5
    assert found.value.path == str(out)
    assert [path.name for path in tmp_path.iterdir() if "m.gguf" in path.name] == []


def test_templates_are_rendered_with_each_sides_tokens(checkpoint: Callable[..., Path]) -> None:
    """The text that stands for `bos_token` must be the checkpoint's own."""
    folder = checkpoint(template="{{ bos_token }}" + CHATML)
    out = written(folder)
    assert prove(out, folder).conversations == 4
    change_json(folder / "tokenizer_config.json", bos_token="<|im_start|>")
    with pytest.raises(VerifyFailed, match=r"the chat template gives '<\|im_start\|>"):
        prove(out, folder)
    (folder / "chat_template.jinja").write_text("other", encoding="utf-8")
    with pytest.raises(VerifyFailed, match="the chat template in the file is not"):
        prove(out, folder)


def test_an_answer_that_nothing_ends_is_said_aloud(checkpoint: Callable[..., Path]) -> None:
    """A template that writes no end behind an answer, or fails, is a warning."""
    folder = checkpoint(
        template="{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    )
    (warning,) = prove(written(folder), folder).warnings
    assert "stops at nothing that the chat template writes behind an answer: '\\n'" in warning
    shutil.rmtree(folder)
    (folder.parent / "m.gguf").unlink()
    folder = checkpoint(template="{{ raise_exception('no') }}")
    (warning,) = prove(written(folder), folder).warnings
    assert "fails on a plain conversation" in warning


def test_an_engine_that_aborts_is_an_error_that_names_the_signal(
    checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    """llama.cpp ends its process on a vocabulary that says a text twice; ours goes on."""
    twice = tmp_path / "twice.gguf"
    values: dict[str, Any] = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["a", "a"],
        "tokenizer.ggml.token_type": [1, 1],
        "tokenizer.ggml.merges": [],
    }
    twice.write_bytes(pack_head(values, []))
    with pytest.raises(VerifyFailed, match="opening the written file: the engine died of SIGABRT"):
        prove(twice, checkpoint())


LOADING = {"stage": proof.DECODING, "strings": 700, "conversations": 4, "decoded": False}
DYING = f"""
import os, signal, sys
print({json.dumps(LOADING | {"warnings": ["odd"]})!r}, flush=True)
"""


@pytest.mark.parametrize(
    "death",
    [
        "os.kill(os.getpid(), signal.SIGKILL)",
        "raise MemoryError",
        "print('what():  std::bad_alloc', file=sys.stderr, flush=True); os.abort()",
    ],
)
def test_a_process_that_memory_ended_throws_no_file_away(
    checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, death: str
) -> None:
    """Killed while the weights are loaded: the file stays, with what was proven till then."""
    monkeypatch.setattr(proof, "_START", DYING + death)
    folder = checkpoint()
    out = folder.parent / "m.gguf"
    result = convert(ConvertOptions(folder, out, "q8_0"))
    assert out.is_file()
    found = result.proof
    assert (found.strings, found.conversations, found.decoded) == (700, 4, False)
    odd, warning = found.warnings
    assert odd == "odd"
    assert warning.startswith("not proven that the engine runs the file: ")
    assert warning in result.warnings


@pytest.mark.parametrize("name", ["SIGABRT", "SIGSEGV"])
def test_an_engine_that_dies_of_the_weights_is_an_error(
    checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Neither an abort nor a bad access speaks of memory that is short."""
    monkeypatch.setattr(proof, "_START", f"{DYING}os.kill(os.getpid(), signal.{name})")
    folder = checkpoint()
    with pytest.raises(VerifyFailed, match=f"decoding one token: the engine died of {name}"):
        convert(ConvertOptions(folder, folder.parent / "m.gguf", "q8_0"))
    assert not (folder.parent / "m.gguf").exists()


def test_a_kill_before_the_weights_is_an_error(
    checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokenizer was not compared by then."""
    stage = DYING.replace(proof.DECODING, "comparing tokens")
    monkeypatch.setattr(proof, "_START", f"{stage}os.kill(os.getpid(), signal.SIGKILL)")
    folder = checkpoint()
    with pytest.raises(VerifyFailed, match="comparing tokens: the engine died of SIGKILL"):
        convert(ConvertOptions(folder, folder.parent / "m.gguf", "q8_0"))


def test_where_memory_is_short_the_weights_are_not_loaded(
    checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts and templates are compared all the same, and the missing step is told with numbers."""
    folder = checkpoint()
    out = written(folder)
    assert prove(out, folder).decoded
    n_bytes = out.stat().st_size
    monkeypatch.setattr(proof, "available_bytes", lambda: int(1.3 * n_bytes) - 1)
    found = prove(out, folder)
    assert found.strings >= 500
    assert not found.decoded
    assert "of memory should be free for it" in found.warnings[-1]
    head_bytes = n_bytes // 2
    without = proof.peak_memory_bytes(head_bytes, n_bytes)
    monkeypatch.setattr(proof, "available_bytes", lambda: int(1.3 * n_bytes))
    assert proof.peak_memory_bytes(head_bytes, n_bytes) == without + n_bytes


def test_a_source_that_runs_no_better_is_no_fault_of_the_file(
    checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a GGUF that the engine runs speaks against the one made from it."""
    folder = checkpoint()
    file = written(folder)

    def decode(path: Path, what: str = "the file") -> str:
        answer = answers[path]
        if answer.startswith("fails"):
            raise VerifyFailed(f"{what} {answer}")
        return answer

    monkeypatch.setattr(proof_child, "decode_one", decode)
    other = folder.parent / "other.gguf"
    answers = {file: "", other: ""}
    assert proof_child._decode_problem(file, other) == ""
    answers = {file: "fails", other: "fails too"}
    assert "the source fails too" in proof_child._decode_problem(file, other)
    answers = {file: "fails", other: "no memory"}
    assert "could not be tried: no memory" in proof_child._decode_problem(file, other)
    answers = {file: "fails", other: ""}
    with pytest.raises(VerifyFailed, match="runs the source, and not the written file"):
        proof_child._decode_problem(file, other)
    answers |= {folder: ""}
    with pytest.raises(VerifyFailed, match=r"^the file fails$"):
        proof_child._decode_problem(file, folder)


def test_a_file_the_engine_refuses_is_an_error(checkpoint: Callable[..., Path]) -> None:
    """Its own reason is given."""
    folder = checkpoint()
    out = folder.parent / "bad.gguf"
    out.write_bytes(pack_head({"general.architecture": "llama", "tokenizer.ggml.model": "x"}, []))
    with pytest.raises(VerifyFailed, match="cannot load the vocabulary"):
        prove(out, folder)


def test_what_never_ends_is_killed(checkpoint: Callable[..., Path]) -> None:
    """The process is given a time, and the stage it did not leave is named."""
    folder = checkpoint()
    with pytest.raises(VerifyFailed, match=r"starting did not end within 0 s"):
        prove(written(folder), folder, time_limit_s=0.01)


def test_a_source_its_own_library_refuses_is_an_error(checkpoint: Callable[..., Path]) -> None:
    """Whatever that library raises ends its process, and the last line of it is shown."""
    folder = checkpoint()
    out = written(folder)
    change_json(folder / "tokenizer.json", pre_tokenizer={"type": "Quokka"})
    with pytest.raises(
        VerifyFailed, match="opening the source's tokenizer: the process ended with 1"
    ):
        prove(out, folder)


def test_without_an_engine_the_conversion_goes_on(
    checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said that nothing was proven."""
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    folder = checkpoint()
    result = convert(ConvertOptions(folder, folder.parent / "m.gguf", "q8_0"))
    assert "tokenizer not proven: the llama.cpp engine is not installed" in result.warnings
    assert (result.proof.strings, result.proof.skipped != "") == (0, True)


def test_a_module_in_the_working_directory_is_not_run(
    checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint's folder is a stranger's: the process looks where its parent does."""
    folder = checkpoint()
    out = written(folder)
    for name in ("edgellm", "json", "tokenizers"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(7)", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", ".")])
    assert prove(out, folder).strings >= 500


def test_what_a_dying_library_prints_is_no_answer() -> None:
    """Lines that are no objects are passed over."""
    assert proof._lines(b'noise\n[1]\n{"stage": "x"}\n\xff\n') == [{}, {"stage": "x"}]
    assert proof._lines(None) == [{}]


def test_the_texts_are_the_same_each_time_and_valid() -> None:
    """One seed gives one list; no NUL, nothing that UTF-8 cannot hold."""
    pieces = ["ab", " c", "é"]
    found = list(texts(400, pieces, seed=4))
    assert found == list(texts(400, pieces, seed=4))
    assert found != list(texts(400, pieces, seed=5))
    assert not any("\0" in text for text in found)
    assert all(text.encode() for text in found)
    added = [f"<|{i}|>" for i in range(300)]
    around = list(around_added(added))
    assert set(added) == {f"<|{part}" for text in around[:5] for part in text.split("<|")[1:]}
