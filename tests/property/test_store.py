"""The store against a dict: whatever is done to it, it gives back what was saved, or nothing."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edgellm.core import Tier
from edgellm.store.format.codec import pack_state, unpack_state
from edgellm.store.snapshots import Hit, Miss, Saved, Skipped, SnapshotStore
from edgellm.store.state import Anchor, Fingerprint, KVState, PackedState, Part, Section

FINEST_FIRST = (Tier.EXACT, Tier.Q8, Tier.Q6, Tier.Q5, Tier.Q4)
TIERS = st.sampled_from(FINEST_FIRST)
FINGERPRINTS = tuple(Fingerprint((("model", name),)) for name in ("a", "b"))
PROMPTS = ((3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 9), (3, 1, 4, 1, 0, 0, 0, 0, 0, 0, 0, 0))
TOKENS = st.builds(lambda ids, n: list(ids[:n]), st.sampled_from(PROMPTS), st.integers(1, 12))


def make_state(n: int, seed: int, start: KVState | None = None) -> KVState:
    """Return a small state of `n` tokens that follows from `seed`, after the rows of another."""
    rng = np.random.default_rng(seed)
    mask = 0xBFFF if seed % 3 else 0xFFFF  # numbers between -2 and 2, or any bits
    k = rng.integers(0, 1 << 16, (n, 64), np.uint16) & np.uint16(mask)
    v = rng.integers(0, 1 << 16, (64, n), np.uint16).T & np.uint16(mask)
    if start is not None:
        before = start.parts[0].sections
        k[: start.n_tokens], v[: start.n_tokens] = before[0].rows, before[1].rows
    dense = Part("dense", 0, n, (Section(0, "K", "f16", k), Section(0, "V", "f16", v)))
    last = rng.integers(0, 4, (1, 8), np.uint32)
    recurrent = Part("recurrent", n - 1, 1, (Section(0, "S", "f32", last),))
    return KVState(n, (dense, recurrent) if seed % 2 else (dense,))


def bits(state: KVState) -> list[Any]:
    """Return all numbers of a state."""
    return [section.rows.tobytes() for part in state.parts for section in part.sections]


def is_as_fine(stored: Tier, wanted: Tier) -> bool:
    """Return whether a file of one tier may answer somebody who asks for another."""
    return FINEST_FIRST.index(stored) <= FINEST_FIRST.index(wanted)


@dataclass(frozen=True)
class Expected:
    """What was saved under a key."""

    path: Path
    anchor: Anchor
    state: KVState
    tier: Tier
    parent: Anchor | None


class StoreMachine(RuleBasedStateMachine):
    """Saves, looks up, damages, removes, checks and reopens, with a dict beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.store = SnapshotStore(Path(self.folder.name) / "snapshots")
        self.expected: dict[str, Expected] = {}
        self.damaged: set[str] = set()
        self.ever: list[tuple[Fingerprint, tuple[int, ...], Expected]] = []
        self.n_saves = 0

    def teardown(self) -> None:
        """Remove the folder."""
        self.folder.cleanup()

    @rule(
        fingerprint=st.sampled_from(FINGERPRINTS),
        tokens=TOKENS,
        tier=TIERS,
        lossless=st.booleans(),
        data=st.data(),
    )
    def save(
        self,
        fingerprint: Fingerprint,
        tokens: list[int],
        tier: Tier,
        lossless: bool,
        data: st.DataObject,
    ) -> None:
        """Save a new state, on a base that is there, was there, or none: whole or not at all."""
        self.n_saves += 1
        bases = [
            made
            for model, ids, made in self.ever
            if model == fingerprint and len(ids) < len(tokens) and (*ids,) == (*tokens[: len(ids)],)
        ]
        base = data.draw(st.sampled_from([None, *bases]))
        whole = make_state(len(tokens), self.n_saves, base.state if base else None)
        if base is not None:
            kinds = [part.kind for part in base.state.parts]
            whole = replace(whole, parts=whole.parts if len(kinds) == len(whole.parts) else ())
            if not whole.parts:
                return
        kept = pack_state(whole, tier, base.anchor.n_tokens if base else 0)
        tier = kept.tier if isinstance(kept, PackedState) else Tier.EXACT
        restored = unpack_state(kept, whole) if isinstance(kept, PackedState) else whole
        key = self.store.key(fingerprint, tokens)
        text = hashlib.sha256(repr(tokens).encode()).hexdigest()
        outcome = self.store.save(
            fingerprint,
            tokens,
            kept,
            base=base.anchor if base else None,
            lossless=lossless,
            text_sha256=text,
        )
        is_stored = key in self.expected and is_as_fine(self.expected[key].tier, tier)
        if isinstance(outcome, Skipped):
            if outcome.reason == "what it leans on is gone":
                assert isinstance(kept, PackedState)
                return
            assert (is_stored, outcome.reason) == (True, "already stored")
            assert outcome.anchor in (None, self.expected[key].anchor)
            if outcome.anchor is not None and key not in self.damaged:
                assert bits(restored) == bits(self.expected[key].state)
            return
        assert isinstance(outcome, Saved)
        assert not is_stored or not self._is_whole(key)
        parent = next(entry.parent for entry in self.store.entries() if entry.key == key)
        assert parent in (None, base.anchor if base else None)
        self.expected[key] = Expected(outcome.path, outcome.anchor, restored, tier, parent)
        self.ever.append((fingerprint, tuple(tokens), self.expected[key]))
        self.damaged.discard(key)
        if self._is_whole(key):
            assert self.store.by_text(fingerprint, text) == tuple(tokens)

    @rule(fingerprint=st.sampled_from(FINGERPRINTS), tokens=TOKENS, tier=TIERS)
    def lookup(self, fingerprint: Fingerprint, tokens: list[int], tier: Tier) -> None:
        """Look up: the state last saved if it is fine enough, a miss where nothing whole is."""
        key = self.store.key(fingerprint, tokens)
        found = self.store.lookup(fingerprint, tokens, tier)
        made = self.expected.get(key)
        is_whole = self._is_whole(key)
        if made is not None and is_whole and is_as_fine(made.tier, tier):
            assert isinstance(found, Hit)
            assert bits(found.state) == bits(made.state)
            assert (found.info.tier, found.anchor) == (made.tier, made.anchor)
            return
        assert isinstance(found, Miss)
        if made is None:
            assert found.code == "not_stored"
        elif is_whole:
            assert found.reason == f"kept as {made.tier.value}, {tier.value} is asked"
        elif found.code != "too_coarse":
            assert found.code in {"corrupt", "base_missing"}
            self._forget_the_lost(key)

    @rule(fingerprint=st.sampled_from(FINGERPRINTS), prompt=st.sampled_from(PROMPTS))
    def longest(self, fingerprint: Fingerprint, prompt: tuple[int, ...]) -> None:
        """The longest whole prefix is found, and nothing longer."""
        keys = {n: self.store.key(fingerprint, prompt[:n]) for n in range(1, 13)}
        whole = [n for n, key in keys.items() if key in self.expected and self._is_whole(key)]
        found = self.store.longest(fingerprint, prompt, range(1, 13), Tier.Q4)
        if isinstance(found, Hit):
            assert found.info.n_tokens == max(whole)
        else:
            assert not whole
        for key in keys.values():
            self._forget_the_lost(key)

    @precondition(lambda self: self.expected.keys() - self.damaged)
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        """Flip one bit, or cut, anywhere in a stored file that counts."""
        key = data.draw(st.sampled_from(sorted(self.expected.keys() - self.damaged)))
        path = self.expected[key].path
        content = bytearray(path.read_bytes())
        n_bytes = len(content)
        if len(self.expected[key].state.parts) > 1:  # what nobody above reads is no damage to it
            n_bytes = 12 + int.from_bytes(content[8:12], "little")
        at = data.draw(st.integers(0, n_bytes - 1))
        if data.draw(st.booleans()):
            content[at] ^= 1 << data.draw(st.integers(0, 7))
        else:
            del content[at:]
        path.write_bytes(content)
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
        """Check with `fix`: exactly what is of no use is named and gone."""
        findings = self.store.check(fix=True)
        found = {finding.path.stem for finding in findings if finding.path.suffix == ".ekv"}
        assert found == {key for key in self.expected if not self._is_whole(key)}
        for key in found:
            self._forget(key)
        assert self.store.check() == []

    @rule()
    def reopen(self) -> None:
        """Go on with a new store over the same folder."""
        self.store = SnapshotStore(self.store.root)

    @invariant()
    def lists_what_is_whole(self) -> None:
        """Every whole snapshot is listed, and nothing that was never saved."""
        listed = {entry.key: entry.n_tokens for entry in self.store.entries()}
        whole = {k: e.state.n_tokens for k, e in self.expected.items() if k not in self.damaged}
        assert whole.items() <= listed.items()
        assert listed.keys() <= self.expected.keys()

    def _is_whole(self, key: str) -> bool:
        """Return whether a file and all that it leans on are there, and are what they were."""
        made = self.expected.get(key)
        if made is None or key in self.damaged:
            return False
        if made.parent is None:
            return True
        base = self.expected.get(made.parent.key)
        return base is not None and base.anchor == made.parent and self._is_whole(made.parent.key)

    def _forget_the_lost(self, key: str) -> None:
        """Forget those of a chain whose files a miss has removed."""
        while (made := self.expected.get(key)) is not None:
            if not made.path.exists():
                assert not self._is_whole(key)
                self._forget(key)
            if made.parent is None:
                return
            key = made.parent.key

    def _forget(self, key: str) -> None:
        del self.expected[key]
        self.damaged.discard(key)


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=60, stateful_step_count=40)
