"""The engine's state bytes before their rows are there: heads and cells written, a place for each row.

A state is built by copying its rows to their places. A `LandedState` goes the other way round: its
rows are those places, so whoever reads them from disk has built the state by reading.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from edgellm.engines.llamacpp.lent import STATES
from edgellm.engines.llamacpp.pieces import state_pieces
from edgellm.engines.llamacpp.reader import dtype_of
from edgellm.errors import SnapshotIncompatible
from edgellm.kernels import transpose_f16
from edgellm.store.state import KVState, Part, PartOutline, Section, SectionOutline

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edgellm.engines.llamacpp.memory import Layout

_F16_BYTES: Final = 2


@dataclass(frozen=True, slots=True)
class Frame:
    """A whole state's bytes, and where in them the rows of each section belong.

    Attributes:
        layout: of the context it was made for.
        blob: shape (n_bytes,).
        places: of each part, of each section, an array of its rows' shape that lies in `blob`. It
            may have any strides, and lie at an odd address.
    """

    layout: Layout
    blob: NDArray[np.uint8]
    places: tuple[tuple[NDArray[Any], ...], ...]

    def fill(self, state: KVState) -> None:
        """Copy the rows of a state to their places, but those that lie there already."""
        for part, places in zip(state.parts, self.places, strict=True):
            for section, place in zip(part.sections, places, strict=True):
                if section.rows is not place:
                    _copy(section.rows, place)


@dataclass(frozen=True, slots=True)
class LandedState(KVState):
    """A state to be filled in, most of whose rows are already where the engine takes them from."""

    frame: Frame


def outline(state: KVState) -> tuple[PartOutline, ...]:
    """Return the shapes of a state.

    Raises:
        SnapshotIncompatible: rows are not of their type's dtype.
    """
    return tuple(
        PartOutline(
            kind=part.kind,
            first=part.first,
            n_tokens=part.n_tokens,
            sections=tuple(_section_outline(section) for section in part.sections),
        )
        for part in state.parts
    )


def _section_outline(section: Section) -> SectionOutline:
    rows = section.rows
    if rows.ndim != 2 or rows.dtype != dtype_of(section.type):  # rows and channels
        raise SnapshotIncompatible(f"rows of {section.type} as {rows.dtype} of shape {rows.shape}")
    n, width = rows.shape
    return SectionOutline(section.layer, section.role, section.type, (n, width))


def make_frame(parts: tuple[PartOutline, ...], layout: Layout) -> Frame:
    """Take memory for a state of these shapes, and write all but its rows.

    Raises:
        SnapshotIncompatible: a state of this layout has other parts or sections.
    """
    pieces = state_pieces(parts, layout)
    blob = STATES.lend(sum(piece.n_bytes for of_part in pieces for piece in of_part))
    raw, at = blob.data, 0
    places: list[tuple[NDArray[Any], ...]] = []
    for of_part in pieces:
        found: dict[tuple[int, int], NDArray[Any]] = {}
        for piece in of_part:
            raw[at : at + len(piece.fixed)] = piece.fixed
            if piece.section is not None:
                place = piece.view(blob[at : at + piece.n_bytes])
                found[_canonical(piece.section)] = place
            at += piece.n_bytes
        places.append(tuple(found[key] for key in sorted(found)))
    return Frame(layout, blob, tuple(places))


def build(state: KVState, layout: Layout) -> Frame:
    """Write a state as the bytes that `llama_state_seq_set_data_ext` reads.

    A `LandedState` of this layout is there already, but for what could not be read in place.

    Raises:
        SnapshotIncompatible: its parts are not those of this layout.
    """
    if isinstance(state, LandedState) and state.frame.layout == layout:
        frame = state.frame
    else:
        frame = make_frame(outline(state), layout)
    frame.fill(state)
    return frame


def land(parts: tuple[PartOutline, ...], layout: Layout) -> LandedState:
    """Return a state of these shapes whose rows are to be written by the caller.

    Raises:
        SnapshotIncompatible: as `make_frame`.
    """
    frame = make_frame(parts, layout)
    return LandedState(
        n_tokens=parts[0].first + parts[0].n_tokens,
        parts=tuple(
            Part(
                kind=part.kind,
                first=part.first,
                n_tokens=part.n_tokens,
                sections=tuple(
                    Section(s.layer, s.role, s.type, _writable(place))
                    for s, place in zip(part.sections, places, strict=True)
                ),
            )
            for part, places in zip(parts, frame.places, strict=True)
        ),
        frame=frame,
    )


def _writable(place: NDArray[Any]) -> NDArray[Any]:
    """Return the place itself, or memory of its own where bytes cannot be read straight into it."""
    is_plain = place.flags.c_contiguous and place.flags.aligned
    return place if is_plain else np.empty(place.shape, place.dtype)


def _copy(rows: NDArray[Any], place: NDArray[Any]) -> None:
    is_column = place.itemsize == _F16_BYTES and place.T.flags.c_contiguous
    if is_column and not place.flags.c_contiguous:
        transpose_f16(rows, out=place.T)
    else:
        np.copyto(place, rows)


def _canonical(section: SectionOutline) -> tuple[int, int]:
    """Return what sorts the sections of a part."""
    return "KVXRS".find(section.role), section.layer
