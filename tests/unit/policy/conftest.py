"""A model and a machine in round numbers, and an estimate of them that is simple arithmetic."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from edgellm.core import ModelInfo
from edgellm.formats.gguf_shape import ModelShape, Weight, Widths
from edgellm.ggml_types import TYPES_BY_NAME
from edgellm.hw.cpu import CpuShare
from edgellm.hw.machine import MachineFacts
from edgellm.policy import fitting, ladder
from edgellm.policy.estimate import Estimate, PlanSettings

if TYPE_CHECKING:
    from collections.abc import Callable

MIB, GIB = 1 << 20, 1 << 30
N_LAYERS = 4
TOKEN_BYTES = 256 << 10  # of keys and values as f16
BATCH_TOKEN_BYTES = 1 << 20
KV_BITS = {"f32": 32, "f16": 16, "bf16": 16, "q8_0": 8, "q4_0": 4}


@pytest.fixture
def make_shape() -> Callable[..., ModelShape]:
    """Return a function that makes a model of 4 layers whose weights have a length and a type."""

    def make(
        weight_bytes: int = GIB, n_ctx_train: int = 32768, type_name: str = "q8_0", **fields: Any
    ) -> ModelShape:
        kind = TYPES_BY_NAME[type_name]
        weights = (Weight("blk.0.attn_q.weight", 0, kind, (256, 256), weight_bytes),)
        model = ModelInfo(
            path="m.gguf",
            architecture="llama",
            name="m",
            file_bytes=weight_bytes,
            n_params=weight_bytes,
            n_layers=N_LAYERS,
            n_ctx_train=n_ctx_train,
            n_vocab=100,
            n_embd=256,
            n_heads=2,
            n_kv_heads=2,
            weight_types={type_name: weight_bytes},
        )
        widths = Widths(**{field.name: 0 for field in dataclasses.fields(Widths)})
        shape = ModelShape(model, weights, (), (), widths, tied=True)
        return dataclasses.replace(shape, **fields)

    return make


@pytest.fixture
def make_machine() -> Callable[..., MachineFacts]:
    """Return a function that makes a machine with so much memory available, and twice that in all."""

    def make(available_bytes: int, **fields: Any) -> MachineFacts:
        facts = MachineFacts(
            available_bytes=available_bytes,
            total_bytes=2 * available_bytes,
            limited_by="host",
            share=CpuShare(4, 4, None),
        )
        return dataclasses.replace(facts, **fields)

    return make


@pytest.fixture(autouse=True)
def simple_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a token take 256 KiB, a batch 1 MiB a token, and a layer on the GPU its share of all of it."""

    def estimate(
        shape: ModelShape, settings: PlanSettings, *, flags: frozenset[str] | None = None
    ) -> Estimate:
        del flags
        kv = settings.n_ctx * TOKEN_BYTES * KV_BITS[settings.kv_type] // 16
        share = min(settings.n_gpu_layers, N_LAYERS + 1)
        on_gpu = [n * share // (N_LAYERS + 1) for n in (shape.weight_bytes, kv)]
        return Estimate(
            weights_mapped_bytes=shape.weight_bytes - on_gpu[0],
            weights_resident_bytes=0,
            kv_bytes=kv - on_gpu[1],
            compute_bytes=settings.n_batch * BATCH_TOKEN_BYTES,
            staging_bytes=kv // 2 if settings.snapshots else 0,
            process_bytes=32 * MIB,
            gpu_weights_bytes=on_gpu[0],
            gpu_kv_bytes=on_gpu[1],
            unknown=shape.unknown,
        )

    monkeypatch.setattr(fitting, "estimate", estimate)
    monkeypatch.setattr(ladder, "estimate", estimate)
