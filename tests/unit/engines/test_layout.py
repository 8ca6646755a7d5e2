"""Which memories a context has: the library's word and the header's must agree."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.engines.llamacpp import facts
from edgellm.engines.llamacpp.memory import MAGIC, Announced, Layout, RecurrentLayout, read_layout
from edgellm.formats.gguf import read_header
from edgellm.formats.gguf_memory import keeps_keys_only
from edgellm.formats.gguf_model import model_info

ATTENTION = struct.pack("<II", 1, 0)
RECURRENT = struct.pack("<III", 0, 0, 3) + b"".join(
    struct.pack("<iQ", 0, n) for n in (24, 24, 40, 40)
)
KINDS = {
    "llama": ("dense",),
    "deepseek2": ("dense",),
    "gemma3": ("dense", "window"),
    "mamba": ("recurrent",),
    "lfm2": ("dense", "recurrent"),
    "lfm2-swa": ("dense", "window", "recurrent"),
    "minimax-m3": ("dense", "dense"),
    "dots3note": ("dense", "dense", "window"),
    "qwen4exp": ("dense", "recurrent", "dense"),
    "deepseek4": ("opaque",),
}


def layout_of(*memories: bytes, kind: str = "dense", mla: bool = False) -> Layout:
    """The layout that a context with these memories has, in a model of three layers."""
    empty = np.frombuffer(struct.pack("<Ii", MAGIC, 0) + b"".join(memories), np.uint8)
    announced = Announced(kind, keys_only=mla, extra_cells=True, n_layers=3)
    return read_layout(empty, announced, v_trans=False)


@pytest.mark.parametrize("name", KINDS)
def test_real_contexts_show_what_they_hold(open_tiny, name):
    """The state of an empty sequence is enough to know every memory, whatever was decoded before."""
    engine = open_tiny(name)
    assert engine._context.layout.kinds == KINDS[name]
    assert engine.restore_moves == bool({"window", "opaque"} & set(KINDS[name]))
    assert engine.snapshot_block() == ""


def test_states_are_counted_by_layer():
    """Of a recurrent memory the bytes of both states of each layer are known."""
    layout = layout_of(ATTENTION, RECURRENT, ATTENTION, kind="hybrid")
    main, recurrent, indexer = layout.parts
    assert recurrent == RecurrentLayout(3, (24, 24), (40, 40))
    assert (main.has_v, main.n_extra_bytes) == (True, 12)
    assert (indexer.has_v, indexer.n_extra_bytes) == (False, 0)


def test_values_that_are_keys_are_in_no_part():
    """With MLA neither the main memory nor the indexer's has values; without it both have."""
    for mla in (True, False):
        layout = layout_of(ATTENTION, ATTENTION, kind="indexer", mla=mla)
        assert [part.has_v for part in layout.parts] == [not mla, not mla]


@pytest.mark.parametrize(
    ("kind", "memories"),
    [
        ("dense", [RECURRENT]),
        ("dense", [ATTENTION, ATTENTION]),
        ("recurrent", [ATTENTION]),
        ("hybrid", [RECURRENT, ATTENTION]),
        ("window", [ATTENTION, ATTENTION, ATTENTION]),
        ("dense", [struct.pack("<II", 2, 0)]),
        ("dense", [struct.pack("<II", 1, 1)]),
        ("dense", [ATTENTION[:6]]),
        ("dense", []),
        ("recurrent", [RECURRENT[:-4]]),
        ("recurrent", [RECURRENT[:-12]]),
        ("recurrent", [struct.pack("<III", 0, 1, 3) + RECURRENT[12:]]),
        ("recurrent", [struct.pack("<III", 0, 0, 4) + RECURRENT[12:]]),
        ("recurrent", [struct.pack("<III", 0, 0, 3)]),
        ("recurrent", [RECURRENT + struct.pack("<iQ", 0, 1) * 100]),
    ],
)
def test_what_was_not_announced_is_left_to_the_library(kind, memories):
    """Other memories than the header says, or of another form, are bytes that nobody takes apart."""
    assert layout_of(*memories, kind=kind) == Layout((), v_trans=False)


@given(data=st.binary(max_size=100))
def test_any_bytes_are_a_layout(data):
    """Whatever an empty state holds, it is known memories or an opaque blob."""
    layout = layout_of(data, kind="hybrid")
    assert layout.kinds[0] in ("dense", "opaque")


def test_keys_alone_are_announced_by_their_length(tiny_models):
    """Only files that give the length of MLA's expanded keys are kept as keys alone."""
    for name, expected in (("deepseek2", True), ("dots3note", True), ("llama", False)):
        path = tiny_models / f"tiny-{name}.gguf"
        header = read_header(path)
        assert keeps_keys_only(header, model_info(header, path)) == expected


@pytest.mark.parametrize(
    ("kind", "says"), [("dense", "dense"), ("window", "window"), ("hybrid", "")]
)
def test_a_header_that_hides_a_state_is_refused(open_tiny, kind, says):
    """A model that the library runs with states, and whose header knows of none, is not kept."""
    engine = open_tiny("lfm2")
    info = replace(engine.model, memory=kind)
    block = facts.snapshot_block(engine.library, engine._model, info)
    assert bool(block) == bool(says)
    assert not says or f"announces {says} memory, llama.cpp sees a recurrent one" in block
