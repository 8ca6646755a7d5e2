"""The plan: what fits and why, what is given up unasked and what never is, and ways to make it fit."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import TYPE_CHECKING

import pytest

from edgellm.core import ModelInfo
from edgellm.formats.gguf_shape import Weight
from edgellm.ggml_types import TYPES_BY_NAME
from edgellm.hw.cpu import CpuShare
from edgellm.hw.gpu import GpuFacts
from edgellm.policy import fitting
from edgellm.policy.fitting import (
    Fitting,
    available_for,
    gpu_margin_bytes,
    margin_bytes,
    read_bytes_per_token,
)
from edgellm.policy.plan import Wishes, fit

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Make = Callable[..., Any]

MIB, GIB = 1 << 20, 1 << 30
FREE = Wishes()
CARD = GpuFacts("card", "cuda", 8 * GIB, 8 * GIB, "8.9")


@pytest.mark.parametrize(
    ("available", "margin"),
    [
        (0, 32 * MIB),
        (256 * MIB, 32 * MIB),
        (GIB, GIB // 10),
        (8 * GIB, 8 * GIB // 10),
        (64 * GIB, GIB),
    ],
)
def test_the_margin_grows_with_the_memory(available: int, margin: int) -> None:
    """A tenth stays free, within 32 MiB and 1 GiB."""
    assert margin == margin_bytes(available)


def test_a_gpu_keeps_a_gibibyte() -> None:
    """A card's pools grow over days; large ones keep a tenth."""
    assert (GIB, 2 * GIB) == (gpu_margin_bytes(6 * GIB), gpu_margin_bytes(20 * GIB))


def test_what_fits_gets_the_defaults(make_shape: Make, make_machine: Make) -> None:
    """Context by the known rule, f16, a batch of 512, threads by the share; each with a reason."""
    plan = fit(make_shape(), FREE, make_machine(16 * GIB))
    settings = plan.settings
    assert (plan.fits, plan.ways) == (True, ())
    assert (4096, 512, "f16", 0, 4) == (
        settings.n_ctx,
        settings.n_batch,
        settings.kv_type,
        settings.n_gpu_layers,
        settings.n_threads,
    )
    reasons = dict(plan.reasons)
    assert set(reasons) == {
        *("n_ctx", "n_batch", "kv_type", "n_gpu_layers", "n_threads", "flash_attention"),
        *("repack", "snapshots", "memory"),
    }
    assert reasons["n_threads"] == "4 CPUs and no quota"
    assert "17.2 GB of memory are available" in reasons["memory"]


@pytest.mark.parametrize(
    ("trained", "prompt", "n_ctx"), [(2048, 0, 2048), (32768, 0, 4096), (32768, 6000, 7024)]
)
def test_the_default_context(
    make_shape: Make, make_machine: Make, trained: int, prompt: int, n_ctx: int
) -> None:
    """min(the model's, max(4096, prompt + 1024)), never the trained length by itself."""
    plan = fit(make_shape(n_ctx_train=trained), FREE, make_machine(64 * GIB), prompt)
    assert plan.settings.n_ctx == n_ctx


def test_a_smaller_batch_is_tried_first(make_shape: Make, make_machine: Make) -> None:
    """Prefill speed is given up before anything else, and only as much as is needed."""
    shape = make_shape()
    need = fit(shape, FREE, make_machine(64 * GIB)).need_bytes
    available = (need - 200 * MIB) * 10 // 9
    plan = fit(shape, FREE, make_machine(available))
    assert (True, 256, 4096) == (plan.fits, plan.settings.n_batch, plan.settings.n_ctx)
    assert dict(plan.reasons)["n_batch"] == "512 would not fit: prompts are read more slowly"


def test_then_a_shorter_context(make_shape: Make, make_machine: Make) -> None:
    """The largest one that fits, in whole cells; keys and values stay as they are."""
    plan = fit(make_shape(), FREE, make_machine(2 * GIB))
    settings = plan.settings
    assert plan.fits
    assert (64, "f16") == (settings.n_batch, settings.kv_type)
    assert 512 <= settings.n_ctx < 4096
    assert settings.n_ctx % 256 == 0
    assert dict(plan.reasons)["n_ctx"].startswith("4096 tokens would not fit")
    larger = fit(make_shape(), Wishes(n_ctx=settings.n_ctx + 256), make_machine(2 * GIB))
    assert not larger.fits


def test_a_prompt_and_its_answer_keep_their_room(make_shape: Make, make_machine: Make) -> None:
    """A context is not made shorter than prompt and answer need: that would not fit, and says so."""
    wishes = Wishes(max_tokens=500)
    plan = fit(make_shape(), wishes, make_machine(2 * GIB), prompt_tokens=3000)
    assert not plan.fits
    assert plan.settings.n_ctx == 3584


@pytest.mark.parametrize(
    "wishes",
    [
        Wishes(n_ctx=16384),
        Wishes(n_batch=2048),
        Wishes(kv_type="f32", n_ctx=4096),
        Wishes(n_ctx=16384, n_batch=512, kv_type="f16", n_threads=3),
    ],
)
def test_a_wish_is_never_overridden(make_shape: Make, make_machine: Make, wishes: Wishes) -> None:
    """What was asked for stays, and where it does not fit, the plan says so."""
    plan = fit(make_shape(), wishes, make_machine(2 * GIB))
    assert not plan.fits
    for field in ("n_ctx", "n_batch", "kv_type", "n_threads"):
        asked = getattr(wishes, field)
        if asked is not None:
            assert getattr(plan.settings, field) == asked
            assert dict(plan.reasons)[field] == "asked for"


def test_three_ways_each_of_which_fits(make_shape: Make, make_machine: Make) -> None:
    """The flags of a way, taken as wishes, make a plan that fits; its need is the one that was told."""
    machine = make_machine(3 * GIB)
    plan = fit(make_shape(), Wishes(n_ctx=8192), machine)
    assert 3 == len(plan.ways)
    names = {"--ctx": "n_ctx", "--batch": "n_batch", "--kv-type": "kv_type"}
    for way in plan.ways:
        words = way.flags.split()
        asked = {"n_ctx": 8192}
        for flag, value in zip(words[::2], words[1::2], strict=True):
            if flag == "--snapshot":
                asked["snapshots"] = False
            else:
                asked[names[flag]] = int(value) if value.isdigit() else value
        again = fit(make_shape(), Wishes(**asked), machine)
        assert again.fits, way
        assert way.need_bytes is not None
        assert again.need_bytes <= plan.have_bytes


def test_heads_that_fill_no_blocks(make_shape: Make, make_machine: Make) -> None:
    """The engine keeps no rounded rows of them, so that is no way."""
    shape = make_shape()
    odd = dataclasses.replace(shape, widths=dataclasses.replace(shape.widths, head_keys=80))
    plan = fit(odd, Wishes(n_ctx=16384), make_machine(2 * GIB))
    assert not plan.fits
    assert [] == [way.flags for way in plan.ways if "--kv-type" in way.flags]


def test_weights_too_large_for_any_flag(make_shape: Make, make_machine: Make) -> None:
    """No setting helps: fewer bits, more memory, or the risk with its price."""
    plan = fit(make_shape(weight_bytes=4 * GIB), FREE, make_machine(4 * GIB))
    assert not plan.fits
    assert ["", "", "--force"] == [way.flags for way in plan.ways]
    assert "fewer bits per weight" in plan.ways[0].what
    assert "close other programs" in plan.ways[1].what
    assert "read from the disk for every token" in plan.ways[2].what


@pytest.mark.parametrize(
    ("limited_by", "words"),
    [("cgroup", "raise the control group's"), ("rlimit", "`ulimit -v`"), ("profile", "a machine")],
)
def test_the_way_names_what_limits(
    make_shape: Make, make_machine: Make, limited_by: str, words: str
) -> None:
    """Closing programs helps against nobody's limit."""
    machine = make_machine(4 * GIB, limited_by=limited_by)
    told = " ".join(way.what for way in fit(make_shape(64 * GIB), FREE, machine).ways)
    assert words in told
    assert "close other" not in told


def test_an_unknown_part_warns_and_never_blocks(make_shape: Make, make_machine: Make) -> None:
    """The engine is asked instead: it fits for all that is known."""
    shape = make_shape(weight_bytes=64 * GIB, unknown=("the indexer's cache",))
    plan = fit(shape, FREE, make_machine(2 * GIB))
    assert (True, ()) == (plan.fits, plan.ways)
    assert plan.warnings == ("not estimated: the indexer's cache",)
    assert Fitting(shape, FREE, make_machine(2 * GIB), 0).fits(plan.settings)


def test_what_a_driver_takes_is_the_margins(
    make_shape: Make, make_machine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of the GPU's that nobody can count warns, and what is counted decides."""
    known = fitting.estimate

    def vague(*args: Any, **named: Any) -> Any:
        return dataclasses.replace(known(*args, **named), unknown=("the GPU's driver",))

    monkeypatch.setattr(fitting, "estimate", vague)
    plan = fit(make_shape(64 * GIB), FREE, make_machine(16 * GIB, gpus=(CARD,)))
    assert (plan.fits, plan.warnings) == (False, ("not estimated: the GPU's driver",))


def test_as_many_layers_as_the_gpu_holds(make_shape: Make, make_machine: Make) -> None:
    """A card's own memory is filled up to its margin, and the rest stays with the host."""
    shape, machine = make_shape(8 * GIB), make_machine(64 * GIB, gpus=(CARD,))
    plan = fit(shape, FREE, machine)
    assert plan.settings.n_gpu_layers == 3
    assert plan.estimate.gpu_bytes <= plan.gpu_have_bytes == 7 * GIB
    assert "of 5" in dict(plan.reasons)["n_gpu_layers"]
    whole = fit(make_shape(GIB), FREE, machine)
    assert (5, "all fit the card") == (
        whole.settings.n_gpu_layers,
        dict(whole.reasons)["n_gpu_layers"],
    )


def test_too_many_layers_asked_for(make_shape: Make, make_machine: Make) -> None:
    """The wish stands, and the number that fits is among the ways."""
    plan = fit(make_shape(8 * GIB), Wishes(n_gpu_layers=5), make_machine(64 * GIB, gpus=(CARD,)))
    assert (False, 5) == (plan.fits, plan.settings.n_gpu_layers)
    assert "--gpu-layers 3" in [way.flags for way in plan.ways]


def test_unified_memory_is_counted_once(make_shape: Make, make_machine: Make) -> None:
    """What lies on the GPU takes the host's memory, and is not taken of it twice."""
    gpu = GpuFacts("Orin", "cuda", None, None, "8.7", unified=True)
    shape = make_shape(4 * GIB)
    one = fit(shape, FREE, make_machine(16 * GIB, gpus=(gpu,), unified=True))
    alone = fit(shape, FREE, make_machine(16 * GIB))
    assert (5, True) == (one.settings.n_gpu_layers, one.fits)
    assert one.need_bytes == alone.need_bytes
    assert one.gpu_have_bytes is None
    small = make_machine(4 * GIB, gpus=(gpu,), unified=True)
    assert not fit(shape, FREE, small).fits


def test_a_gpu_that_the_engine_cannot_use(make_shape: Make, make_machine: Make) -> None:
    """It is named, and nothing is put there."""
    plan = fit(make_shape(), FREE, make_machine(16 * GIB, idle_gpus=(CARD,)))
    assert (0, "the engine here cannot use the card") == (
        plan.settings.n_gpu_layers,
        dict(plan.reasons)["n_gpu_layers"],
    )


def test_types_without_a_fast_kernel(make_shape: Make, make_machine: Make) -> None:
    """A CPU without AVX computes q4_K in plain C: said, and no reason to refuse."""
    old = make_machine(16 * GIB, flags=frozenset({"sse2", "pni", "ssse3"}))
    plan = fit(make_shape(type_name="q4_K"), FREE, old)
    assert (("q4_K",), True) == (plan.slow_types, plan.fits)
    assert "no fast kernel for q4_K" in plan.warnings[0]
    assert fit(make_shape(type_name="q4_0"), FREE, old).slow_types == ()


def test_the_whole_context_is_told_and_not_taken(make_shape: Make, make_machine: Make) -> None:
    """A declared context of 2^31 - 1 tokens is a figure, and the default stays the default."""
    plan = fit(make_shape(n_ctx_train=2**31 - 1), FREE, make_machine(16 * GIB))
    assert (4096, True) == (plan.settings.n_ctx, plan.fits)
    assert plan.full_kv_bytes == (2**31 - 1) * (256 << 10)


def test_speed_is_bandwidth_over_what_is_read(make_shape: Make, make_machine: Make) -> None:
    """None where the bandwidth is not known, or weights lie in two memories."""
    shape = make_shape(2 * GIB)
    fast = make_machine(16 * GIB, bandwidth_gb_s=100.0)
    rate = fit(shape, FREE, fast).tokens_per_s
    assert rate is not None
    assert math.isclose(100e9 / (2 * GIB), rate)
    assert fit(shape, FREE, make_machine(16 * GIB)).tokens_per_s is None
    card = dataclasses.replace(CARD, bandwidth_gb_s=256.0)
    both = make_machine(64 * GIB, bandwidth_gb_s=100.0, gpus=(card,))
    assert fit(make_shape(8 * GIB), FREE, both).tokens_per_s is None
    whole = fit(shape, FREE, both).tokens_per_s
    assert whole is not None
    assert math.isclose(256e9 / (2 * GIB), whole)


def test_a_token_reads_its_experts_alone(make_shape: Make) -> None:
    """Two of eight experts, and no embedding but its own."""
    kind = TYPES_BY_NAME["f16"]
    weights = (
        Weight("token_embd.weight", None, kind, (2, 2), 1000),
        Weight("output.weight", None, kind, (2, 2), 100),
        Weight("blk.0.ffn_up_exps.weight", 0, kind, (2, 2), 800),
    )
    shape = make_shape(weights=weights, tied=False)
    widths = dataclasses.replace(shape.widths, experts=8, experts_used=2)
    assert 300 == read_bytes_per_token(dataclasses.replace(shape, widths=widths))


def test_a_limit_of_address_space_counts_what_is_reserved(
    make_shape: Make, make_machine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Buffers that are never written to take it all the same, and so does what is only mapped."""
    known = fitting.estimate

    def reserving(*args: Any, **named: Any) -> Any:
        found = known(*args, **named)
        return dataclasses.replace(found, reserved_bytes=found.compute_bytes + 300 * MIB)

    monkeypatch.setattr(fitting, "estimate", reserving)
    need = [
        fit(make_shape(), FREE, make_machine(16 * GIB, limited_by=limit)).need_bytes
        for limit in ("host", "cgroup", "rlimit")
    ]
    assert need == [need[0], need[0], need[0] + 300 * MIB + fitting.MAPPED_BYTES]


def test_threads_say_their_quota(make_shape: Make, make_machine: Make) -> None:
    """The quota is why, and a wish wins over it."""
    machine = make_machine(16 * GIB, share=CpuShare(2, 64, 2.5))
    plan = fit(make_shape(), FREE, machine)
    assert (2, "64 CPUs and a quota of 2.5") == (
        plan.settings.n_threads,
        dict(plan.reasons)["n_threads"],
    )
    assert fit(make_shape(), Wishes(n_threads=7), machine).settings.n_threads == 7


def test_a_context_beyond_the_trained_one_is_warned_of(
    make_shape: Make, make_machine: Make
) -> None:
    """It may be asked for."""
    plan = fit(make_shape(n_ctx_train=2048), Wishes(n_ctx=4096), make_machine(16 * GIB))
    assert plan.fits
    assert "trained with 2048" in plan.warnings[0]


def test_the_model_is_the_one_planned_for(make_shape: Make, make_machine: Make) -> None:
    """A plan keeps its inputs, for what is planned after it."""
    shape, machine = make_shape(), make_machine(16 * GIB)
    plan = fit(shape, FREE, machine)
    assert (shape, machine, FREE) == (plan.shape, plan.machine, plan.wishes)
    assert isinstance(plan.shape.model, ModelInfo)


@pytest.mark.parametrize("need", [0, MIB, 300 * MIB, 3 * GIB, 9 * GIB, 40 * GIB])
def test_what_must_be_available(need: int) -> None:
    """The least memory from which the margin can be taken; two bytes less are too little."""
    available = available_for(need)
    assert available - margin_bytes(available) >= need
    assert available - 2 - margin_bytes(available - 2) < need


@pytest.mark.parametrize("limited_by", ["host", "cgroup", "rlimit"])
def test_more_memory_is_enough(make_shape: Make, make_machine: Make, limited_by: str) -> None:
    """What a way says is missing counts the margin, which grows with it: after that, it fits."""
    shape, machine = make_shape(8 * GIB), make_machine(4 * GIB, limited_by=limited_by)
    told = next(
        way.what
        for way in fit(shape, FREE, machine).ways
        if " are free" in way.what or " by " in way.what
    )
    amount = re.search(r"([\d.]+) ([GM])B", told)
    assert amount is not None
    more = int(float(amount[1]) * {"G": 10**9, "M": 10**6}[amount[2]])
    enough = dataclasses.replace(machine, available_bytes=machine.available_bytes + more)
    assert fit(shape, FREE, enough).fits


def test_a_way_still_fits_with_a_little_less(make_shape: Make, make_machine: Make) -> None:
    """What is available moves between two commands; every way leaves 16 MiB for that."""
    for available in range(1500 * MIB, 3500 * MIB, 97 * MIB):
        machine = make_machine(available)
        less = dataclasses.replace(machine, available_bytes=available - 16 * MIB)
        have = fit(make_shape(), Wishes(n_ctx=16384), less).have_bytes
        needs = [way.need_bytes for way in fit(make_shape(), Wishes(n_ctx=16384), machine).ways]
        assert all(need <= have for need in needs if need is not None)


def test_two_flags_that_spare_the_copy(make_shape: Make, make_machine: Make) -> None:
    """Where the smallest context is too large, no snapshot and rounded rows together may do."""
    plan = fit(make_shape(), FREE, make_machine(1370 * MIB))
    assert "--snapshot off --kv-type q8_0" in [way.flags for way in plan.ways]


def test_layers_without_a_gpu_lie_on_the_host(make_shape: Make, make_machine: Make) -> None:
    """An engine that finds no GPU computes all of them here, whatever was asked for."""
    wish, machine = Wishes(n_gpu_layers=99), make_machine(16 * GIB)
    plan, free = fit(make_shape(), wish, machine), fit(make_shape(), FREE, machine)
    assert (plan.settings.n_gpu_layers, plan.need_bytes) == (0, free.need_bytes)
    assert dict(plan.reasons)["n_gpu_layers"] == "no GPU"
    unseen = dataclasses.replace(machine, may_offload=True)  # such as one of another maker
    assert fit(make_shape(), wish, unseen).settings.n_gpu_layers == 5


def test_a_huge_number_of_layers_is_all_of_them(make_shape: Make, make_machine: Make) -> None:
    """There are no more than the model has, and none is looked at twice."""
    wishes = Wishes(n_gpu_layers=(1 << 31) - 1, n_ctx=1 << 20)
    plan = fit(make_shape(), wishes, make_machine(16 * GIB, gpus=(CARD,)))
    assert (False, 5) == (plan.fits, plan.settings.n_gpu_layers)


def test_a_gpu_that_is_too_small(make_shape: Make, make_machine: Make) -> None:
    """Where the host has room, it is the GPU that must be larger."""
    wishes = Wishes(n_gpu_layers=5, n_ctx=512, kv_type="q4_0", n_batch=64, snapshots=False)
    plan = fit(make_shape(64 * GIB), wishes, make_machine(80 * GIB, gpus=(CARD,)))
    assert not plan.fits
    assert ["--gpu-layers 0", "--force", ""] == [way.flags for way in plan.ways]
    assert plan.ways[-1].what.startswith("a GPU with 76.")


def test_no_more_threads_than_the_engine_takes(make_shape: Make, make_machine: Make) -> None:
    """A machine of 1000 CPUs runs as many as ggml can."""
    plan = fit(make_shape(), FREE, make_machine(16 * GIB, share=CpuShare(1000, 1000, None)))
    assert plan.settings.n_threads == 512


def test_a_prompt_longer_than_the_context(make_shape: Make, make_machine: Make) -> None:
    """It fits the memory, but no answer can come of it: that is said beforehand."""
    plan = fit(make_shape(n_ctx_train=2048), FREE, make_machine(16 * GIB), 2048)
    assert plan.warnings == ("a context of 2048 tokens cannot hold the prompt's 2048",)
