"""Runs of a file that fill arrays: the right bits, or a no; and what is not asked of the library."""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xxhash

from edgellm import kernels
from edgellm.kernels import PackedRun, _choice, _filling

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from edgellm.kernels import Filling, Packed

UNPACK: dict[str, Any] = {
    "channels": (kernels.pack_channels, kernels.unpack_channels),
    "tokens": (kernels.pack_tokens, kernels.unpack_tokens),
}
N_EXACT, SHAPE, GROUP = 4, (74, 130), 32
LENGTHS = (241, 255, 256, 257, 1023, 1024, 1025, 1088, 2048, 2049, 5000, 600_001)


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // 64) * 64


class Disk:
    """A file that runs are appended to, with zeros up to the next multiple of 64."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.write_bytes(b"before the runs".ljust(64, b"."))
        self.fd = os.open(path, os.O_RDONLY)

    def append(self, run: bytes) -> tuple[int, int, bytes]:
        """Return what `add` is told of a run: its offset, its length, its sum."""
        offset = self.path.stat().st_size
        with self.path.open("ab") as file:
            file.write(run.ljust(_aligned(len(run)), b"\0"))
        return offset, len(run), xxhash.xxh3_128_digest(run)

    def overwrite(self, at: int, content: bytes) -> None:
        """Change bytes of the file."""
        with self.path.open("r+b") as file:
            file.seek(at)
            file.write(content)

    def filling(self) -> Filling:
        """Return a filling from it, which the native library has."""
        work = kernels.filling(self.fd)
        assert work is not None
        return work


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Open an empty file of runs."""
    file = Disk(tmp_path / "runs")
    yield file
    os.close(file.fd)


@pytest.fixture(params=kernels.available_isas()[:-1])
def row(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a test on every row of the native library."""
    library = _choice.native()
    assert library is not None
    assert library.force_isa(request.param)
    yield request.param
    assert library.force_isa("")


def _bytes(n: int, seed: int = 5) -> bytes:
    return np.random.default_rng(seed).bytes(n)


def _packed(axis: str, bits: int) -> tuple[bytes, PackedRun, np.ndarray]:
    """Return a run of exact and packed rows, how it is laid out, and the rows it stands for."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal(SHAPE).astype(np.float16).view(np.uint16)
    pack, unpack = UNPACK[axis]
    packed: Packed = pack(x[N_EXACT:], bits=bits, group=GROUP)
    run, places = b"", []
    for piece in (x[:N_EXACT], packed.scale, packed.minimum, packed.codes):
        run = run.ljust(_aligned(len(run)), b"\0")
        places.append(len(run))
        run += b"" if piece is None else piece.tobytes()
    rows = x.copy()
    unpack(packed, SHAPE[1], bits=bits, group=GROUP, out=rows[N_EXACT:])
    return run, PackedRun(axis, bits, GROUP, N_EXACT, *places[1:]), rows  # type: ignore[arg-type]


def _outs() -> list[np.ndarray]:
    """Return rows, columns, and both with gaps."""
    wide, tall = (SHAPE[0], SHAPE[1] + 3), (SHAPE[1], SHAPE[0] + 5)
    return [
        np.full(SHAPE, 7, np.uint16),
        np.full(SHAPE[::-1], 7, np.uint16).T,
        np.full(wide, 7, np.uint16)[:, :-3],
        np.full(tall, 7, np.uint16)[:, 5:].T,
    ]


def test_sums_are_those_of_xxhash(row: str, disk: Disk) -> None:
    """Every length around a stripe, a block and a piece; the bytes come where they belong."""
    work, outs, runs = disk.filling(), [], [_bytes(n, seed=n) for n in LENGTHS]
    for run in runs:
        outs.append(np.zeros(len(run), np.uint8))
        assert work.add(*disk.append(run), outs[-1]), row
    work.do()
    assert work.is_whole
    assert [out.tobytes() for out in outs] == runs


@pytest.mark.parametrize("bits", [8, 6, 5, 4])
@pytest.mark.parametrize("axis", sorted(UNPACK))
def test_packed_runs_become_what_the_codec_unpacks(
    row: str, disk: Disk, axis: str, bits: int
) -> None:
    """Exact rows first; into rows and columns, and gaps keep what they hold."""
    run, packed, rows = _packed(axis, bits)
    work, outs, at = disk.filling(), _outs(), disk.append(run)
    for out in outs:
        assert work.add(*at, out, packed), row
    work.do()
    assert work.is_whole
    for out in outs:
        np.testing.assert_array_equal(out, rows)
    assert outs[2].base is not None
    assert (outs[2].base[:, -3:] == 7).all()


def test_rows_are_turned_where_columns_are_wanted(row: str, disk: Disk) -> None:
    """As values lie in an engine without flash attention."""
    rows = np.frombuffer(_bytes(2 * SHAPE[0] * SHAPE[1]), np.uint16).reshape(SHAPE)
    work, at = disk.filling(), disk.append(rows.tobytes())
    _, columns, gaps, columns_with_gaps = _outs()
    assert work.add(*at, columns), row
    assert work.add(*at, columns_with_gaps)
    assert not work.add(*at, gaps)
    work.do()
    assert work.is_whole
    np.testing.assert_array_equal(columns, rows)
    np.testing.assert_array_equal(columns_with_gaps, rows)
    assert (gaps == 7).all()


@pytest.mark.parametrize("axis", ["channels", "tokens", "plain", "turned"])
def test_any_changed_byte_is_a_no(disk: Disk, axis: str) -> None:
    """In the run and in the zeros after it, at every seventh place."""
    run, packed, _ = _packed("tokens" if axis in ("plain", "turned") else axis, 4)
    if axis in ("plain", "turned"):
        run = run[: 2 * 40 * 20 + 2]
    offset, n_bytes, digest = disk.append(run)
    out = np.zeros(SHAPE, np.uint16)
    if axis == "plain":
        out = np.zeros(len(run), np.uint8)  # type: ignore[assignment]
    elif axis == "turned":
        out = np.zeros((3, len(run) // 6), np.uint16).T
        offset, n_bytes, digest = disk.append(run := run[: out.nbytes])
    for at in [*range(0, len(run), 7), *range(len(run), _aligned(len(run)))]:
        byte = (run + bytes(64))[at]
        disk.overwrite(offset + at, bytes([byte ^ 16]))
        work = disk.filling()
        how = packed if axis in UNPACK else None
        assert work.add(offset, n_bytes, digest, out, how)
        work.do()
        assert not work.is_whole, at
        disk.overwrite(offset + at, bytes([byte]))


def _forged(axis: str, bits: int, piece: str, value: int) -> tuple[bytes, PackedRun]:
    """Return a run with one value written into a piece, as somebody would who can compute sums."""
    run, packed, _ = _packed(axis, bits)
    content = bytearray(run)
    places = {"exact": 6, "scale": packed.scale + 6, "minimum": packed.minimum + 6}
    places |= {
        f"before {name}": getattr(packed, name) - 2 for name in ("scale", "minimum", "codes")
    }
    n_scales = -(-(SHAPE[0] - N_EXACT) // GROUP) * SHAPE[1]
    if axis == "tokens":
        n_scales = (SHAPE[0] - N_EXACT) * -(-SHAPE[1] // GROUP)
    places |= {f"last {name}": places[name] - 8 + 2 * n_scales for name in ("scale", "minimum")}
    content[places[piece] : places[piece] + 2] = value.to_bytes(2, "little")
    return bytes(content), packed


@pytest.mark.parametrize(
    ("bits", "piece", "value", "is_fine"),
    [
        (8, "exact", 0x7BFF, True),
        (8, "exact", 0x7C00, False),
        (8, "exact", 0xFE01, False),
        (8, "scale", 0x5FFF, True),
        (8, "scale", 0xDFFF, True),
        (8, "scale", 0x6000, False),
        (8, "scale", 0x7E00, False),
        (4, "scale", 0x6C00, True),
        (4, "scale", 0x7C00, False),
        (4, "minimum", 0xFBFF, True),
        (4, "minimum", 0x7BFF, False),
        (4, "minimum", 0x7E00, False),
        (6, "minimum", 0xFC00, False),
        (8, "last scale", 0x6000, False),
        (5, "last scale", 0x7C00, False),
        (5, "last minimum", 0x7E00, False),
        (8, "before scale", 0x0100, False),
        (8, "before codes", 0x0100, False),
        (6, "before minimum", 0x0100, False),
        (6, "before codes", 0x0100, False),
    ],
)
@pytest.mark.parametrize("axis", sorted(UNPACK))
def test_what_is_not_finite_or_no_zero_is_a_no(
    row: str, disk: Disk, axis: str, bits: int, piece: str, value: int, is_fine: bool
) -> None:
    """Though the sum is right; then no row is written."""
    run, packed = _forged(axis, bits, piece, value)
    work, out = disk.filling(), np.full(SHAPE, 7, np.uint16)
    assert work.add(*disk.append(run), out, packed), row
    work.do()
    assert work.is_whole == is_fine
    assert is_fine != bool((out == 7).all())


def test_after_a_no_the_rest_is_left(disk: Disk) -> None:
    """What comes behind is not looked at any more."""
    good, bad = disk.append(_bytes(300)), disk.append(_bytes(300, 6))
    work, outs = disk.filling(), np.zeros((3, 300), np.uint8)
    work.add(*good, outs[0])
    work.add(bad[0], bad[1], good[2], outs[1])
    work.add(*good, outs[2])
    work.do()
    assert not work.is_whole
    assert outs[0].any()
    assert not outs[2].any()


def test_a_no_in_one_thread_is_one_for_all(disk: Disk) -> None:
    """The library leaves nothing for the others to take, and does not go without the room it needs."""
    run, packed, _ = _packed("tokens", 8)
    good, bad = disk.append(run), disk.append(run[:-1] + b"x")
    work, outs = disk.filling(), np.zeros((3, *SHAPE), np.uint16)
    for at, out in zip(((*bad[:2], good[2]), good, good), outs, strict=True):
        assert work.add(*at, out, packed)
    table = (ctypes.c_char * len(work._table)).from_buffer(work._table)
    taken, room = ctypes.c_size_t(0), np.empty(len(run), np.uint8)
    assert work._library.fill(disk.fd, table, 3, taken, room, 1000) is False
    assert work._library.fill(disk.fd, table, 3, taken, room, 1000) is True
    assert not outs.any()
    with pytest.raises(AssertionError, match="refused"):
        work._library.fill(disk.fd, table, 3, ctypes.c_size_t(1), room[:-1], 1000)
    assert not outs.any()


def test_a_call_comes_back_between_runs(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its time, so that signals are heard; every call does one run at least."""
    monkeypatch.setattr(_filling, "_MAX_MS", 0)
    at, work, calls = disk.append(_bytes(300)), disk.filling(), []
    outs = [np.zeros(300, np.uint8) for _ in range(5)]
    assert all(work.add(*at, out) for out in outs)
    real = work._library.fill

    def counted(*arguments: Any) -> bool | None:
        calls.append(sum(out.any() for out in outs))
        return real(*arguments)

    monkeypatch.setattr(work._library, "fill", counted)
    work.do()
    assert work.is_whole
    assert calls == [0, 1, 2, 3, 4, 5]


def test_a_file_that_ends_early_or_cannot_be_read_is_a_no(disk: Disk, tmp_path: Path) -> None:
    """Neither hangs nor raises: the caller reads it again and says why."""
    offset, n_bytes, digest = disk.append(_bytes(1000))
    out = np.zeros(n_bytes, np.uint8)
    os.truncate(disk.path, offset + 900)
    folder = os.open(tmp_path, os.O_RDONLY)
    for fd in (disk.fd, folder):
        work = kernels.filling(fd)
        assert work is not None
        assert work.add(offset, n_bytes, digest, out)
        work.do()
        assert not work.is_whole
    os.close(folder)


def test_threads_share_the_work(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run is done once, also where every call comes back after one run."""
    monkeypatch.setattr(_filling, "_MAX_MS", 0)
    run, packed, rows = _packed("channels", 8)
    at, outs = disk.append(run), [np.zeros(SHAPE, np.uint16) for _ in range(40)]
    work = disk.filling()
    assert all(work.add(*at, out, packed) for out in outs)
    threads = [threading.Thread(target=work.do) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert work.is_whole
    assert all(np.array_equal(out, rows) for out in outs)


def test_what_one_thread_raises_stops_the_others(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an interrupt from the keyboard does: whoever waits for them waits for one run at most."""
    at, work = disk.append(_bytes(300)), disk.filling()
    outs = [np.zeros(300, np.uint8) for _ in range(3)]
    assert all(work.add(*at, out) for out in outs)

    def interrupted(*_: object) -> bool | None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(work._library, "fill", interrupted)
        with pytest.raises(KeyboardInterrupt):
            work.do()
    work.do()
    assert not any(out.any() for out in outs)


def test_what_the_library_has_no_name_for_is_left(disk: Disk) -> None:
    """Short runs, gaps in rows that are not packed, other types in columns, odd addresses."""
    run, packed, _ = _packed("tokens", 8)
    at, work = disk.append(run), disk.filling()
    odd = np.zeros(2 * SHAPE[0] * SHAPE[1] + 1, np.uint8)[1:].view(np.uint16).reshape(SHAPE)
    assert not work.add(*at, odd, packed)
    assert not work.add(*at, np.zeros(SHAPE[::-1], np.uint16)[::-1].T, packed)
    assert not work.add(*disk.append(bytes(240)), np.zeros(240, np.uint8))
    wide = np.zeros((100, 8), np.uint32)
    assert not work.add(*disk.append(wide.tobytes()), np.zeros((8, 100), np.uint32).T)
    work.do()
    assert work.is_whole


def test_arrays_that_do_not_fit_are_refused(disk: Disk) -> None:
    """Before anything is written."""
    at, work = disk.append(_bytes(300)), disk.filling()
    constant = np.zeros(300, np.uint8)
    constant.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        work.add(*at, constant)
    with pytest.raises(ValueError, match="a sum has 3 bytes"):
        work.add(at[0], at[1], b"sum", np.zeros(300, np.uint8))
    with pytest.raises(ValueError, match="out has 299 bytes, the run 300"):
        work.add(*at, np.zeros(299, np.uint8))
    run, packed, _ = _packed("tokens", 8)
    with pytest.raises(ValueError, match="4 exact rows of 3"):
        work.add(*disk.append(run), np.zeros((3, SHAPE[1]), np.uint16), packed)


def test_places_that_contradict_the_counts_are_a_bug(disk: Disk) -> None:
    """Who lays a run out makes no such thing: it is not taken for a damaged file."""
    run, packed, _ = _packed("tokens", 6)
    at = disk.append(run)
    fields = [getattr(packed, name) for name in packed.__slots__]
    for changed, by in itertools.product((3, 4, 5, 6), (-64, 64)):
        work, wrong = disk.filling(), list(fields)
        wrong[changed] += by
        if wrong[3] < 0 or wrong[3] > SHAPE[0]:
            continue
        assert work.add(*at, np.zeros(SHAPE, np.uint16), PackedRun(*wrong))
        with pytest.raises(AssertionError, match="refused"):
            work.do()


def test_numpy_fills_nothing(native_isa: str, disk: Disk) -> None:
    """Without the library the caller reads by itself."""
    assert (kernels.filling(disk.fd) is None) == (native_isa == "numpy")
