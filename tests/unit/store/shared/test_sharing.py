"""The shared tier between two stores: what comes is right or refused, and a place that fails is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgellm.core import Tier
from edgellm.errors import FetchError, UsageError
from edgellm.store.sealed.keys import StoreKey
from edgellm.store.shared.read_through import ReadThroughStore
from edgellm.store.shared.remote import Seals
from edgellm.store.shared.sharing import SharedTier
from edgellm.store.snapshots import Hit, Miss, Saved, SnapshotStore
from edgellm.store.state import Fingerprint

TOKENS = list(range(100, 112))
LONG_S = 60.0


class Place:
    """A `RemoteTier` in a dict, which counts what it is asked for and can fail or dawdle."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.n_calls = 0
        self.fails_after = 1 << 30
        self.delay_s = 0.0

    def _called(self) -> None:
        self.n_calls += 1
        time.sleep(self.delay_s)
        if self.n_calls > self.fails_after:
            raise FetchError("the place is gone")

    def size(self, name: str) -> int | None:
        self._called()
        return len(self.values[name]) if name in self.values else None

    def read(self, name: str, start: int, n_bytes: int) -> bytes:
        self._called()
        return self.values.get(name, b"")[start : start + n_bytes]

    def write(self, name: str, pieces: Sequence[bytes]) -> None:
        self._called()
        self.values[name] = b"".join(pieces)

    def close(self) -> None:
        pass


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.fixture
def share(place: Place) -> Callable[..., SharedTier]:
    def make(store: SnapshotStore, **options: Any) -> SharedTier:
        options = {"refusal": lambda: "", "writes_back": True, "max_bytes": 1 << 20} | options
        secret = options.pop("secret", b"a secret of some length")
        return SharedTier(store._files, place, Seals(secret), **options)

    return make


@pytest.fixture
def there(tmp_path: Path) -> SnapshotStore:
    """Open the store of another machine."""
    return SnapshotStore(tmp_path / "there")


@pytest.fixture
def pair(
    store: SnapshotStore, there: SnapshotStore, saved: Saved, fingerprint: Any, share: Any,
    place: Place,
) -> SimpleNamespace:  # fmt: skip
    """Two machines, of which one, with `store`, has saved a snapshot."""
    return SimpleNamespace(
        store=store,
        there=there,
        saved=saved,
        fingerprint=fingerprint,
        share=share,
        place=place,
    )


def fetch(tier: SharedTier, fingerprint: Fingerprint, **options: Any) -> bool:
    cuts = options.pop("cuts", [len(TOKENS)])
    worth_s = options.pop("worth_s", lambda _: LONG_S)
    return tier.fetch(fingerprint, TOKENS, cuts, options.pop("tier", Tier.EXACT), worth_s)


def test_one_machine_reads_what_another_wrote(pair: Any) -> None:
    """The bytes of the file are the same, and the lookup that missed is a hit."""
    assert pair.share(pair.store).offer(pair.fingerprint, TOKENS, pair.saved.path)
    tier = pair.share(pair.there)
    assert isinstance(pair.there.lookup(pair.fingerprint, TOKENS), Miss)
    assert fetch(tier, pair.fingerprint)
    hit = pair.there.lookup(pair.fingerprint, TOKENS)
    assert isinstance(hit, Hit)
    assert hit.info.path.read_bytes() == pair.saved.path.read_bytes()
    assert (tier.exchanged.n_fetched, tier.exchanged.n_refused) == (1, 0)
    assert str(tier.exchanged).startswith("asked 1, 1 came")
    assert tier.exchanged.bytes_in > pair.saved.n_bytes


def test_what_lies_there_is_not_sent_again(
    store: SnapshotStore, saved: Saved, fingerprint: Any, share: Any, place: Place
) -> None:
    """One look at the length, and no bytes."""
    tier = share(store)
    assert tier.offer(fingerprint, TOKENS, saved.path)
    n_calls = place.n_calls
    assert not tier.offer(fingerprint, TOKENS, saved.path)
    assert place.n_calls == n_calls + 1
    assert tier.exchanged.n_sent == 1


def test_without_a_permit_nothing_is_asked(
    store: SnapshotStore, saved: Saved, fingerprint: Any, share: Any, place: Place
) -> None:
    """Neither a get nor a put reaches the place, and the tier says why."""
    tier = share(store, refusal=lambda: "mode private")
    assert not tier.offer(fingerprint, TOKENS, saved.path)
    assert not fetch(tier, fingerprint)
    assert place.n_calls == 0
    assert tier.trouble == "mode private"


def test_without_write_back_nothing_is_sent(
    store: SnapshotStore, saved: Saved, fingerprint: Any, share: Any, place: Place
) -> None:
    """Reading through is all that a reader does."""
    assert not share(store, writes_back=False).offer(fingerprint, TOKENS, saved.path)
    assert place.n_calls == 0


def damages() -> dict[str, Callable[[bytes], bytes]]:
    return {
        "flipped in the seal": lambda v: v[:9] + bytes([v[9] ^ 1]) + v[10:],
        "flipped in a row": lambda v: v[:-100] + bytes([v[-100] ^ 1]) + v[-99:],
        "truncated": lambda v: v[:-1],
        "empty": lambda _: b"",
        "a seal alone": lambda v: v[:40],
        "extended": lambda v: v + b"\0",
        "something else": lambda _: b"<html>not found</html>" * 100,
    }


@pytest.mark.parametrize("damage", damages())
def test_a_broken_value_is_a_miss(pair: Any, damage: str) -> None:
    """And leaves nothing in the store."""
    pair.share(pair.store).offer(pair.fingerprint, TOKENS, pair.saved.path)
    (name,) = pair.place.values
    pair.place.values[name] = damages()[damage](pair.place.values[name])
    tier = pair.share(pair.there)
    assert not fetch(tier, pair.fingerprint)
    assert not list(pair.there.entries())
    assert not list(pair.there.root.rglob("*.ekv*"))
    assert tier.trouble == ""


def test_a_value_of_another_prefix_or_secret_is_a_miss(pair: Any) -> None:
    """Put under this name by whoever has not the secret, or moved from another name."""
    pair.share(pair.store, secret=b"another secret entirely").offer(
        pair.fingerprint, TOKENS, pair.saved.path
    )
    (value,) = pair.place.values.values()
    mine = Seals(b"a secret of some length")
    ids = b"".join(token.to_bytes(4, "little") for token in TOKENS)
    pair.place.values[mine.name(pair.fingerprint.digest(), ids)] = value
    assert not fetch(pair.share(pair.there), pair.fingerprint)
    pair.place.values.clear()
    pair.share(pair.store).offer(pair.fingerprint, TOKENS, pair.saved.path)
    (value,) = pair.place.values.values()
    pair.place.values = {mine.name(pair.fingerprint.digest(), ids[:-4]): value}
    assert not fetch(pair.share(pair.there), pair.fingerprint, cuts=[len(TOKENS) - 1])
    assert not list(pair.there.entries())


def test_what_it_leans_on_comes_first(
    store: SnapshotStore, there: SnapshotStore, fingerprint: Any, snapshot_files: Any, share: Any
) -> None:
    """A snapshot that keeps only what came after another brings that one along."""
    whole = snapshot_files.state()
    base = store.save(fingerprint, TOKENS[:4], snapshot_files.state(4))
    assert isinstance(base, Saved)
    leaning = store.save(fingerprint, TOKENS, whole, base=base.anchor)
    assert isinstance(leaning, Saved)
    for tokens, saved in ((TOKENS[:4], base), (TOKENS, leaning)):
        assert share(store).offer(fingerprint, tokens, saved.path)
    assert fetch(share(there), fingerprint)
    assert isinstance(there.lookup(fingerprint, TOKENS), Hit)
    assert isinstance(there.lookup(fingerprint, TOKENS[:4]), Hit)


def test_room_is_not_made_of_what_it_leans_on(
    tmp_path: Path, place: Place, fingerprint: Any, snapshot_files: Any
) -> None:
    """Under a cap that holds the two but nothing more, the older one is not the one that goes."""
    here = through(tmp_path / "here", place)
    base = here.save(fingerprint, TOKENS[:4], snapshot_files.state(4))
    assert isinstance(base, Saved)
    leaning = here.save(fingerprint, TOKENS, snapshot_files.state(), base=base.anchor)
    assert isinstance(leaning, Saved)
    cap = base.n_bytes + (64 << 10)  # folders and last blocks; not the two files and room for one
    there = through(tmp_path / "there", place, cap_bytes=cap, floor_bytes=0)
    there.longest(fingerprint, TOKENS, [12])
    found = there.longest(fingerprint, TOKENS, [4, 12])
    assert isinstance(found, Hit)


def test_a_value_that_memory_cannot_hold_is_a_miss(
    pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lookup goes on without it."""
    pair.share(pair.store).offer(pair.fingerprint, TOKENS, pair.saved.path)

    def no_memory(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("edgellm.store.shared.sharing.bytearray", no_memory, raising=False)
    assert not fetch(pair.share(pair.there), pair.fingerprint)


def test_a_place_that_fails_is_not_asked_again(pair: Any) -> None:
    """In the middle of a value: one miss, one reason, and no more calls."""
    pair.share(pair.store).offer(pair.fingerprint, TOKENS, pair.saved.path)
    tier = pair.share(pair.there)
    pair.place.n_calls, pair.place.fails_after = 0, 1
    assert not fetch(tier, pair.fingerprint)
    assert tier.trouble == "the place is gone"
    n_calls = pair.place.n_calls
    assert not fetch(tier, pair.fingerprint)
    assert not tier.offer(pair.fingerprint, TOKENS, pair.saved.path)
    assert pair.place.n_calls == n_calls
    assert not list(pair.there.entries())


def test_a_transfer_that_takes_longer_than_reading_is_given_up(pair: Any) -> None:
    """The prefill would be done before."""
    pair.share(pair.store).offer(pair.fingerprint, TOKENS, pair.saved.path)
    pair.place.delay_s = 0.02
    assert not fetch(pair.share(pair.there), pair.fingerprint, worth_s=lambda _: 0.01)
    assert fetch(pair.share(pair.there), pair.fingerprint)


def test_asking_for_many_prefixes_takes_no_longer_than_reading(pair: Any) -> None:
    """A place that answers each question in time, but slowly, is not asked them all."""
    pair.place.delay_s = 0.01
    cuts = range(1, len(TOKENS) + 1)
    assert not fetch(pair.share(pair.there), pair.fingerprint, cuts=cuts, worth_s=lambda _: 0.02)
    assert pair.place.n_calls <= 4
    assert not fetch(pair.share(pair.there), pair.fingerprint, cuts=cuts)
    assert pair.place.n_calls > len(TOKENS)


@pytest.mark.parametrize("damage", damages())
def test_a_broken_value_is_replaced(pair: Any, damage: str) -> None:
    """By who found it so, read the prompt and stored it, also where its length is the right one."""
    pair.share(pair.store).offer(pair.fingerprint, TOKENS, pair.saved.path)
    ((name, good),) = pair.place.values.items()
    pair.place.values[name] = damages()[damage](good)
    finder = pair.share(pair.store)
    assert not fetch(finder, pair.fingerprint)
    assert finder.offer(pair.fingerprint, TOKENS, pair.saved.path)
    assert pair.place.values[name] == good
    assert not finder.offer(pair.fingerprint, TOKENS, pair.saved.path)


def test_what_it_leans_on_is_put_there_too(
    store: SnapshotStore,
    there: SnapshotStore,
    fingerprint: Any,
    snapshot_files: Any,
    share: Any,
    place: Place,
) -> None:
    """Saved before anything was shared, or gone there since: without it nobody could use the longer one."""
    base = store.save(fingerprint, TOKENS[:4], snapshot_files.state(4))
    assert isinstance(base, Saved)
    leaning = store.save(fingerprint, TOKENS, snapshot_files.state(), base=base.anchor)
    assert isinstance(leaning, Saved)
    tier = share(store)
    assert tier.offer(fingerprint, TOKENS, leaning.path)
    assert (tier.exchanged.n_sent, len(place.values)) == (2, 2)
    assert fetch(share(there), fingerprint)
    place.values.clear()
    assert tier.offer(fingerprint, TOKENS, leaning.path)
    assert len(place.values) == 2


def test_what_leans_on_another_than_lies_there_is_not_put_there(
    tmp_path: Path, fingerprint: Any, snapshot_files: Any, share: Any, place: Place
) -> None:
    """Two machines read a prompt at once, and one's came first: nobody could use the other's rest."""
    tiers = []
    for n, name in enumerate(("first", "second")):
        store = SnapshotStore(tmp_path / name, clock=lambda n=n: 1e9 + n)  # type: ignore[misc]
        base = store.save(fingerprint, TOKENS[:4], snapshot_files.state(4))
        assert isinstance(base, Saved)
        leaning = store.save(fingerprint, TOKENS, snapshot_files.state(), base=base.anchor)
        assert isinstance(leaning, Saved)
        tiers.append((share(store), base.path, leaning.path))
    (one, base_path, _), (two, _, rest) = tiers
    assert one.offer(fingerprint, TOKENS[:4], base_path)
    assert not two.offer(fingerprint, TOKENS, rest)
    assert len(place.values) == 1
    assert two.trouble == ""


def test_large_values_are_left_alone(pair: Any) -> None:
    """Neither sent nor fetched, and no memory is taken for them."""
    assert not pair.share(pair.store, max_bytes=pair.saved.n_bytes - 1).offer(
        pair.fingerprint, TOKENS, pair.saved.path
    )
    assert not pair.place.values
    pair.share(pair.store).offer(pair.fingerprint, TOKENS, pair.saved.path)
    assert not fetch(pair.share(pair.there, max_bytes=pair.saved.n_bytes - 1), pair.fingerprint)


def through(root: Path, place: Place, **options: Any) -> ReadThroughStore:
    options = {"refusal": lambda: "", "max_bytes": 1 << 20, "writes_back": True} | options
    return ReadThroughStore(root, place, Seals(bytes(16)), **options)


def test_two_homes_share_one_prefix(
    tmp_path: Path, place: Place, fingerprint: Any, snapshot_files: Any
) -> None:
    """To its user a store with a shared tier is a store: saved in one home, found in the other."""
    here, there = (through(tmp_path / name, place) for name in ("here", "there"))
    assert isinstance(there.longest(fingerprint, TOKENS, [4, 12]), Miss)
    base = here.save(fingerprint, TOKENS[:4], snapshot_files.state(4))
    assert isinstance(base, Saved)
    found = there.longest(fingerprint, TOKENS, [4, 12])
    assert isinstance(found, Hit)
    assert found.state.n_tokens == 4
    assert isinstance(
        here.save(fingerprint, TOKENS, snapshot_files.state(), base=base.anchor), Saved
    )
    found = there.longest(fingerprint, TOKENS, [4, 12])
    assert isinstance(found, Hit)
    assert found.state.n_tokens == 12
    n_calls = place.n_calls
    assert isinstance(there.longest(fingerprint, TOKENS, [4, 12]), Hit)
    assert place.n_calls == n_calls


def test_a_model_that_reads_fast_does_not_wait_for_the_place(
    tmp_path: Path, place: Place, fingerprint: Any, snapshot_files: Any
) -> None:
    """The measured speed decides."""
    here, there = (through(tmp_path / name, place) for name in ("here", "there"))
    here.save(fingerprint, TOKENS, snapshot_files.state())
    place.delay_s = 0.01
    there.tokens_per_s = lambda: 1e6
    assert isinstance(there.longest(fingerprint, TOKENS, [12]), Miss)
    there.tokens_per_s = lambda: 1.0
    assert isinstance(there.longest(fingerprint, TOKENS, [12]), Hit)


def test_a_store_with_a_key_is_not_shared(tmp_path: Path, place: Place) -> None:
    """What is encrypted here would lie there as it is."""
    with pytest.raises(UsageError, match="encrypted"):
        through(tmp_path, place, key=StoreKey(bytes(range(32))))
