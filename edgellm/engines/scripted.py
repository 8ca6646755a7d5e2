"""ScriptedEngine: a deterministic engine without a model, for tests of programs that use edgellm.

One token per byte, a ChatML template, and greedy answers that are the script. Its memory is real:
tokens and logits are read back from key and value rows, so that a wrong restore shows, and the rows
depend on how calls were cut in chunks, as rounding does in real engines.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Literal

from edgellm.core import ModelInfo
from edgellm.engines.base import EngineFacts, Vocab
from edgellm.engines.scripted_memory import ScriptedMemory
from edgellm.errors import Cancelled, EngineFailed, PromptTooLong, SnapshotIncompatible
from edgellm.store.state import Fingerprint

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from edgellm.store.state import KVState, PartOutline

MemoryKind = Literal["dense", "window", "hybrid", "recurrent"]

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SPELLINGS = ("<s>", "<|im_start|>", "<|im_end|>")
BOS, IM_START, IM_END = range(256, 259)
_SPELLED = re.compile("(" + "|".join(map(re.escape, SPELLINGS)) + ")")
N_VOCAB = 259
_HEADER = chr(IM_START) + "assistant\n"
# Far above the noise below 1: sampling at temperature 0.8 leaves the script once in 10^8 tokens.
_SCRIPT_LOGIT = 24.0
_LOOK_S = 0.005  # for a cancel


class ScriptedEngine:
    """An engine whose greedy answer is a script.

    Args:
        script: the answer, or the answers of one assistant turn after the other (the last repeats).
        memory: `dense`, `window` (dense and sliding-window parts), `hybrid` (dense and a state that
            cannot be taken back), or `recurrent`, which refuses snapshots and truncation.
        n_window: tokens a window part sees.
        n_batch: tokens per chunk of a `decode` call.
        n_ctx_train: context length the model states.
        chat_template: Jinja source, or None for a model without one.
        add_bos: whether the vocabulary wants a beginning-of-sequence token.
        fail_at: the N-th decode call, from 1, fails.
        delay_s: time each token takes.
        restore_moves: a restored memory gives other bits than one that was decoded.
    """

    def __init__(
        self,
        script: str | Sequence[str] = "",
        *,
        memory: MemoryKind = "dense",
        n_window: int = 16,
        n_batch: int = 512,
        n_ctx_train: int = 8192,
        chat_template: str | None = CHATML,
        add_bos: bool = False,
        fail_at: int | None = None,
        delay_s: float = 0.0,
        restore_moves: bool = False,
    ) -> None:
        turns = (script,) if isinstance(script, str) else tuple(script)
        self._turns = [turn.encode() for turn in turns] or [b""]
        self._kind = memory
        self._memory = ScriptedMemory(
            "\x00".join(turns),
            n_window=n_window if memory == "window" else 0,
            restore_moves=restore_moves,
            has_state=memory == "hybrid",
        )
        self._n_batch = n_batch
        self._add_bos = add_bos
        self._fail_at = fail_at
        self._delay_s = delay_s
        self._n_calls = 0
        self._closed = False
        self._cancelled = False
        self.model = ModelInfo(
            path="scripted",
            architecture="scripted",
            name="scripted",
            file_bytes=0,
            n_params=0,
            n_layers=self._memory.n_layers,
            n_ctx_train=n_ctx_train,
            n_vocab=N_VOCAB,
            n_embd=self._memory.n_channels,
            n_heads=1,
            n_kv_heads=1,
            weight_types={},
            chat_template=chat_template,
            memory=memory,
        )

    @property
    def n_ctx(self) -> int:
        """Return the context length in tokens, 0 before the first `reserve`."""
        return self._memory.capacity

    @property
    def position(self) -> int:
        """Return how many tokens are in the memory."""
        return self._memory.n_tokens

    def vocab(self) -> Vocab:
        """Return the vocabulary: 256 bytes, then the control tokens of `SPELLINGS`."""
        return Vocab(
            n_tokens=N_VOCAB,
            piece=lambda token: bytes((token,)) if token < BOS else b"",
            end_ids=frozenset((IM_END,)),
            special_ids=frozenset((BOS, IM_START, IM_END)),
            bos_id=BOS,
            add_bos=self._add_bos,
            bos_text=SPELLINGS[0],
            eos_text=SPELLINGS[2],
            spellings=frozenset(SPELLINGS),
        )

    def tokenize(self, text: str, *, special: bool, add_bos: bool) -> list[int]:
        """Split text into bytes and, with `special`, control tokens."""
        tokens = [BOS] if add_bos and self._add_bos else []
        for piece in _SPELLED.split(text) if special else [text]:
            if special and piece in SPELLINGS:
                tokens.append(BOS + SPELLINGS.index(piece))
            else:
                tokens += piece.encode()
        return tokens

    def reserve(self, n_ctx: int) -> None:
        """Make the context hold at least `n_ctx` tokens; growing it clears the memory."""
        if n_ctx > self._memory.capacity:
            self._memory.allocate(n_ctx)

    def decode(
        self, tokens: Sequence[int], logits: Literal["last", "all"] = "last"
    ) -> NDArray[np.float32]:
        """Append tokens to the memory; see `Engine.decode`."""
        if self._closed:
            raise EngineFailed("the scripted engine is closed")
        ids = [int(token) for token in tokens]
        if not ids or min(ids) < 0 or max(ids) >= N_VOCAB:
            raise ValueError(f"decode takes at least one token id below {N_VOCAB}")
        if self.position + len(ids) > self.n_ctx:
            raise PromptTooLong(
                f"{len(ids)} tokens after {self.position} do not fit a context of {self.n_ctx}"
            )
        self._n_calls += 1
        if self._n_calls == self._fail_at:
            self._memory.truncate(0)
            raise EngineFailed("the scripted engine failed, as it was told to")
        for start in range(0, len(ids), self._n_batch):
            chunk = ids[start : start + self._n_batch]
            if self._stopped_within(self._delay_s * len(chunk)):
                raise Cancelled("decode was cancelled")
            self._memory.append(chunk)
        first = self.position - (len(ids) if logits == "all" else 1)
        rows = self._memory.noise(first, N_VOCAB)
        text = "".join(map(chr, self._memory.tokens()))
        for row in range(len(rows)):
            rows[row, self._next_token(text, first + row + 1)] = _SCRIPT_LOGIT
        return rows

    def _stopped_within(self, wait_s: float) -> bool:
        """Wait, and return whether `cancel` was called before or meanwhile.

        Not on an event: a signal handler that sets one waits for ever where this thread is about to
        wait for it, or has just done so.
        """
        until_s = time.monotonic() + wait_s
        while not self._cancelled and (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(left_s, _LOOK_S))
        return self._cancelled

    def truncate(self, n_tokens: int) -> bool:
        """Forget all but the first `n_tokens`, where the memory's kind allows it."""
        if self._kind == "recurrent" and n_tokens not in {0, self.position}:
            return False
        return self._memory.truncate(n_tokens)

    @property
    def restore_moves(self) -> bool:
        """Return whether a restored memory gives other bits than one that was decoded."""
        return self._memory.restore_moves

    def snapshot_block(self) -> str:
        """Return why state cannot be captured and restored exactly, or ""."""
        return "recurrent memory" if self._kind == "recurrent" else ""

    def capture(self) -> KVState:
        """Copy the memory out."""
        if self.snapshot_block():
            raise SnapshotIncompatible(f"scripted engine: {self.snapshot_block()}")
        return self._memory.capture()

    def landing(self, outline: tuple[PartOutline, ...]) -> KVState | None:
        """Return a state of these shapes to be filled in, None where this memory has others."""
        return None if self.snapshot_block() else self._memory.landing(outline)

    def restore(self, state: KVState) -> None:
        """Replace the memory by `state`; the memory is left empty if it does not fit."""
        self._memory.truncate(0)
        if self.snapshot_block():
            raise SnapshotIncompatible(f"scripted engine: {self.snapshot_block()}")
        self._memory.restore(state)

    def fingerprint(self) -> Fingerprint:
        """Return what a snapshot must agree with: the script stands for the weights."""
        hard = {
            "engine": "scripted 1",
            "kv_type": "f16",
            "memory": f"{self._kind} {self._memory.n_window}",
            "model": self._memory.content_id,
        }
        return Fingerprint(tuple(sorted(hard.items())), (("n_batch", str(self._n_batch)),))

    def relatives(self) -> tuple[Fingerprint, ...]:
        """Return nothing: this engine has one way to keep its state."""
        return ()

    def adapt(self, state: KVState, source: Fingerprint) -> KVState:  # noqa: ARG002
        """Refuse: there are no relatives."""
        raise SnapshotIncompatible("the scripted engine lays out no states anew")

    def facts(self) -> EngineFacts:
        """Return the settings."""
        return EngineFacts("scripted", self._n_batch, 1, 0, "f16", "off")

    def cancel(self) -> None:
        """Make a running `decode`, and later ones, stop soon."""
        self._cancelled = True

    def resume(self) -> None:
        """Take `cancel` back."""
        self._cancelled = False

    def close(self) -> None:
        """Forget everything; further calls of `decode` fail."""
        self._closed = True
        self._memory.truncate(0)

    def _next_token(self, text: str, n_tokens: int) -> int:
        """Return what the script says after the first `n_tokens` of the memory.

        In ChatML the answer starts behind the last assistant header, whose number chooses the turn.
        Without one it starts behind the last token that was not decoded by itself.
        """
        turn = text.count(_HEADER, 0, n_tokens) - 1
        if turn >= 0:
            n_said = n_tokens - text.rfind(_HEADER, 0, n_tokens) - len(_HEADER)
        else:
            turn, n_said = 0, self._memory.n_single(n_tokens)
        script = self._turns[min(turn, len(self._turns) - 1)]
        return script[n_said] if n_said < len(script) else IM_END
