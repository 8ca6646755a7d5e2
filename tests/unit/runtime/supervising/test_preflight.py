"""The refusal of a plan that does not fit: what is asked, what it takes, whose memory, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edgellm.cli.plan import planned
from edgellm.policy.plan import Wishes
from edgellm.runtime.supervising.preflight import refusal

if TYPE_CHECKING:
    from pathlib import Path

HUGE_CTX = 12_000_000


@pytest.fixture
def model(tiny_models: Path) -> Path:
    """A model of a few kilobytes."""
    return tiny_models / "tiny-llama.gguf"


def test_a_context_is_named_with_its_bytes(model: Path) -> None:
    """The asked context, what it takes, what there is, and at most three ways."""
    plan = planned(model, Wishes(n_ctx=1 << 30), "raspberry-pi-5-4gb")
    err = refusal(plan, model)
    assert f"a context of {1 << 30} tokens does not fit" in err.message
    assert err.message.endswith(" of memory are free")
    assert (err.need_bytes, err.have_bytes) == (plan.need_bytes, plan.have_bytes)
    assert err.hint.startswith("ways to fit: --")
    assert 1 <= err.hint.count("; ") <= 2


def test_a_gpu_that_is_too_small_is_named(model: Path) -> None:
    """Its figures are told, not those of the host, which has room."""
    wishes = Wishes(n_ctx=HUGE_CTX, n_gpu_layers=99, snapshots=False)
    plan = planned(model, wishes, "laptop-rtx-4050-6gb")
    assert (plan.fits, plan.need_bytes <= plan.have_bytes) == (False, True)
    err = refusal(plan, model)
    assert "of the GPU's memory are free" in err.message
    assert (err.need_bytes, err.have_bytes) == (plan.estimate.gpu_bytes, plan.gpu_have_bytes)
