"""Long words in splitters that the engine leaves to `std::regex`: an answer or an error, no signal."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from edgellm.engines.llamacpp import splitting
from edgellm.engines.llamacpp.vocab_only import VocabOnly
from edgellm.errors import PromptTooLong

RUNS = {
    "letters": "a",
    "ideographs": "\u4e00",
    "digits": "7",
    "blanks": " ",
    "wide blanks": "\u3000",
    "punctuation": "!",
    "symbols": "$",
    "lines": "\n",
    "marks": "\u0301",
    "separators": "a\x1c",
    "blank before wide ones": " \u3000",
    "letters and blanks": "a ",
    "sentinel": "<sentinel:7",
}
ON_REGEX = sorted({*splitting._BY_WORDS, *splitting._LINES, "no name"})
EACH = [
    pytest.param(name, marks=() if name in ("tekken", "exaone-moe") else pytest.mark.full)
    for name in ON_REGEX
]
CHILD = """
import json, resource, signal, sys
from pathlib import Path
from edgellm.engines.llamacpp.vocab_only import VocabOnly
from edgellm.errors import PromptTooLong
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
units, lengths = json.loads(sys.argv[2]), json.loads(sys.argv[3])
with VocabOnly(Path(sys.argv[1])) as vocabulary:
    for name, unit in units.items():
        for n in lengths:
            signal.setitimer(signal.ITIMER_PROF, 5.0)  # of this process: the machine may be busy
            text = (unit[:-1] + unit[-1] * n if name == "sentinel" else unit * n)[:n]
            try:
                found = bool(vocabulary.tokenize(text, special=False, add_bos=False))
            except PromptTooLong as err:
                found = str(err.message)
            print(json.dumps([name, n, found]), flush=True)
"""


@pytest.fixture
def vocabulary_with(tmp_path):
    """Write a model of a byte-level vocabulary alone, with a splitter, "no name" for none."""
    import gguf

    def make(splitter: str, *, ends: bool = True) -> Path:
        path = tmp_path / f"{splitter}.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_context_length(128)
        writer.add_embedding_length(32)
        writer.add_block_count(1)
        writer.add_feed_forward_length(32)
        writer.add_head_count(1)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_tokenizer_model("gpt2")
        if splitter != "no name":
            writer.add_tokenizer_pre(splitter)
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [chr(256 + i) for i in range(256 - len(printable))]
        writer.add_token_list([*map(chr, printable), *others, "aa", "<|end|>"])
        writer.add_token_types([*[1] * 257, 3])
        writer.add_token_merges(["a a"])
        if ends:
            writer.add_bos_token_id(257)
            writer.add_eos_token_id(257)
        writer.add_add_bos_token(True)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        return path

    return make


def in_a_child(path: Path, units: dict[str, str], lengths: list[int]) -> list[list[object]]:
    """Tokenize runs in a process of their own; a signal fails the test."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(path), json.dumps(units), json.dumps(lengths)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, (found[-1:], done.returncode, done.stderr[-300:])
    return found


@pytest.mark.parametrize("splitter", EACH)
def test_long_runs_end_in_tokens_or_an_error(vocabulary_with, splitter):
    """100,000 and 1,000,000 characters of one kind, under 4 GB of address space, within 5 s each."""
    found = in_a_child(vocabulary_with(splitter), RUNS, [100_000, 1_000_000])
    assert len(found) == 2 * len(RUNS)


@pytest.mark.parametrize("splitter", EACH)
def test_the_longest_run_that_is_let_through(vocabulary_with, splitter):
    """At the limit each splitter still answers: the stack is large enough for its words."""
    units = {name: RUNS[name] for name in ("letters", "ideographs", "punctuation")}
    found = in_a_child(vocabulary_with(splitter), units, [splitting.MAX_RUN_CHARS])
    assert [row[2] for row in found] == [True] * 3


def test_a_longer_run_is_named(vocabulary_with):
    """The error has the length, the limit and what to do; cut in words the same text passes."""
    with VocabOnly(vocabulary_with("tekken")) as vocabulary:
        with pytest.raises(PromptTooLong, match=r"run of 600000 .* 'tekken' .* 500000") as caught:
            vocabulary.tokenize("a" * 600_000, special=False, add_bos=False)
        assert caught.value.exit_code == 2
        assert caught.value.hint
        assert vocabulary.tokenize("a a " * 150_000, special=False, add_bos=False)


@pytest.mark.parametrize(
    ("splitter", "text", "run"),
    [
        ("llama-bpe", "a" * 9000, 0),
        ("tekken", "a" * 9000, 9000),
        ("tekken", "ab cd  ef", 5),
        ("tekken", "a\u3000b\x1cc", 5),
        ("tekken", " \u3000 a", 3),
        ("", "ab cd", 3),
        ("exaone-moe", "ab cd\nef", 6),
        ("of next year", "ab cd\nef", 8),
    ],
)
def test_a_run_is_never_taken_for_shorter(splitter, text, run):
    """Cuts are those that are certain: a name that is not known has none."""
    assert splitting.longest_run(splitter, text) == run


@pytest.mark.parametrize(("splitter", "unit"), [("deepseek-llm", " "), ("superbpe", "7")])
def test_runs_that_cost_their_square_are_bounded(vocabulary_with, splitter, unit):
    """Where the regex is tried again from each character, a shorter run is already too long."""
    with (
        VocabOnly(vocabulary_with(splitter)) as vocabulary,
        pytest.raises(PromptTooLong, match=r"run of 100000 characters"),
    ):
        vocabulary.tokenize(unit * 100_000 + "x", special=False, add_bos=False)


def test_other_threads_get_the_usual_stack(vocabulary_with):
    """The size for a long word is that thread's alone, and a long word gives what its parts give."""
    before = threading.stack_size()
    with VocabOnly(vocabulary_with("tekken")) as vocabulary:
        whole = vocabulary.tokenize("a" * 40_000, special=False, add_bos=False)
        part = vocabulary.tokenize("a" * 200, special=False, add_bos=False)
    assert whole == part * 200
    assert threading.stack_size() == before


def test_every_splitter_of_the_engine_is_known():
    """The three lists do not overlap."""
    assert not splitting._BY_HAND & splitting._BY_WORDS
    assert set(splitting._SLOW) <= splitting._BY_WORDS


def test_roles_that_the_file_does_not_name(vocabulary_with):
    """The library's default, token 11, is a comma: it begins nothing, ends nothing, has no spelling."""
    with VocabOnly(vocabulary_with("gpt-2", ends=False)) as vocabulary:
        found = vocabulary.describe()
        assert (found.bos_id, found.add_bos, found.bos_text, found.eos_text) == (
            None,
            False,
            "",
            "",
        )
        assert 11 not in found.end_ids
        assert vocabulary.tokenize("aa", special=False, add_bos=True) == [256]
    with VocabOnly(vocabulary_with("gpt-2")) as vocabulary:
        found = vocabulary.describe()
        assert (found.bos_text, found.eos_text) == ("<|end|>", "<|end|>")
        assert (found.bos_id, found.add_bos, 257 in found.end_ids) == (257, True, True)
        assert vocabulary.tokenize("aa", special=False, add_bos=True) == [257, 256]
