"""Where an engine would put the intermediate results of a graph, and how much of that it would touch.

The engine reserves one buffer for the largest graph: each result is put where it fits best among what is
free, results that nobody reads any more are given back. The same is done here, with sizes alone.
Source: `ggml_dyn_tallocr_*` and `ggml_gallocr_alloc_graph_impl`, ggml-alloc.c, llama.cpp 0c1e57098.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

_ALIGNMENT: Final = 32  # TENSOR_ALIGNMENT, ggml-impl.h
_ENDLESS: Final = 1 << 62
_FLOAT_BYTES: Final = 4


class Space(NamedTuple):
    """What a graph takes.

    Attributes:
        reserved_bytes: the buffer, which is address space until it is written to.
        touched_bytes: what is written to when only the last token's logits are asked for.
        input_bytes: of those, what is there before the graph runs.
    """

    reserved_bytes: int
    touched_bytes: int
    input_bytes: int


@dataclass(slots=True, eq=False)
class Result:
    """One result of a graph.

    Attributes:
        n_bytes: as it is reserved.
        used_bytes: as it is when one token's logits are asked for.
        parents: what it is computed from.
        reuses: whether it may take the place of a parent that nobody else reads.
        is_input: whether it is there before the graph runs.
        n_readers: how many read it, while the graph is placed those that are still to come.
        at: its place.
    """

    n_bytes: int
    used_bytes: int
    parents: tuple[Result, ...] = ()
    reuses: bool = False
    is_input: bool = False
    n_readers: int = 0
    at: int = 0


class Arena:
    """A buffer without an end, given out by best fit; its largest extent is its size.

    Attributes:
        extent_bytes: the end of the highest place that was ever given out.
    """

    def __init__(self) -> None:
        self._free: list[list[int]] = [[0, _ENDLESS]]  # start and length, by start
        self.extent_bytes = 0

    def take(self, n_bytes: int) -> int:
        """Return a place: the smallest gap that it fits in, the end if there is none."""
        size = _aligned(n_bytes)
        best = self._free[-1]
        length = _ENDLESS
        for gap in self._free[:-1]:
            if size <= gap[1] <= length:
                best, length = gap, gap[1]
        at = best[0]
        best[0] += size
        best[1] -= size
        if not best[1]:
            self._free.remove(best)
        self.extent_bytes = max(self.extent_bytes, at + size)
        return at

    def give_back(self, at: int, n_bytes: int) -> None:
        """Make a place free, one with the gaps beside it."""
        size, gaps = _aligned(n_bytes), self._free
        if not size:
            return
        i = next((i for i, gap in enumerate(gaps) if gap[0] > at), len(gaps))
        if i < len(gaps) and at + size == gaps[i][0]:
            gaps[i][0], gaps[i][1] = at, gaps[i][1] + size
        else:
            gaps.insert(i, [at, size])
        if i and gaps[i - 1][0] + gaps[i - 1][1] == at:
            gaps[i - 1][1] += gaps[i][1]
            del gaps[i]


@dataclass(slots=True)
class Graph:
    """Results in the order in which they are computed.

    Attributes:
        n_tokens: of a batch: the rows of every result, until `choose_outputs`.
        n_outputs: tokens that logits are reserved for.
    """

    n_tokens: int
    n_outputs: int
    _inputs: list[Result] = field(default_factory=list)
    _results: list[Result] = field(default_factory=list)
    _rows: int = field(init=False)
    _used_rows: int = field(init=False)

    def __post_init__(self) -> None:
        self._rows = self._used_rows = self.n_tokens

    def input(self, n_bytes: int, *, used: bool = True) -> Result:
        """Add what is there before; what is not `used` is reserved and never written to."""
        made = Result(n_bytes, n_bytes if used else 0, is_input=True)
        self._inputs.append(made)
        return made

    def add(self, width: float, *parents: Result, reuses: bool = False) -> Result:
        """Add a result of `width` 32-bit floats a row."""
        n_bytes, used = (int(width * rows * _FLOAT_BYTES) for rows in (self._rows, self._used_rows))
        made = Result(n_bytes, used, parents, reuses=reuses)
        self._results.append(made)
        for parent in parents:
            parent.n_readers += 1
        return made

    def store(self, *parents: Result) -> None:
        """Add a step whose result lies elsewhere, in the memory of the sequence."""
        self.add(0, *parents)

    def keep(self, result: Result) -> None:
        """Never give a result back."""
        result.n_readers += 1

    def choose_outputs(self) -> None:
        """From here on there is a row only for each token whose logits are wanted."""
        self._rows, self._used_rows = self.n_outputs, 1

    def place(self) -> Space:
        """Return the space of the graph. The graph is used up."""
        arena = Arena()
        for made in self._inputs:
            made.at = arena.take(made.n_bytes)
        for made in self._results:
            replaced = _replaced(made)
            made.at = replaced.at if replaced else arena.take(made.n_bytes)
            for parent in made.parents:
                parent.n_readers -= 1
                if not parent.n_readers and parent is not replaced:
                    arena.give_back(parent.at, parent.n_bytes)
        return Space(
            arena.extent_bytes,
            _covered(self._inputs + self._results),
            sum(made.used_bytes for made in self._inputs),
        )


def _replaced(made: Result) -> Result | None:
    """Return the parent whose place a result takes."""
    if not made.reuses:
        return None
    fits = (
        parent
        for parent in made.parents
        if parent.n_readers == 1 and parent.n_bytes == made.n_bytes and not parent.is_input
    )
    return next(fits, None)


def _covered(results: list[Result]) -> int:
    """Return how many bytes any result is written to."""
    spans = sorted((made.at, made.at + made.used_bytes) for made in results if made.used_bytes)
    total, end = 0, 0
    for first, last in spans:
        total += max(0, last - max(first, end))
        end = max(end, last)
    return total


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // _ALIGNMENT) * _ALIGNMENT
