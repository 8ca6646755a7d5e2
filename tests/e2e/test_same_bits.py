"""Snapshots off, cold and warm give the same bits: every logit of every step, on real models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edgellm.core import Message, Request, Sampling, Tier
from edgellm.engines.base import EngineSettings
from edgellm.prompt.documents import system_message
from edgellm.runtime.local import LocalSession
from edgellm.runtime.session import SessionOptions
from edgellm.store.snapshots import SnapshotStore

pytestmark = pytest.mark.model

RULES = "You answer for a workshop, in one sentence, from these notes alone. " * 9

# Longer than gemma-3-270m's window of 512 tokens, much longer, and shorter.
PROMPTS = [
    (45, "Which shelf holds the tool of rule 7? Answer in one sentence."),
    (75, "List three rules, then explain the second one to a child."),
    (12, "Was ist die Hauptstadt von Frankreich? 🙂"),
]
# The default: more than the 128 tokens of the smallest snapshot, and more than gemma's window.
N_RULES = {"smollm2": 12, "gemma3": 32}
QUESTION = PROMPTS[0][1]


def system_text(n_rules: int) -> str:
    """A system prompt of about 16 tokens a rule."""
    rules = (
        f"Rule {i}: the tool for job {i * 37 % 101} is on shelf {i * 7 % 40}."
        for i in range(n_rules)
    )
    return "You answer for a workshop. " + " ".join(rules)


@dataclass(frozen=True)
class Run:
    """What one run showed: logits digests after the boundary, the text, and the store's word."""

    answer: tuple[str, ...]
    forced: tuple[str, ...]
    text: str
    reason: str
    reused: int


def run_once(
    recorder: Any,
    path: Path,
    settings: EngineSettings,
    store: SnapshotStore | None,
    prompt: tuple[int, str],
    n: tuple[int, int],
) -> Run:
    """Open the model, answer greedily, then teacher-force fixed tokens from the same prefix."""
    n_greedy, n_forced = n
    tier = Tier.OFF if store is None else Tier.EXACT
    engine = recorder(path, settings)
    messages = (Message("system", system_text(prompt[0])), Message("user", prompt[1]))
    with LocalSession(engine, SessionOptions(snapshot=tier), store=store) as session:
        request = Request(messages, n_greedy, sampling=Sampling(temperature=0))
        done = session.generate(request)
        # The prefix is its own call on a cold run only; everything after it must be equal.
        answer = engine.digests[-(done.usage.completion_tokens or 1) :]
        engine.digests.clear()
        forced = [engine.decode([1000 + 13 * i]) is not None for i in range(n_forced)]
        assert all(forced)
        return Run(
            tuple(answer),
            tuple(engine.digests),
            done.text,
            done.snapshot.reason,
            done.usage.reused_tokens,
        )


def check(
    recorder: Any,
    path: Path,
    tmp_path: Path,
    flash: str,
    prompt: tuple[int, str],
    n: tuple[int, int],
) -> None:
    """Compare the three ways."""
    settings = EngineSettings(flash_attention=flash)
    store = SnapshotStore(tmp_path / "snapshots")
    off = run_once(recorder, path, settings, None, prompt, n)
    cold = run_once(recorder, path, settings, store, prompt, n)
    warm = run_once(recorder, path, settings, store, prompt, n)
    assert (off.reused, cold.reused) == (0, 0)
    assert cold.reason == "miss: not stored; being stored"
    assert (warm.reason, warm.reused > 128) == ("hit", True)
    assert off.answer == cold.answer == warm.answer
    assert off.forced == cold.forced == warm.forced
    assert off.text == cold.text == warm.text
    assert len(off.forced) == n[1]


@pytest.fixture(params=["smollm2", "gemma3"])
def name(request) -> str:
    """A dense model and a sliding-window model."""
    return str(request.param)


@pytest.fixture
def model(request, name) -> Path:
    """Its file."""
    path: Path = request.getfixturevalue(f"{name}_gguf")
    return path


@pytest.mark.parametrize(
    ("name", "flash"), [("smollm2", "on"), ("smollm2", "off"), ("gemma3", "on")]
)
def test_off_cold_and_warm_are_equal(recorder, name, model, tmp_path, flash):
    """One prompt, whose prefix is longer than a window: equal to the last bit.

    The window without flash attention is at length below, and among the kinds of memory.
    """
    check(recorder, model, tmp_path, flash, (N_RULES[name], QUESTION), (12, 6))


@pytest.mark.full
@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("flash", ["on", "off"])
def test_off_cold_and_warm_are_equal_at_length(recorder, model, tmp_path, flash, prompt):
    """Three prompts, 256 greedy tokens, 64 teacher-forced steps: equal to the last bit."""
    check(recorder, model, tmp_path, flash, prompt, (256, 64))


def test_window_cache_needs_the_settling(recorder, gemma3_gguf, tmp_path, monkeypatch):
    """Without the copy back at the boundary the cold run differs: the check has teeth."""
    monkeypatch.setattr(recorder, "restore_moves", property(lambda _: False))
    store = SnapshotStore(tmp_path / "snapshots")
    prompt = N_RULES["gemma3"], QUESTION
    cold, warm = (
        run_once(recorder, gemma3_gguf, EngineSettings(), store, prompt, (4, 2)) for _ in range(2)
    )
    assert warm.reason == "hit"
    assert cold.answer != warm.answer


def pieces(n_lines: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return two documents, and one that says the same: equal tokens, cut elsewhere."""
    first, second = (
        "\n".join(f"Note {i}: job {i * 41 % 97} is done on floor {i * 5 % 13}." for i in lines)
        for lines in (range(n_lines), range(40, 40 + n_lines))
    )
    return (first, second), (f"{first}\n\n{second}",)


PIECES = {"smollm2": pieces(7), "gemma3": pieces(12)}
CUT_CASES = (("smollm2", 1), ("gemma3", 0), ("gemma3", 1))


def ask_about(
    recorder: Any, path: Path, store: SnapshotStore | None, documents: tuple[str, ...]
) -> tuple[Any, tuple[str, ...], tuple[int, ...], tuple[int, ...]]:
    """Ask one question in a session of its own; return the outcome, digests, tokens and cuts."""
    tier = Tier.OFF if store is None else Tier.EXACT
    engine = recorder(path, EngineSettings(n_threads=1))
    messages = (system_message(RULES, documents), Message("user", QUESTION))
    with LocalSession(engine, SessionOptions(snapshot=tier), store=store) as session:
        done = session.generate(Request(messages, 8, sampling=Sampling(temperature=0)))
        assert session._writer is None or session._writer.settle(60)
        digests = tuple(engine.digests[-(done.usage.completion_tokens or 1) :])
        prompt = session._prompting.prompt(messages, None)
        return done, digests, prompt.tokens, prompt.cuts


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("smollm2", 0),
        *(pytest.param(*case, marks=pytest.mark.full) for case in CUT_CASES),
    ],
)
def test_equal_tokens_cut_elsewhere_do_not_share_snapshots(
    recorder, name, model, tmp_path, first: int
):
    """In both directions: only the cuts before the first that differs are used, and bits stay."""
    stored, asked = PIECES[name][first], PIECES[name][1 - first]
    store = SnapshotStore(tmp_path / "snapshots")
    _, _, tokens, cuts = ask_about(recorder, model, store, stored)
    off, expected, same_tokens, other_cuts = ask_about(recorder, model, None, asked)
    assert tokens == same_tokens
    assert (cuts[-1], False) == (other_cuts[-1], cuts == other_cuts)
    cold, cold_digests, *_ = ask_about(recorder, model, store, asked)
    n_shared = cuts[0] if cuts[0] == other_cuts[0] and cuts[0] >= 128 else 0
    assert n_shared == cold.usage.reused_tokens
    warm, warm_digests, *_ = ask_about(recorder, model, store, asked)
    assert ("hit", cuts[-1]) == (warm.snapshot.reason, warm.usage.reused_tokens)
    assert expected == cold_digests == warm_digests
    assert off.text == cold.text == warm.text
    again, *_ = ask_about(recorder, model, store, stored)
    assert "hit" == again.snapshot.reason
