"""llama.cpp's state bytes: read, laid out again, and refused when they lie."""

from __future__ import annotations

import itertools
import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.engines.llamacpp import frame
from edgellm.engines.llamacpp.blob import parse
from edgellm.engines.llamacpp.memory import MAGIC, AttentionLayout, Layout, RecurrentLayout
from edgellm.errors import SnapshotIncompatible
from edgellm.store.state import KVState, Part, Section

DENSE, WINDOW = AttentionLayout("dense"), AttentionLayout("window")
KEYS, MROPE = AttentionLayout("dense", has_v=False), AttentionLayout("dense", n_extra_bytes=12)
RECURRENT = RecurrentLayout(n_layers=3, r_bytes=(24, 24), s_bytes=(40, 40))
CONVOLUTION = RecurrentLayout(n_layers=3, r_bytes=(24, 24), s_bytes=(0, 0))
MEMORIES = [
    (DENSE,),
    (KEYS,),
    (DENSE, WINDOW),
    (RECURRENT,),
    (DENSE, RECURRENT),
    (DENSE, WINDOW, CONVOLUTION),
    (KEYS, KEYS, AttentionLayout("window", has_v=False)),
    (MROPE, RECURRENT, KEYS),
]
LAYOUTS = [Layout(*case) for case in itertools.product(MEMORIES, [False, True])]
ONE_DENSE = Layout((DENSE,), v_trans=False)


def build(state: KVState, layout: Layout) -> np.ndarray:
    """The bytes that the library would be given."""
    return frame.build(state, layout).blob


def make_state(layout: Layout, n_tokens: int = 9, n_layers: int = 3, kv: str = "f16") -> KVState:
    """Random rows for every layer of every part; the window holds the last four positions."""
    rng = np.random.default_rng(5)

    def section(layer: int, role: str, name: str, shape: tuple[int, int]) -> Section:
        dtype = {"f16": np.uint16, "f32": np.uint32}.get(name, np.uint8)
        return Section(layer, role, name, rng.integers(0, 60000, shape).astype(dtype))  # type: ignore[arg-type]

    parts = []
    for part in layout.parts:
        n = {"dense": n_tokens, "window": 4, "recurrent": 1}[part.kind]
        if isinstance(part, RecurrentLayout):
            sections = [section(i, "R", "f32", (1, 6)) for i in range(2)]
            sections += [section(i, "S", "f32", (1, 10)) for i in range(2) if part.s_bytes[i]]
        else:
            roles = "KV" if part.has_v else "K"
            sections = [section(i, r, kv, (n, 34)) for r in roles for i in range(n_layers)]
            sections += [section(0, "X", "u8", (n, 12))] if part.n_extra_bytes else []
        parts.append(Part(part.kind, n_tokens - n, n, tuple(sections)))
    return KVState(n_tokens, tuple(parts))


def assert_same(left: KVState, right: KVState) -> None:
    assert left.n_tokens == right.n_tokens
    for a, b in zip(left.parts, right.parts, strict=True):
        assert (a.kind, a.first, a.n_tokens) == (b.kind, b.first, b.n_tokens)
        for x, y in zip(a.sections, b.sections, strict=True):
            assert (x.layer, x.role, x.type) == (y.layer, y.role, y.type)
            assert np.array_equal(x.rows, y.rows)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("kv", ["f16", "f32"])
def test_round_trip_in_every_layout(layout, kv):
    """What was built is what is read back, for every kind of memory and both value layouts."""
    state = make_state(layout, kv=kv)
    assert_same(state, parse(build(state, layout), layout, state.n_tokens))


def test_block_types_keep_their_bytes():
    """Quantised rows pass through untouched where values lie token by token."""
    layout = ONE_DENSE
    state = make_state(layout, kv="q8_0")
    assert_same(state, parse(build(state, layout), layout, state.n_tokens))
    with pytest.raises(SnapshotIncompatible, match="q8_0 values"):
        build(state, Layout((DENSE,), v_trans=True))


def test_cells_out_of_order_are_sorted_by_position():
    """A window cache used as a ring gives its cells in the order in which they lie."""
    layout = ONE_DENSE
    state = make_state(layout, n_layers=1)
    turned = np.roll(np.arange(9), 4)
    shuffled = KVState(
        9,
        (
            Part(
                "dense",
                0,
                9,
                tuple(
                    Section(s.layer, s.role, s.type, s.rows[turned])
                    for s in state.parts[0].sections
                ),
            ),
        ),
    )
    blob = build(shuffled, layout)
    cells = blob[16 : 16 + 9 * 12].view(np.int32).reshape(9, 3)
    cells[:, 0] = turned
    assert_same(state, parse(blob, layout, 9))


@pytest.mark.parametrize(
    ("offset", "value", "says"),
    [
        (0, 1, "magic"),
        (8, 2, "2 streams"),
        (12, 0, "0 cells"),
        (12, 10, "10 cells"),
        (16, 5, "gaps"),
        (20, 2, "more than one sequence"),
        (24, 1, "more than one sequence"),
        (16 + 9 * 12, 1, "v_trans 1"),
        (20 + 9 * 12, 1 << 20, "layers"),
        (24 + 9 * 12, 77, "KV type 77"),
        (28 + 9 * 12, 1 << 30, "more expected"),
    ],
)
def test_lying_fields_are_refused(offset, value, says):
    """Each count and each number that contradicts the context is named."""
    layout = ONE_DENSE
    blob = build(make_state(layout), layout)
    struct.pack_into("<I", blob, offset, value)
    with pytest.raises(SnapshotIncompatible, match=says):
        parse(blob, layout, 9)


@given(data=st.data())
def test_damage_never_escapes(data):
    """Cut, extended or flipped anywhere, the bytes are read as rows or refused, nothing else."""
    layout = data.draw(st.sampled_from(LAYOUTS))
    blob = build(make_state(layout), layout).tobytes()
    how = data.draw(st.sampled_from(["cut", "extend", "flip"]))
    at = data.draw(st.integers(0, len(blob) - 1))
    if how == "cut":
        damaged = blob[:at]
    elif how == "extend":
        damaged = blob + bytes(data.draw(st.integers(1, 64)))
    else:
        damaged = blob[:at] + bytes([blob[at] ^ data.draw(st.integers(1, 255))]) + blob[at + 1 :]
    try:
        state = parse(np.frombuffer(damaged, np.uint8), layout, 9)
    except SnapshotIncompatible:
        return
    assert how == "flip"
    assert tuple(part.kind for part in state.parts) == layout.kinds


def test_wrong_parts_cannot_be_built():
    """A window state for a dense engine, or keys without values, is refused before any byte."""
    window = Layout((DENSE, WINDOW), v_trans=False)
    dense = ONE_DENSE
    with pytest.raises(SnapshotIncompatible, match="memories"):
        build(make_state(window), dense)
    with pytest.raises(SnapshotIncompatible, match="layers"):
        build(make_state(Layout((KEYS,), v_trans=False)), dense)


def test_blob_starts_with_the_known_magic():
    """The first word is the library's mark of an in-memory sequence state."""
    layout = ONE_DENSE
    assert build(make_state(layout), layout)[:4].tobytes() == MAGIC.to_bytes(4, "little")


@pytest.mark.parametrize(("first", "n"), [(4, 4), (6, 4), (-1, 10), (9, 0)])
def test_parts_of_different_moments_cannot_be_built(first, n):
    """A window that ends elsewhere than the full memory, or holds nothing, is refused."""
    layout = Layout((DENSE, WINDOW), v_trans=False)
    dense, window = make_state(layout).parts
    with pytest.raises(SnapshotIncompatible, match="not of one moment"):
        build(KVState(9, (dense, replace(window, first=first, n_tokens=n))), layout)
    with pytest.raises(SnapshotIncompatible, match="not of one moment"):
        build(KVState(9, (replace(dense, first=1, n_tokens=8),)), ONE_DENSE)
