"""Contexts that were made smaller for one answer: what they hold, and how they grow for the next."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from edgellm.core import Request, Switch
from edgellm.engines.base import EngineSettings
from edgellm.errors import PromptTooLong
from edgellm.runtime.supervising.turn import Turn

WHOLE = "The answer comes in ten little words , so it is . "
NARROW = EngineSettings(n_batch=64, kv_type="q8_0")  # so that the context is the first rung


def bounded(kit: Any, max_tokens: int) -> Request:
    """The question, with an answer of so many tokens at most."""
    return dataclasses.replace(kit.ASKED, max_tokens=max_tokens)


@pytest.fixture
def smaller(stage, kit) -> Any:
    """A supervisor whose memory ran out once, and its workers; a third one lives as it is told."""
    lives = [kit.Life(5, kit.oom()), kit.Life(), kit.Life()]
    supervisor, workers = stage.open(*lives, engine=NARROW)
    seen = kit.see(supervisor, bounded(kit, 100))
    assert seen.text == seen.done.text == WHOLE
    assert "a context of 256 tokens in place of 2048" in seen.of(Switch)[0].reason
    assert not seen.done.degraded
    return supervisor, workers


def test_memory_takes_a_context_that_holds_prompt_and_answer(smaller) -> None:
    """What the worker counted and what is still to come, in whole cells of the engine."""
    _, workers = smaller
    assert [options.n_ctx for options in workers.options] == [None, 256]
    assert workers.started[1].journals == [(0, 1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("max_tokens", "sizes"),
    [(251, []), (252, [512]), (1000, [1024]), (2000, [2048]), (10**9, [None])],
)
def test_a_later_answer_gets_the_context_it_needs(
    smaller, kit, max_tokens: int, sizes: list[int | None]
) -> None:
    """The context at least doubles, up to the plan's own; where it is enough, the worker stays."""
    supervisor, workers = smaller
    seen = kit.see(supervisor, bounded(kit, max_tokens))
    assert seen.text == seen.done.text == WHOLE
    # The plan's own size is the default, which grows by itself.
    found = [options.n_ctx for options in workers.options[2:]]
    assert found == [None if size == 2048 else size for size in sizes]
    assert workers.started[1].is_closed is bool(sizes)


def test_an_answer_without_a_limit_gets_the_plans_own_context(smaller, kit) -> None:
    """It is never cut for what another answer needed."""
    supervisor, workers = smaller
    assert kit.see(supervisor).text == WHOLE
    assert workers.options[2].n_ctx is None


@pytest.mark.parametrize("warms", [False, True])
def test_a_prompt_that_is_too_long_for_it_gets_the_plans_own(smaller, kit, warms: bool) -> None:
    """The refusal is about the smaller context, so it is none of the caller's business."""
    supervisor, workers = smaller
    refused = PromptTooLong("300 tokens")
    workers.started[1].life = kit.Life(0, refused, warm=refused)
    if warms:
        assert supervisor.warm(kit.ASKED.messages).code == "stored"
    else:
        assert kit.see(supervisor, bounded(kit, 12)).text == WHOLE
    assert [options.n_ctx for options in workers.options[2:]] == [None]


def test_an_answer_without_a_limit_keeps_the_context(stage, kit) -> None:
    """Nobody knows what it needs, so another rung, or none, is taken."""
    supervisor, workers = stage.open(kit.Life(5, kit.oom()), kit.Life(), engine=NARROW)
    kit.see(supervisor)
    assert [options.n_ctx for options in workers.options] == [None]


def test_what_was_shown_is_never_cut(kit) -> None:
    """A context holds what there is of the answer, whatever limit it was made under."""
    turn = Turn(bounded(kit, 3), n_prompt_tokens=10, journal=[1] * 7)
    assert turn.needed_tokens == 18
    assert Turn(bounded(kit, 3)).needed_tokens == 0
