"""The ladder: one thing after the other is made smaller, none that the user named, none in vain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edgellm.hw.gpu import GpuFacts
from edgellm.policy.ladder import Artifact, next_lower
from edgellm.policy.plan import Wishes, fit

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from edgellm.policy.ladder import Rung
    from edgellm.policy.plan import Plan

    Make = Callable[..., Any]

GIB = 1 << 30
SMALLER = (Artifact("m-q4.gguf", GIB // 2), Artifact("m-q8.gguf", GIB), Artifact("m-q2.gguf", 9))


def descend(plan: Plan, artifacts: tuple[Artifact, ...] = (), needed_tokens: int = 0) -> list[Rung]:
    """Take rungs until there is none."""
    taken: list[Rung] = []
    while rung := next_lower(plan, taken, artifacts, needed_tokens=needed_tokens):
        taken.append(rung)
        assert len(taken) < 20
    return taken


def test_the_order(make_shape: Make, make_machine: Make) -> None:
    """Batch, keys and values, context, a smaller file: what changes numbers says so."""
    plan = fit(make_shape(), Wishes(), make_machine(16 * GIB))
    taken = descend(plan, SMALLER, needed_tokens=700)
    assert [("batch", False), ("batch", False), ("kv_type", True), ("context", False)] == [
        (rung.step, rung.changes_numerics) for rung in taken[:4]
    ]
    assert ["m-q4.gguf", "m-q2.gguf"] == [rung.model_path for rung in taken[4:]]
    last = taken[-1].settings
    assert (64, "q8_0", 768) == (last.n_batch, last.kv_type, last.n_ctx)
    assert taken[0].reason == "a batch of 128 tokens in place of 512"


def test_a_context_holds_what_is_needed(make_shape: Make, make_machine: Make) -> None:
    """It is never made shorter than prompt, answer and what is to come; unknown, it stays."""
    plan = fit(make_shape(), Wishes(), make_machine(16 * GIB))
    assert "context" not in [rung.step for rung in descend(plan, needed_tokens=4000)]
    assert "context" not in [rung.step for rung in descend(plan)]


@pytest.mark.parametrize(
    ("wishes", "gone"),
    [
        (Wishes(n_batch=512), "batch"),
        (Wishes(kv_type="f16"), "kv_type"),
        (Wishes(n_ctx=4096), "context"),
        (Wishes(flash_attention="off"), "kv_type"),
    ],
)
def test_a_wish_is_kept(make_shape: Make, make_machine: Make, wishes: Wishes, gone: str) -> None:
    """What the user named is not made smaller; the engine needs flash attention for rounded rows."""
    steps = {
        rung.step
        for rung in descend(fit(make_shape(), wishes, make_machine(16 * GIB)), needed_tokens=700)
    }
    assert steps == {"batch", "kv_type", "context"} - {gone}


def test_layers_leave_the_gpu(make_shape: Make, make_machine: Make) -> None:
    """A quarter at a time, as long as the host has room for them; never where the memory is one."""
    card = GpuFacts("card", "cuda", 8 * GIB, 8 * GIB)
    machine = make_machine(64 * GIB, gpus=(card,))
    plan = fit(make_shape(2 * GIB), Wishes(), machine)
    assert plan.settings.n_gpu_layers == 5
    layers = [rung.settings.n_gpu_layers for rung in descend(plan) if rung.step == "gpu_layers"]
    assert layers == [4, 3, 2, 1, 0]
    tight = fit(make_shape(4 * GIB), Wishes(), make_machine(3 * GIB, gpus=(card,)))
    assert "gpu_layers" not in [rung.step for rung in descend(tight)][:2]
    one = GpuFacts("Orin", "cuda", None, None, unified=True)
    unified = fit(make_shape(), Wishes(), make_machine(16 * GIB, gpus=(one,), unified=True))
    assert "gpu_layers" not in [rung.step for rung in descend(unified)]


def test_nothing_in_vain(make_shape: Make, make_machine: Make) -> None:
    """A rung that frees less than a mebibyte is left out."""
    plan = fit(make_shape(n_ctx_train=512), Wishes(n_batch=64, kv_type="q8_0"), make_machine(GIB))
    assert descend(plan, needed_tokens=512) == []


def test_where_parts_are_unknown_every_rung_is_tried(make_shape: Make, make_machine: Make) -> None:
    """What cannot be estimated may free memory all the same."""
    shape = make_shape(unknown=("the indexer's cache",))
    plan = fit(shape, Wishes(), make_machine(16 * GIB))
    assert ["batch", "batch", "kv_type"] == [rung.step for rung in descend(plan)]


def test_no_file_is_loaded_twice(make_shape: Make, make_machine: Make) -> None:
    """The next file is smaller than the one tried last, and an equal one is none."""
    wishes = Wishes(n_batch=64, kv_type="q8_0", n_ctx=512)
    plan = fit(make_shape(), wishes, make_machine(16 * GIB))
    same = Artifact("copy.gguf", GIB)
    assert next_lower(plan, (), (same,)) is None
    first = next_lower(plan, (), SMALLER)
    assert first is not None
    assert (first.model_path, first.changes_numerics) == ("m-q4.gguf", True)
