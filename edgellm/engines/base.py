"""The engine protocol: what the runtime needs of an inference library, and nothing of its types.

An engine holds one model, one sequence and its memory. Calls are made from one thread at a time,
except `cancel`. Logits are float32 rows over the whole vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from edgellm.core import ModelInfo
    from edgellm.store.state import Fingerprint, KVState, PartOutline

FlashAttention = Literal["auto", "on", "off"]


@dataclass(frozen=True, slots=True)
class Vocab:
    """The vocabulary as the decode loop and the prompt room need it.

    Attributes:
        n_tokens: size; ids run from 0.
        piece: bytes of one token id; special tokens give b"".
        end_ids: every id that ends a turn.
        special_ids: control tokens, which never come from user text.
        bos_id: beginning of sequence, or None.
        add_bos: whether plain text starts with it.
        bos_text: how the chat template writes it, or "".
        eos_text: how the chat template writes the end token, or "".
        spellings: how `tokenize` with `special` reads control tokens, and that for unknown text.
    """

    n_tokens: int
    piece: Callable[[int], bytes]
    end_ids: frozenset[int]
    special_ids: frozenset[int]
    bos_id: int | None
    add_bos: bool
    bos_text: str = ""
    eos_text: str = ""
    spellings: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How to open a model. None and 0 leave the choice to the engine.

    Attributes:
        n_batch: tokens per decode call; longer inputs are cut in chunks of this from their start.
        n_threads: CPU threads; 0 takes the CPU quota.
        n_gpu_layers: layers on the GPU; None puts there what fits.
        kv_type: ggml type of keys and values, `f16`, `q8_0`, `q4_0` or `f32`.
        flash_attention: `auto` lets the engine choose; the resolved value is in the fingerprint.
        repack: let weights be copied into the layout this CPU computes fastest with; off takes less
            memory, for a few tokens only.
        adapters: LoRA adapters, path and scale of each, in the order in which they are added.
    """

    n_batch: int = 512
    n_threads: int = 0
    n_gpu_layers: int | None = None
    kv_type: str = "f16"
    flash_attention: FlashAttention = "auto"
    repack: bool = True
    adapters: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine made of its settings.

    Attributes:
        name: library and version.
        n_batch: tokens per decode call.
        n_threads: CPU threads.
        n_gpu_layers: layers on a GPU.
        kv_type: type of keys and values.
        flash_attention: `on` or `off`; "" before the first `reserve`.
    """

    name: str
    n_batch: int
    n_threads: int
    n_gpu_layers: int
    kv_type: str
    flash_attention: str


class Engine(Protocol):
    """One loaded model with one sequence."""

    model: ModelInfo

    @property
    def n_ctx(self) -> int:
        """Return the context length in tokens, 0 before the first `reserve`."""

    @property
    def position(self) -> int:
        """Return how many tokens are in the memory, which is where the next one goes."""

    def vocab(self) -> Vocab:
        """Return the vocabulary."""

    def tokenize(self, text: str, *, special: bool, add_bos: bool) -> list[int]:
        """Split text into token ids.

        Args:
            text: any Unicode text.
            special: read the spelling of control tokens as those tokens; False for user text.
            add_bos: start with the beginning-of-sequence token if the model wants one.
        """

    def reserve(self, n_ctx: int) -> None:
        """Make the context hold at least `n_ctx` tokens; growing it clears the memory.

        Raises:
            DoesNotFit: the memory for it cannot be had.
        """

    def decode(
        self, tokens: Sequence[int], logits: Literal["last", "all"] = "last"
    ) -> NDArray[np.float32]:
        """Append tokens to the memory in batch-size chunks from the first one.

        Returns:
            Logits of shape (1, n_vocab) or (n, n_vocab); valid until the next call.

        Raises:
            ValueError: no tokens, or an id outside the vocabulary.
            PromptTooLong: they do not fit the context; the memory is unchanged.
            Cancelled: `cancel` was called; whole chunks decoded before stay in the memory, or it is
                empty, where a part of a chunk cannot be taken back.
            EngineFailed: the library failed; the memory is cleared.
        """

    def truncate(self, n_tokens: int) -> bool:
        """Forget all but the first `n_tokens`; return False, changing nothing, if that is impossible."""

    @property
    def restore_moves(self) -> bool:
        """Return whether a restored memory lies differently from one that was decoded.

        The order of the additions then differs too, so equal bits need a capture and a restore at
        every boundary, whether snapshots are kept or not.
        """

    def snapshot_block(self) -> str:
        """Return why state cannot be captured and restored exactly, or ""."""

    def capture(self) -> KVState:
        """Copy the memory out, once.

        Raises:
            SnapshotIncompatible: this kind of memory cannot be read.
        """

    def landing(self, outline: tuple[PartOutline, ...]) -> KVState | None:
        """Return a state of these shapes whose rows lie where `restore` wants them.

        The caller writes all of them, in place, and gives that very object to `restore`. Until then
        nothing happens to the memory; a landing that is not used is forgotten.

        Returns:
            Writable rows of any content, or None where this engine has no such memory.
        """

    def restore(self, state: KVState) -> None:
        """Replace the memory by `state`, whose checksums were verified.

        Raises:
            SnapshotIncompatible: it does not fit this engine; the memory is left empty.
        """

    def fingerprint(self) -> Fingerprint:
        """Return what a snapshot must agree with, as of now."""

    def relatives(self) -> tuple[Fingerprint, ...]:
        """Return the fingerprints under which this engine could use a state after `adapt`.

        Such a state was rounded otherwise than this engine's own: it is no exact snapshot.
        """

    def adapt(self, state: KVState, source: Fingerprint) -> KVState:
        """Return a state made under `source`, one of `relatives`, laid out for this engine.

        Raises:
            SnapshotIncompatible: `source` is none of them, or the state is not what it says.
        """

    def facts(self) -> EngineFacts:
        """Return the settings as they were resolved."""

    def cancel(self) -> None:
        """Make a running `decode`, and later ones, stop soon; callable from any thread."""

    def resume(self) -> None:
        """Take `cancel` back."""

    def close(self) -> None:
        """Free the model. Calling it again does nothing."""
