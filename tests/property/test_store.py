"""The store against a dict: whatever is done to it, it gives back what was saved, or nothing."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edgellm.core import Tier
from edgellm.store.codec import pack_state, unpack_state
from edgellm.store.snapshots import Hit, Miss, Saved, Skipped, SnapshotStore
from edgellm.store.state import Fingerprint, KVState, PackedState, Part, Section

FINEST_FIRST = (Tier.EXACT, Tier.Q8, Tier.Q6, Tier.Q5, Tier.Q4)
TIERS = st.sampled_from(FINEST_FIRST)
FINGERPRINTS = tuple(Fingerprint((("model", name),)) for name in ("a", "b"))
TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=4).map(lambda ids: ids * 3)


def make_state(n: int, seed: int) -> KVState:
    """Return a small state of `n` tokens whose numbers follow from `seed`; some can be packed."""
    rng = np.random.default_rng(seed)
    mask = 0xBFFF if seed % 3 else 0xFFFF  # numbers between -2 and 2, or any bits
    k = rng.integers(0, 1 << 16, (n, 64), np.uint16) & np.uint16(mask)
    v = rng.integers(0, 1 << 16, (64, n), np.uint16).T & np.uint16(mask)
    return KVState(
        n, (Part("dense", 0, n, (Section(0, "K", "f16", k), Section(0, "V", "f16", v))),)
    )


def bits(state: KVState) -> list[Any]:
    """Return all numbers of a state."""
    return [section.rows.tobytes() for part in state.parts for section in part.sections]


def is_as_fine(stored: Tier, wanted: Tier) -> bool:
    """Return whether a file of one tier may answer somebody who asks for another."""
    return FINEST_FIRST.index(stored) <= FINEST_FIRST.index(wanted)


class StoreMachine(RuleBasedStateMachine):
    """Saves, looks up, damages, removes, checks and reopens, with a dict beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.store = SnapshotStore(Path(self.folder.name) / "snapshots")
        self.expected: dict[str, tuple[int, list[Any], Tier]] = {}
        self.paths: dict[str, Path] = {}
        self.damaged: set[str] = set()
        self.n_saves = 0

    def teardown(self) -> None:
        """Remove the folder."""
        self.folder.cleanup()

    @rule(fingerprint=st.sampled_from(FINGERPRINTS), tokens=TOKENS, tier=TIERS)
    def save(self, fingerprint: Fingerprint, tokens: list[int], tier: Tier) -> None:
        """Save a new state: skipped only where one at least as fine is stored."""
        self.n_saves += 1
        state = pack_state(make_state(len(tokens), self.n_saves), tier)
        tier = state.tier if isinstance(state, PackedState) else Tier.EXACT
        key = self.store.key(fingerprint, tokens)
        outcome = self.store.save(fingerprint, tokens, state)
        is_stored = key in self.expected and is_as_fine(self.expected[key][2], tier)
        if isinstance(outcome, Skipped):
            assert is_stored
            assert outcome.reason == "already stored"
            return
        assert isinstance(outcome, Saved)
        assert not is_stored or key in self.damaged
        restored = unpack_state(state) if isinstance(state, PackedState) else state
        self.expected[key] = (len(tokens), bits(restored), tier)
        self.paths[key] = outcome.path
        self.damaged.discard(key)

    @rule(fingerprint=st.sampled_from(FINGERPRINTS), tokens=TOKENS, tier=TIERS)
    def lookup(self, fingerprint: Fingerprint, tokens: list[int], tier: Tier) -> None:
        """Look up: the state last saved if it is fine enough, a miss where nothing whole is."""
        key = self.store.key(fingerprint, tokens)
        found = self.store.lookup(fingerprint, tokens, tier)
        is_whole = key in self.expected and key not in self.damaged
        if is_whole and is_as_fine(self.expected[key][2], tier):
            assert isinstance(found, Hit)
            got = (found.state.n_tokens, bits(found.state), found.info.tier)
            assert got == self.expected[key]
            return
        assert isinstance(found, Miss)
        if is_whole:
            stored = self.expected[key][2]
            assert found.reason == f"kept as {stored.value}, {tier.value} is asked"
        elif key in self.damaged and not found.reason.startswith("kept as "):
            assert found.reason.startswith("corrupt: ")
            self._forget(key)

    @precondition(lambda self: self.expected.keys() - self.damaged)
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        """Flip one bit, or cut, anywhere in a stored file."""
        key = data.draw(st.sampled_from(sorted(self.expected.keys() - self.damaged)))
        content = bytearray(self.paths[key].read_bytes())
        at = data.draw(st.integers(0, len(content) - 1))
        if data.draw(st.booleans()):
            content[at] ^= 1 << data.draw(st.integers(0, 7))
        else:
            del content[at:]
        self.paths[key].write_bytes(content)
        self.damaged.add(key)

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        """Remove one key, damaged or not."""
        key = data.draw(st.sampled_from(sorted(self.expected)))
        assert self.store.remove([key]) == 1
        self._forget(key)

    @rule()
    def mend(self) -> None:
        """Check with `fix`: exactly the damaged files are named and gone."""
        found = {finding.path.stem for finding in self.store.check(fix=True)}
        assert found == self.damaged
        for key in found:
            self._forget(key)

    @rule()
    def reopen(self) -> None:
        """Go on with a new store over the same folder."""
        self.store = SnapshotStore(self.store.root)

    @invariant()
    def lists_what_is_whole(self) -> None:
        """Every whole snapshot is listed, and nothing that was never saved."""
        listed = {entry.key: entry.n_tokens for entry in self.store.entries()}
        whole = {k: n for k, (n, *_) in self.expected.items() if k not in self.damaged}
        assert whole.items() <= listed.items()
        assert listed.keys() <= self.expected.keys()

    def _forget(self, key: str) -> None:
        del self.expected[key]
        self.damaged.discard(key)


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=60, stateful_step_count=40)
