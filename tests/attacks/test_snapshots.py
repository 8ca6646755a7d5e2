"""Snapshot files that were damaged or made to deceive: a miss, every one, and nothing worse."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edgellm.core import Tier
from edgellm.store.format import layout
from edgellm.store.format.runs import run_of
from edgellm.store.snapshots import Hit, Miss, Saved, SnapshotStore

if TYPE_CHECKING:
    from collections.abc import Callable

TOKENS = list(range(12))
N_MUTATIONS = 300
GENERATOR = Path(__file__).parents[1] / "field" / "gen_inputs.py"
MAX_PEAK_BYTES = 4 << 20


def with_peak(look: Callable[[], Hit | Miss]) -> tuple[Hit | Miss, int]:
    """Call `look`; return what it found and the most bytes it held at once."""
    tracemalloc.start()
    try:
        return look(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


class Victim:
    """A store with one snapshot whose file a test overwrites."""

    def __init__(self, folder: Path, files: Any, how: str = "exact") -> None:
        self.files = files
        self.tier = Tier(how) if how in {"exact", "q4"} else Tier.EXACT
        self.store = SnapshotStore(folder)
        base = None
        if how == "delta-1":
            short = files.hybrid(5, seed=3)
            outcome = self.store.save(files.FINGERPRINT, TOKENS[:5], short)
            assert isinstance(outcome, Saved)
            self.state, base = files.grown(short, 12, 4), outcome.anchor
        else:
            makers = {"exact": files.state, "kinds-2": files.hybrid, "planes-1": files.smooth}
            self.state = makers[how]() if how in makers else files.packed(self.tier)
        saved = self.store.save(
            files.FINGERPRINT, TOKENS, self.state, base=base, lossless=how == "planes-1"
        )
        assert isinstance(saved, Saved)
        needs = files.split(saved.path.read_bytes())[0]["required_features"]
        assert how in (*needs, self.tier.value)
        self.path = saved.path
        self.content = saved.path.read_bytes()

    def lookup(self, content: bytes) -> Hit | Miss:
        """Put `content` in the place of the snapshot and look it up."""
        self.path.write_bytes(content)
        return self.store.lookup(self.files.FINGERPRINT, TOKENS, self.tier)


@pytest.fixture
def victim(tmp_path: Path, snapshot_files: Any) -> Victim:
    """Make a store with one snapshot."""
    return Victim(tmp_path, snapshot_files)


@pytest.fixture(params=["exact", "q4", "kinds-2", "delta-1", "planes-1"])
def any_victim(request, tmp_path: Path, snapshot_files: Any) -> Victim:
    """Make a store with one snapshot: exact, packed, or with a feature that came later."""
    return Victim(tmp_path, snapshot_files, request.param)


@pytest.mark.parametrize(
    "n_mutations", [N_MUTATIONS, pytest.param(10 * N_MUTATIONS, marks=pytest.mark.full)]
)
def test_no_random_damage_is_ever_used(any_victim: Victim, n_mutations: int):
    """Flips, cuts, extensions, swaps and overwritings: no hit but the undamaged file."""
    rng = random.Random(20_260_101)
    n_misses = 0
    for _ in range(n_mutations):
        damaged = any_victim.files.mutate(any_victim.content, rng)
        found = any_victim.lookup(damaged)
        if damaged == any_victim.content:
            assert isinstance(found, Hit)
            continue
        assert isinstance(found, Miss), any_victim.store
        n_misses += 1
    assert n_misses > n_mutations * 0.9


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.full)])
def test_every_byte_of_a_file_is_covered(any_victim: Victim, step: int):
    """A flip of any single byte, padding and footer included, is a miss."""
    for offset in range(0, len(any_victim.content), step):
        damaged = bytearray(any_victim.content)
        damaged[offset] ^= 0x80
        assert isinstance(any_victim.lookup(bytes(damaged)), Miss), offset


@pytest.mark.parametrize(
    "n_mutations", [N_MUTATIONS, pytest.param(10 * N_MUTATIONS, marks=pytest.mark.full)]
)
def test_damage_anywhere_in_a_chain_gives_no_other_state(
    tmp_path: Path, snapshot_files: Any, n_mutations: int
):
    """Any of its files, damaged or taken from another chain: the same bits, or a miss."""
    files, rng = snapshot_files, random.Random(20_260_102)
    store = SnapshotStore(tmp_path)
    state, base, contents = files.hybrid(4, seed=1), None, {}
    for n in (4, 7, 12):
        state = state if n == 4 else files.grown(state, n, seed=n)
        saved = store.save(files.FINGERPRINT, TOKENS[:n], state, base=base, lossless=n == 7)
        assert isinstance(saved, Saved)
        base, contents[saved.path] = saved.anchor, saved.path.read_bytes()
    n_hits = 0
    for _ in range(n_mutations):
        for path, content in contents.items():
            path.write_bytes(content)
        victim = rng.choice(list(contents))
        source = rng.choice([victim, victim, victim, *contents])
        victim.write_bytes(files.mutate(contents[source], rng))
        found = store.lookup(files.FINGERPRINT, TOKENS)
        if isinstance(found, Hit):
            n_hits += 1
            assert files.same(state, found.state)
        else:
            assert found.code in {"corrupt", "base_missing", "incompatible", "foreign_tokens"}
    assert n_hits < n_mutations / 2


def test_every_damaged_copy_of_the_generator_is_a_clean_miss(
    any_victim: Victim, tmp_path_factory: pytest.TempPathFactory
):
    """The field samples' generator makes some twenty of them."""
    folder = tmp_path_factory.mktemp("copies")
    source = folder / "source.ekv"
    source.write_bytes(any_victim.content)
    command = [sys.executable, str(GENERATOR), "mutate", str(source), str(folder / "out")]
    subprocess.run(command, check=True, capture_output=True)
    copies = [path.read_bytes() for path in (folder / "out").iterdir()]
    assert len(copies) >= 15
    for content in copies:
        found = any_victim.lookup(content)
        assert isinstance(found, Miss) or content == any_victim.content


def test_every_length_but_the_right_one_is_a_miss(victim: Victim):
    """Cut anywhere, or longer by anything up to another file."""
    lengths = [*range(0, len(victim.content), 7), *range(len(victim.content) - 70, 10_000, 61)]
    for n_bytes in lengths:
        if n_bytes != len(victim.content):
            content = (victim.content * 3)[:n_bytes]
            assert isinstance(victim.lookup(content), Miss), n_bytes


def test_sections_of_another_snapshot_do_not_pass(victim: Victim, tmp_path: Path):
    """Each run of bytes, taken from a whole snapshot of the same shape, is noticed."""
    other = Victim(tmp_path / "other", victim.files)
    state = victim.files.state(seed=1234)
    saved = other.store.save(victim.files.FINGERPRINT, TOKENS[::-1], state)
    assert isinstance(saved, Saved)
    foreign = saved.path.read_bytes()
    assert len(foreign) == len(victim.content)
    for offset, n_bytes in victim.files.extents(victim.content):
        damaged = bytearray(victim.content)
        damaged[offset : offset + n_bytes] = foreign[offset : offset + n_bytes]
        assert isinstance(victim.lookup(bytes(damaged)), Miss)


def _preamble(magic: bytes, header_bytes: int) -> bytes:
    return struct.pack("<8sI", magic, header_bytes)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 4096,
        b"EDGE",
        _preamble(layout.MAGIC, 0),
        _preamble(layout.MAGIC, (1 << 32) - 1) + bytes(100),
        _preamble(layout.MAGIC, 1 << 20) + bytes(1 << 21),
        _preamble(layout.END_MAGIC, 64) + bytes(100),
        _preamble(b"GGUF\3\0\0\0", 64) + bytes(100),
    ],
)
def test_what_only_looks_like_a_snapshot_takes_no_memory(victim: Victim, content: bytes):
    """A claimed length is not believed before the file has it."""
    found, peak = with_peak(lambda: victim.lookup(content))
    assert isinstance(found, Miss)
    assert found.reason.startswith("corrupt: ")
    assert peak < MAX_PEAK_BYTES


@pytest.mark.parametrize("shape", [(1 << 40, 64), (12, 1 << 50)])
def test_a_packed_section_that_promises_terabytes_takes_no_memory(
    tmp_path: Path, snapshot_files: Any, shape: tuple[int, int]
):
    """What comes out of a packed file is bounded by the file, as its shapes are by its length."""
    victim = Victim(tmp_path, snapshot_files, "q4")

    def grow(header: dict[str, Any]) -> None:
        part = header["parts"][1]
        section = part["sections"][-1]
        run = run_of(Tier.Q4, "V", shape, part["first"])
        section["n_bytes"], section["shape"] = run.n_bytes, [*shape]

    victim.files.forge(victim.path, grow)
    found, peak = with_peak(lambda: victim.store.lookup(victim.files.FINGERPRINT, TOKENS, Tier.Q4))
    assert isinstance(found, Miss)
    assert found.reason.startswith("corrupt: ")
    assert peak < MAX_PEAK_BYTES


@pytest.mark.parametrize("n_bytes", [1 << 40, (1 << 53) - 64])
def test_a_header_that_promises_terabytes_takes_no_memory(victim: Victim, n_bytes: int):
    """Right checksums do not help: the file's own length bounds what is allocated."""

    def grow(header: dict[str, Any]) -> None:
        section = header["parts"][-1]["sections"][-1]
        section["n_bytes"] = n_bytes
        section["shape"] = [1, n_bytes]

    victim.files.forge(victim.path, grow)
    found, peak = with_peak(lambda: victim.store.lookup(victim.files.FINGERPRINT, TOKENS))
    assert isinstance(found, Miss)
    assert found.reason.startswith("corrupt: the header says")
    assert peak < MAX_PEAK_BYTES


def test_a_length_in_the_footer_that_lies_is_a_miss(victim: Victim):
    """The footer repeats length and header checksum; both must agree."""
    header, data = victim.files.split(victim.content)
    assert isinstance(victim.lookup(victim.files.join(header, data)), Hit)
    assert isinstance(victim.lookup(victim.files.join(header, data, n_bytes=99)), Miss)
    assert isinstance(victim.lookup(victim.files.join(header, data + bytes(64))), Miss)


def test_check_names_each_damage_and_lists_nothing_false(victim: Victim):
    """`check` sees what `lookup` sees, and mends it."""
    rng = random.Random(7)
    for _ in range(50):
        damaged = victim.files.mutate(victim.content, rng)
        if damaged == victim.content:
            continue
        victim.path.write_bytes(damaged)
        assert {f.path for f in victim.store.check()} == {victim.path}
        victim.store.check(fix=True)
        assert victim.store.check() == []
        victim.path.parent.mkdir(mode=0o700, exist_ok=True)
