"""`--snapshot auto` on real engines: the same bits, several documents, measured loss, and what is reused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from edgellm.core import Done, Message, Request, Sampling, Tier, Warn
from edgellm.engines.base import EngineSettings
from edgellm.runtime.local import LocalSession
from edgellm.runtime.session import SessionOptions
from edgellm.store.snapshots import SnapshotStore

pytestmark = pytest.mark.model

AUTO, OFF = SessionOptions(n_ctx=2048), SessionOptions(n_ctx=2048, snapshot=Tier.OFF)
SETTINGS = EngineSettings(n_threads=1)
N_REPLAYED, N_ROUNDS = 100, 10
KINDS = (
    *("llama", "qwen3moe", "deepseek2", "gemma3", "mamba", "mamba2", "rwkv7", "lfm2", "lfm2-swa"),
    *("granitehybrid", "falcon-h1", "jamba", "qwen35", "qwen3next", "deepseek32", "minimax-m3"),
    *("dots3note", "qwen4exp", "deepseek4"),
)


def rules(name: str, n: int) -> str:
    """A document of about 16 tokens a rule."""
    return f"# {name}\n" + " ".join(
        f"Rule {i}: the tool for job {i * 37 % 101} is on shelf {i * 7 % 40}." for i in range(n)
    )


def asked(question: str, *documents: str, n: int = 4) -> Request:
    """Ask greedily behind documents, each of which may stay while the next ones change."""
    text, marks = "", []
    for document in documents:
        text += ("\n\n" if text else "") + document
        marks.append(len(text))
    system = Message("system", text, tuple(marks))
    return Request((system, Message("user", question)), n, sampling=Sampling(temperature=0))


def run(session: LocalSession, request: Request) -> tuple[Done, tuple[str, ...], tuple[int, ...]]:
    """Answer; return the logits of the answer and the lengths of all decode calls."""
    engine: Any = session.engine
    engine.digests.clear()
    lengths: list[int] = []
    decode = engine.decode

    def counted(tokens: Sequence[int], logits: Any = "last") -> Any:
        lengths.append(len(tokens))
        return decode(tokens, logits)

    engine.decode = counted
    done = session.generate(request)
    del engine.decode
    assert session._writer is None or session._writer.settle(60)
    n = done.usage.completion_tokens or 1
    return done, tuple(engine.digests[-n:]), tuple(lengths)


def fresh(
    recorder: Any, model: Path, request: Request, store: SnapshotStore | None, options: Any = AUTO
) -> tuple[Done, tuple[str, ...], tuple[int, ...]]:
    """Answer in a session of its own."""
    with LocalSession(recorder(model, SETTINGS), options, store=store) as session:
        return run(session, request)


@pytest.fixture(
    params=[
        pytest.param("smollm2", marks=pytest.mark.full),
        *("tiny-llama", "tiny-gemma3", "tiny-lfm2", "tiny-mamba2"),
    ]
)
def model(request) -> Path:
    """A real model, and tiny ones with a dense, a window, a hybrid and a recurrent memory."""
    if request.param == "smollm2":
        path: Path = request.getfixturevalue("smollm2_gguf")
        return path
    return request.getfixturevalue("tiny_models") / f"{request.param}.gguf"


@pytest.fixture(params=["tiny-gemma3", "tiny-lfm2"])
def tiny(request, tiny_models: Path) -> Path:
    """A window and a hybrid memory: neither can be cut back."""
    return tiny_models / f"{request.param}.gguf"


@pytest.fixture(autouse=True)
def _worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tiny models read slowly: else nothing of them is worth a file."""
    monkeypatch.setattr("edgellm.runtime.speeds.Speeds.prompt_tokens_per_s", 1.0)


def test_documents_are_reused_up_to_the_first_that_changed(recorder, model, tmp_path) -> None:
    """Off, cold and warm give the same logits, whatever of the documents is on the disk."""
    store = SnapshotStore(tmp_path / "store")
    first, second, other = rules("A", 12), rules("B", 6), rules("C", 6)
    question = "Which shelf holds the tool of rule 3?"
    off = fresh(recorder, model, asked(question, first, second), None, OFF)
    cold = fresh(recorder, model, asked(question, first, second), store)
    warm = fresh(recorder, model, asked(question, first, second), store)
    assert off[1] == cold[1] == warm[1]
    assert ("off", "not_stored", "hit") == tuple(run[0].snapshot.code for run in (off, cold, warm))
    assert off[2] == cold[2]
    assert 3 <= len(cold[2]) - cold[0].usage.completion_tokens + 1
    changed = fresh(recorder, model, asked(question, first, other), store)
    assert 128 < changed[0].usage.reused_tokens < warm[0].usage.reused_tokens
    assert f"hit: {changed[0].usage.reused_tokens} of " in changed[0].snapshot.reason
    assert fresh(recorder, model, asked(question, first, other), None, OFF)[1] == changed[1]
    for again in ((first, other), (first, second)):
        assert "hit" == fresh(recorder, model, asked(question, *again), store)[0].snapshot.reason


def test_what_is_said_to_be_reused_was_not_decoded(recorder, model, tmp_path) -> None:
    """F-PC-01: the count shown is what decoding skipped, and the text is that of a cold run."""
    store = SnapshotStore(tmp_path / "store")
    request = asked("Who?", rules("A", 12))
    texts = set()
    for _ in range(2):
        done, _, lengths = fresh(recorder, model, request, store)
        n_answer = sum(lengths) - done.usage.prompt_tokens + done.usage.reused_tokens
        assert 0 <= n_answer <= done.usage.completion_tokens
        texts.add(done.text)
    assert 128 < done.usage.reused_tokens
    assert 1 == len(texts)


@pytest.mark.parametrize("n", [5, pytest.param(N_REPLAYED, marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", KINDS)
def test_many_questions_behind_one_prompt(recorder, tiny_models, kind, n, tmp_path) -> None:
    """G12: each finds the prefix, all of it, though most of these memories cannot be cut back."""
    tiny = tiny_models / f"tiny-{kind}.gguf"
    store = SnapshotStore(tmp_path / "store")
    system = rules("A", 12)
    with LocalSession(recorder(tiny, SETTINGS), AUTO, store=store) as session:
        first, _, _ = run(session, asked("Who?", system))
        prompt = session._prompting.prompt(asked("Who?", system).messages, None)
        found = []
        for number in range(n):
            done, _, _ = run(session, asked(f"Question {number * 7919 % 1000}?", system, n=1))
            found.append((done.snapshot.code, done.usage.reused_tokens))
    assert "not_stored" == first.snapshot.code
    assert {code for code, _ in found} <= {"hit", "live"}  # a window may still hold enough
    assert {prompt.n_prefix} == {n_reused for _, n_reused in found}


def test_restoring_over_a_used_context_mixes_nothing(recorder, tiny, tmp_path) -> None:
    """F-PC-10: B, then A from the disk, ten times: every round is that of a fresh session."""
    store = SnapshotStore(tmp_path / "store")
    one, other = asked("Who?", rules("A", 12)), asked("What?", rules("B", 10))
    expected = [fresh(recorder, tiny, request, store)[1] for request in (one, other)]
    with LocalSession(recorder(tiny, SETTINGS), AUTO, store=store) as session:
        for _ in range(N_ROUNDS):
            for request, digests in zip((other, one), reversed(expected), strict=True):
                done, found, _ = run(session, request)
                assert ("hit", digests) == (done.snapshot.code, found)


@pytest.mark.parametrize("name", ["tiny-llama", pytest.param("smollm2", marks=pytest.mark.full)])
def test_loss_that_is_allowed_is_measured_and_used(recorder, request, tmp_path, name: str) -> None:
    """Once a model: the tier of the fewest bytes that fits; cold and warm are alike to the bit."""
    if name == "smollm2":
        path: Path = request.getfixturevalue("smollm2_gguf")
    else:
        path = request.getfixturevalue("tiny_models") / f"{name}.gguf"
    allowed = SessionOptions(n_ctx=2048, snapshot_loss=0.5)
    store = SnapshotStore(tmp_path / "store")
    asking = asked("Which shelf?", rules("A", 12))
    runs = []
    for _ in range(2):
        with LocalSession(recorder(path, SETTINGS), allowed, store=store) as session:
            engine: Any = session.engine
            events = list(session.stream(asking))
            assert isinstance(events[-1], Done)
            n = events[-1].usage.completion_tokens
            runs.append((events[-1], engine.digests[-n:]))
            told = [event.message for event in events if isinstance(event, Warn)]
        assert (len(runs) == 1) == any("measured once" in message for message in told)
    (cold, cold_digests), (warm, warm_digests) = runs
    assert ("q4", "q4", "hit") == (cold.snapshot.tier, warm.snapshot.tier, warm.snapshot.code)
    assert cold_digests == warm_digests
