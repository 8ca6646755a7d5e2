"""Turns: states kept after answers, found again by what the conversation says.

The model wrote its answers in tokens that the tokenizer might not choose, so they cannot be found by
tokenising the text. A hash of the text finds them; then every token is held against that text.
"""

from __future__ import annotations

import hashlib
from array import array
from typing import TYPE_CHECKING, Final

from edgellm.runtime.live import Live
from edgellm.runtime.spelled import SpelledTokens

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from edgellm.core import Message
    from edgellm.engines.base import Engine
    from edgellm.prompt.boundary import Boundary
    from edgellm.prompt.provenance import PromptText
    from edgellm.prompt.spellings import Span
    from edgellm.store.snapshots import SnapshotStore

MAX_PENDING_CHARS: Final = 24
"""An answer that was cut short ends with a token that was never decoded: at most so many characters."""

MAX_ANSWERS: Final = 64
"""How many answers of a conversation are looked for, the last ones first."""


class Turns:
    """Names and finds the kept conversations of one engine.

    Args:
        engine: whose tokens they are; its context is reserved.
        store: where they lie.
    """

    def __init__(self, engine: Engine, store: SnapshotStore) -> None:
        self._engine = engine
        self._store = store
        self._vocab = engine.vocab()
        self._spelled = SpelledTokens(self._vocab, engine.tokenize)

    def recall(
        self, messages: Sequence[Message], written: PromptText, boundary: Boundary
    ) -> Live | None:
        """Return the longest kept conversation that a prompt begins with, as if it were live.

        Args:
            messages: the conversation.
            written: its text.
            boundary: of that text.
        """
        texts = self._store.texts(self._engine.fingerprint())
        ends = list(_answer_ends(messages, written.text)) if texts else []
        names = head_names(written.text, boundary.cuts, written.controls, (end for end, _ in ends))
        for end, whole in ends:
            found = texts.find(names[end])
            if found is None:
                continue
            (tokens, cuts), head = found, written.head(end)
            if self._spells(tokens, head):
                pending, n = written.text[end:whole], len(tokens)
                return Live(tokens, head.text, n, boundary.cuts, pending, head.controls, cuts)
        return None

    def _spells(self, tokens: Sequence[int], head: PromptText) -> bool:
        """Return whether tokens say just this text, control tokens where the template has them."""
        special = self._vocab.special_ids
        begins = bool(
            tokens
            and tokens[0] == self._vocab.bos_id
            and len([token for token in tokens if token in special]) == len(head.controls) + 1
        )
        runs: list[bytes] = [b""]
        spelled: list[str] = []
        for token in tokens[begins:]:
            if token in special:
                spelled.append(self._spelled.text((token,)))
                runs.append(b"")
            else:
                runs[-1] += self._vocab.piece(token)
        if spelled != head.spelled():
            return False
        at, expected = 0, []
        for start, end in head.controls:
            expected.append(head.text[at:start].encode())
            at = end
        expected.append(head.text[at:].encode())
        # Some tokenizers put a space before any text behind a control token.
        return all(run in (text, b" " + text) for run, text in zip(runs, expected, strict=True))


def text_name(text: str, cuts: Sequence[int], controls: Sequence[Span]) -> str:
    """Return 64 hex digits for a conversation: its text, and where it was cut and is controlled."""
    return head_names(text, cuts, controls, [len(text)])[len(text)]


def head_names(
    text: str, cuts: Sequence[int], controls: Sequence[Span], ends: Iterable[int]
) -> dict[int, str]:
    """Return what `text_name` gives for beginnings of a text; every character is hashed once.

    Args:
        text: of the whole prompt.
        cuts: as `text_name`.
        controls: of the whole prompt, from the left.
        ends: of the beginnings, none of which cuts a control token in two.
    """
    said, marks = hashlib.sha256(), hashlib.sha256(repr(tuple(cuts)).encode())
    found: dict[int, str] = {}
    at = n_controls = 0
    for end in sorted(set(ends)):
        said.update(text[at:end].encode("utf-8", "surrogatepass"))
        at = end
        while n_controls < len(controls) and controls[n_controls][1] <= end:
            marks.update(b"%d-%d " % controls[n_controls])
            n_controls += 1
        name = marks.copy()
        name.update(said.digest())
        found[end] = name.hexdigest()
    return found


def turn_name(tokens: Sequence[int], cuts: Sequence[int]) -> str:
    """Return 64 hex digits for a prompt up to where a message ends, and where its prefix was cut.

    How its answers were read before cannot be told from it: they find the state that was kept.
    """
    said = hashlib.sha256(repr((tuple(cuts), len(tokens))).encode())
    said.update(array("q", tokens).tobytes())
    return said.hexdigest()


def _answer_ends(messages: Sequence[Message], text: str) -> Iterator[tuple[int, int]]:
    """Give where kept answers may end, the last ones first, and where these answers end whole.

    What was decoded of an answer may lack its last token.
    """
    ends: list[tuple[int, int]] = []
    at = 0
    for message in messages:
        found = text.find(message.content, at) if message.content else -1
        if found >= 0:
            at = found + len(message.content)
            if message.role == "assistant":
                ends.append((found, at))
    for start, whole in reversed(ends[-MAX_ANSWERS:]):
        for end in range(whole, max(start, whole - MAX_PENDING_CHARS) - 1, -1):
            yield end, whole
