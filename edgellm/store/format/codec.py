"""Packing a state as a tier keeps it, and unpacking it again: once packed, always the same numbers.

Sections that cannot be packed stay exact: those of other element types than f16 (quantised caches,
too, are never rounded a second time), opaque bytes, keys without values (their rows are keys and
values in one), those with a value that is not finite, and those that would not become smaller.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from edgellm.core import Tier
from edgellm.kernels import pack_channels, pack_tokens
from edgellm.store.format.layout import is_cut
from edgellm.store.format.runs import axis_of, run_of
from edgellm.store.format.tiers import PACKED_TYPE
from edgellm.store.format.unpacking import are_finite, are_finite_groups, unpack_section
from edgellm.store.state import KVState, PackedPart, PackedSection, PackedState, Part, Section

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.unsignedinteger[Any]]


def pack_state(state: KVState, tier: Tier, base_tokens: int = 0) -> KVState | PackedState:
    """Round a state to a tier's grid.

    Args:
        state: as captured; it is not changed.
        tier: any but `off`.
        base_tokens: length of the stored prefix that it will lean on: of dense parts, only the rows
            from there on are kept. 0 for all of them.

    Returns:
        `state` itself for tier `exact` and where nothing of it can be packed. Else a state whose
        packed sections are fresh memory, and whose exact ones are those of `state`.
    """
    if tier is Tier.EXACT:
        return state
    parts = tuple(_packed_part(part, tier) for part in cut_state(state, base_tokens).parts)
    if not any(isinstance(s, PackedSection) for part in parts for s in part.sections):
        return state
    return PackedState(state.n_tokens, parts, tier)


def cut_state(state: KVState, base_tokens: int) -> KVState:
    """Return views of what a snapshot keeps that leans on one of `base_tokens` tokens."""
    if not base_tokens:
        return state
    parts = []
    for part in state.parts:
        if is_cut(part):
            cut = tuple(replace(s, rows=s.rows[base_tokens:]) for s in part.sections)
            parts.append(Part(part.kind, base_tokens, part.n_tokens - base_tokens, cut))
        else:
            parts.append(part)
    return KVState(state.n_tokens, tuple(parts))


def unpack_state(packed: PackedState, base: KVState | None = None) -> KVState:
    """Return the state that `packed` stands for; the same bits at every call.

    Args:
        packed: what `pack_state` made.
        base: the state that was packed, where it was cut: the rows before the cut come from it.

    Returns:
        A state in which the sections that are exact and whole are those of `packed`, and the others
        are fresh memory.

    Raises:
        SnapshotCorrupt: a row or a code could mean a number that is not finite, or padding is not
            zero.
        ValueError: it was cut, and `base` was not given.
    """
    parts = []
    for number, part in enumerate(packed.parts):
        n_before = part.first if part.kind == "dense" else 0
        if n_before and base is None:
            raise ValueError(f"the state begins at token {n_before}, and its base is not given")
        before = base.parts[number] if n_before and base is not None else None
        sections = tuple(
            _unpacked(
                section, part, packed.tier, before.sections[i].rows[:n_before] if before else None
            )
            for i, section in enumerate(part.sections)
        )
        parts.append(Part(part.kind, part.first - n_before, part.n_tokens + n_before, sections))
    return KVState(packed.n_tokens, tuple(parts))


def _unpacked(
    section: Section | PackedSection, part: PackedPart, tier: Tier, before: Rows | None
) -> Section:
    """Return a section's rows, behind those before a cut where there is one."""
    if isinstance(section, Section):
        if before is None:
            return section
        return replace(section, rows=np.concatenate((before, section.rows)))
    n_before = 0 if before is None else before.shape[0]
    rows = np.empty((n_before + section.shape[0], section.shape[1]), np.uint16)
    if before is not None:
        rows[:n_before] = before
    unpack_section(section, part.first, tier, section.run, rows[n_before:])
    return Section(section.layer, section.role, section.type, rows)


def _packed_part(part: Part, tier: Tier) -> PackedPart:
    has_values = any(section.role == "V" for section in part.sections)
    sections = tuple(
        (_pack(section, part.first, tier) if has_values else None) or section
        for section in part.sections
    )
    return PackedPart(part.kind, part.first, part.n_tokens, sections)


def _pack(section: Section, first: int, tier: Tier) -> PackedSection | None:
    """Pack a section, or return None where it stays exact."""
    shape = (section.rows.shape[0], section.rows.shape[1])
    run = run_of(tier, section.role, shape, first)
    if section.type != PACKED_TYPE or run is None:
        return None
    rows = section.rows
    if not are_finite(rows):
        return None
    n_exact = run.exact.shape[0]
    pack = pack_channels if axis_of(section.role) == "channels" else pack_tokens
    packed = pack(rows[n_exact:], bits=run.coding.bits, group=run.coding.group)
    if not are_finite_groups(packed, run.coding.bits):
        return None
    content = np.zeros(run.n_bytes, np.uint8)
    run.exact.halves(content)[...] = rows[:n_exact]
    run.scale.halves(content)[...] = packed.scale
    if packed.minimum is not None:
        run.minimum.halves(content)[...] = packed.minimum
    run.codes.codes(content)[...] = packed.codes
    return PackedSection(section.layer, section.role, section.type, shape, content)
