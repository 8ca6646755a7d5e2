"""The guarantees by number: those about snapshots, and the table that says which test holds which."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from array import array
from pathlib import Path
from random import Random

import pytest

from edgellm.core import Done, Message, Request, Sampling, Tier
from edgellm.errors import PromptTooLong
from edgellm.runtime.opening import open_session
from edgellm.runtime.proving.tiny import write_tiny_model
from edgellm.runtime.session import SessionOptions
from edgellm.store.file.read import read_snapshot

TESTS = Path(__file__).resolve().parents[1]
TABLE = TESTS / "attacks" / "README.md"
ROW = re.compile(r"\| (G\d+) \| (\S.+\.) \| (.+) \|")
NAME = re.compile(r"`([\w/]+\.py)::(\w+)`")
NUMBERS = tuple(f"G{n}" for n in range(1, 21))
NEED_A_SERVER = ("G17",)

SYSTEM = Message("system", "You keep to yourself what you hear. " * 12)
SECRET = "the lockbox opens with 7731"
REQUEST = Request(
    (SYSTEM, Message("user", SECRET)), max_tokens=8, sampling=Sampling(temperature=0, seed=1)
)
EXACT = SessionOptions(snapshot=Tier.EXACT)
HERE = SessionOptions(snapshot=Tier.EXACT, isolation="none")  # a crash would end the tests


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The tiny model, whose tokens are the bytes of a text."""
    path = tmp_path / "tiny.gguf"
    write_tiny_model(path)
    return path


def answered(path: Path) -> Done:
    """One answer by a new session."""
    with open_session(path, HERE) as session:
        return session.generate(REQUEST)


def test_g9_a_prompt_is_read_whole_or_refused(model: Path):
    """No silent truncation: prompt tokens used = prompt tokens given, or an error."""
    n_ctx, random, seen = 256, Random(9), set()
    options = SessionOptions(snapshot=Tier.OFF, isolation="none", n_ctx=n_ctx)
    around = len("<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n") - len("<|im_start|>") * 2
    n_written = around - len("<|im_end|>") + 3  # the three marks are a token each
    with open_session(model, options) as session:
        for n_letters in (1, *(random.randrange(2, 600) for _ in range(12)), n_ctx, n_ctx - 60):
            text = "".join(random.choices("aeiou \u00e9", k=n_letters))
            n_given = len(text.encode()) + n_written
            request = Request((Message("user", text),), max_tokens=2, sampling=REQUEST.sampling)
            try:
                assert session.generate(request).usage.prompt_tokens == n_given
                seen.add("whole")
            except PromptTooLong:
                assert n_given >= n_ctx - 2
                seen.add("refused")
    assert seen == {"whole", "refused"}


def test_g13_a_snapshot_holds_no_row_beyond_its_prefix(model: Path, edgellm_home: Path):
    """A snapshot holds no KV row beyond the declared prefix: nothing of the question or the answer."""
    with open_session(model, EXACT) as session:
        assert session.warm([SYSTEM]).code == "stored"
        session.generate(REQUEST)
    for path in edgellm_home.rglob("*.ekv"):
        snapshot = read_snapshot(path)
        ids = array("i", snapshot.token_ids)
        n_tokens = snapshot.header.n_tokens
        text = bytes(one for one in ids if one < 256).decode()
        assert SYSTEM.content in text
        assert SECRET[:4] not in text
        assert n_tokens == len(ids)
        row_bytes = 2 * 64 * 2 + 4  # keys and values of one layer in f16, and the token
        assert path.stat().st_size <= n_tokens * row_bytes + 8192
    assert list(edgellm_home.rglob("*.ekv"))


def test_g14_a_snapshot_with_any_flipped_bit_is_rejected(model: Path, edgellm_home: Path):
    """A snapshot with any flipped bit is rejected, never crashes: the answer is as without it."""
    with open_session(model, HERE) as session:
        assert session.warm([SYSTEM]).code == "stored"
    whole = answered(model)
    assert whole.snapshot.code == "hit"
    (path,) = edgellm_home.rglob("*.ekv")
    good, random = path.read_bytes(), Random(14)
    for place in (9, *(random.randrange(64, len(good)) for _ in range(12))):
        bad = bytearray(good)
        bad[place] ^= 1 << random.randrange(8)
        path.write_bytes(bad)
        done = answered(model)
        assert (done.text, done.usage.reused_tokens) == (whole.text, 0), place
        assert done.snapshot.code != "hit"
        path.write_bytes(good)


def test_g14_a_snapshot_of_another_model_is_rejected(model: Path, edgellm_home: Path):
    """A snapshot of another model is rejected: one bit of a weight makes it one."""
    with open_session(model, HERE) as session:
        assert session.warm([SYSTEM]).code == "stored"
    other = bytearray(model.read_bytes())
    other[-3] ^= 1
    model.write_bytes(other)
    assert answered(model).snapshot.code != "hit"


def test_g15_no_key_store_means_no_snapshot(model: Path, edgellm_home: Path):
    """If encryption is requested and no key store exists, the write fails loudly."""
    done = subprocess.run(
        [sys.executable, "-m", "edgellm", "run", str(model), SECRET, "--system", SYSTEM.content,
         "--snapshot-encrypt", "keyring"],
        env={**os.environ, "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring"},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert (done.returncode, "keyring" in done.stderr, done.stdout) == (1, True, "")
    assert not list(edgellm_home.rglob("*.ekv"))


def rows() -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """Read the table: by number, the sentence and the tests that are named."""
    found = [ROW.fullmatch(line) for line in TABLE.read_text("utf-8").splitlines()]
    return {row[1]: (row[2], NAME.findall(row[3])) for row in found if row}


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_guarantee_has_its_row():
    """In the README of this folder; only what there is no server for yet has no test."""
    assert tuple(rows()) == NUMBERS
    without = [number for number, (_, names) in rows().items() if not names]
    assert without == [*NEED_A_SERVER]


@pytest.mark.parametrize("number", NUMBERS)
def test_the_tests_of_a_row_are_there(number: str):
    """Under these names; where a guarantee is ours to hold by now, one is named after it."""
    _, names = rows()[number]
    for path, name in names:
        assert name in functions(TESTS / path), f"{path}::{name}"
    if int(number[1:]) <= 16:
        assert any(name.startswith(f"test_{number.lower()}_") for _, name in names)


def test_no_test_of_a_guarantee_is_left_out():
    """Whatever is named after a guarantee stands in its row."""
    named = {
        (name.split("_")[1].upper(), f"{path.relative_to(TESTS)}::{name}")
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(r"def (test_g\d+_\w+)", path.read_text("utf-8"))
    }
    listed = {
        (number, f"{path}::{name}") for number, (_, names) in rows().items() for path, name in names
    }
    assert sorted(named - listed) == [], f"add it to its row in {TABLE}"
