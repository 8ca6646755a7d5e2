"""One llama.cpp context: its batch, its memory, its logits, as numbers and numpy arrays."""

from __future__ import annotations

import ctypes
import functools
import os
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from edgellm.engines.llamacpp import blob, facts, frame
from edgellm.engines.llamacpp.lent import STATES
from edgellm.engines.llamacpp.memory import read_layout
from edgellm.errors import EngineFailed, SnapshotIncompatible
from edgellm.hw.memory import available_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edgellm.engines.llamacpp.engine import LlamaCppEngine
    from edgellm.errors import DoesNotFit
    from edgellm.store.state import KVState, PartOutline

ABORTED: Final = 2  # llama_decode's code for a true abort callback
_SEQUENCE: Final = 0
_FLASH: Final = {"auto": -1, "off": 0, "on": 1}  # llama_flash_attn_type
_FLASH_OFF_LINE: Final = "Flash Attention not supported, set to disabled"


@functools.cache
def _abort_function() -> Any:
    """Return libc's `strlen` as the abort callback.

    llama.cpp asks "abort?" between graph nodes, thousands of times a token, from its own threads. A
    Python callback there would cost more than the token. `strlen` of a two-byte buffer is 0 (false)
    while its first byte is 0 and 1 (true) once `cancel` has written to it, without the interpreter.
    """
    return ctypes.cast(ctypes.CDLL(None).strlen, ctypes.c_void_p)


class Context:
    """The memory and the compute buffers for one sequence.

    Attributes:
        was_restored: whether rows may lie there that this context has not made itself: they may be
            no numbers, and masks do not stop those.
    """

    def __init__(
        self, engine: LlamaCppEngine, model: Any, n_ctx: int, kv_type: int, cancel: Any
    ) -> None:
        self._lib, self._log = engine.library.lib, engine.library.log
        settings = engine.settings
        params = self._lib.llama_context_default_params()
        params.n_ctx = n_ctx
        self.n_batch = min(settings.n_batch, n_ctx)
        params.n_batch = params.n_ubatch = self.n_batch  # a chunk is one graph
        params.n_seq_max = 1
        params.n_threads = params.n_threads_batch = engine.n_threads
        params.type_k = params.type_v = kv_type
        params.flash_attn_type = _FLASH[settings.flash_attention]
        params.swa_full = False
        params.no_perf = True
        params.abort_callback = ctypes.cast(_abort_function(), type(params.abort_callback))
        params.abort_callback_data = ctypes.cast(cancel, ctypes.c_void_p)
        self.attention_rotation = os.environ.get(facts.ROTATION_VARIABLE, "")  # as it is read now
        engine.library.log.mark()
        self._ctx = self._lib.llama_init_from_model(model, params)
        if not self._ctx:
            raise _open_error(engine, n_ctx)
        engine.adapters.apply(engine.library, self._ctx)
        self._memory = self._lib.llama_get_memory(self._ctx)
        self._batch = self._lib.llama_batch_init(self.n_batch, 0, 1)
        self._arrays = _batch_arrays(self._batch, self.n_batch)
        self.n_ctx = min(n_ctx, int(self._lib.llama_n_ctx(self._ctx)))
        self.n_vocab = engine.vocab().n_tokens
        off = settings.flash_attention == "off" or engine.library.log.contains(_FLASH_OFF_LINE)
        self.flash_attention = "off" if off else "on"
        v_trans = settings.flash_attention == "off"
        self.layout = read_layout(self.state(), engine.announced, v_trans=v_trans)
        self._n_window = int(self._lib.llama_model_n_swa(model))
        self._first = 0  # what the last restore, or the start, left as the first position held
        self.was_restored = False

    def decode(self, ids: NDArray[np.int32], start: int, *, every: bool) -> int:
        """Run one chunk, with logits for every token or for the last one; return the C code."""
        token, pos, wants = self._arrays
        n = ids.size
        token[:n] = ids
        pos[:n] = np.arange(start, start + n)
        wants[:n] = every
        wants[n - 1] = 1
        self._batch.n_tokens = n
        return int(self._lib.llama_decode(self._ctx, self._batch))

    def logits(self, n: int) -> NDArray[np.float32]:
        """Return the logits of the last chunk, shape (n, n_vocab); a view until the next call."""
        first = self._lib.llama_get_logits_ith(self._ctx, 0)
        return np.ctypeslib.as_array(first, (n, self.n_vocab))

    def last_logits(self) -> NDArray[np.float32]:
        """Return the logits of the last token, shape (1, n_vocab); a view until the next call."""
        last = self._lib.llama_get_logits_ith(self._ctx, -1)
        return np.ctypeslib.as_array(last, (1, self.n_vocab))

    def position(self) -> int:
        """Return how many tokens the sequence has."""
        return int(self._lib.llama_memory_seq_pos_max(self._memory, _SEQUENCE)) + 1

    def first_position(self) -> int:
        """Return the first position that the memory with the fewest of them holds."""
        return int(self._lib.llama_memory_seq_pos_min(self._memory, _SEQUENCE))

    def remove_from(self, position: int) -> bool:
        """Drop what is held from `position` on, where the rest is then what it once was.

        The library says yes to any cut of a window, also where it no longer holds what the next
        token must see. And once a window's ring has come round, a token would take another place
        than it had, and sums another order.
        """
        kinds = self.layout.kinds
        if not {"dense", "window"}.issuperset(kinds):
            return False
        if "window" in kinds:
            first = self.first_position()
            if first != self._first or first > max(0, position - self._n_window + 1):
                return False
        return bool(self._lib.llama_memory_seq_rm(self._memory, _SEQUENCE, position, -1))

    def clear(self, *, data: bool = True) -> None:
        """Empty the memory; with `data`, overwrite it with zeros as well."""
        self._lib.llama_memory_clear(self._memory, data)
        self._first = 0
        self.was_restored = self.was_restored and not data

    def capture(self) -> KVState:
        """Copy the memory out.

        Raises:
            SnapshotIncompatible: the library's bytes are not those of this layout.
        """
        return blob.parse(self.state(), self.layout, self.position())

    def landing(self, parts: tuple[PartOutline, ...]) -> frame.LandedState:
        """Return a state of these shapes to be filled in; `restore` then has nothing to copy.

        Raises:
            SnapshotIncompatible: they are not this context's.
        """
        return frame.land(parts, self.layout)

    def restore(self, state: KVState, *, refused: str = "") -> None:
        """Replace the memory by `state`.

        Args:
            state: of this layout.
            refused: why it cannot be, if the caller knows of a reason.

        Raises:
            SnapshotIncompatible: it is refused here, there or by the library; the memory is then to
                be cleared, data and all.
        """
        if refused:
            raise SnapshotIncompatible(refused)
        data = frame.build(state, self.layout).blob
        self.clear(data=False)
        self._log.mark()
        self.was_restored = True
        n = self._set_state(data)
        first = max(part.first for part in state.parts)
        if not self.layout.parts:
            first = self.first_position()
        if (n, self.position(), self.first_position()) != (data.size, state.n_tokens, first):
            raise SnapshotIncompatible(
                f"llama.cpp took {n} of {data.size} bytes: {self._log.errors()}"
            )
        self._first = first

    def state(self) -> NDArray[np.uint8]:
        """Copy the sequence's state out, shape (n_bytes,)."""
        n_bytes = int(self._lib.llama_state_seq_get_size_ext(self._ctx, _SEQUENCE, 0))
        data = STATES.lend(n_bytes)
        pointer = data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        n = int(self._lib.llama_state_seq_get_data_ext(self._ctx, pointer, n_bytes, _SEQUENCE, 0))
        if n != n_bytes:
            raise EngineFailed(f"llama.cpp gave {n} of {n_bytes} bytes of its state")
        return data

    def _set_state(self, data: NDArray[np.uint8]) -> int:
        """Hand the sequence's state in; return how many bytes were taken, 0 for a refusal."""
        pointer = data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        return int(
            self._lib.llama_state_seq_set_data_ext(self._ctx, pointer, data.size, _SEQUENCE, 0)
        )

    def close(self) -> None:
        """Free the buffers."""
        if self._ctx:
            self._lib.llama_batch_free(self._batch)
            self._lib.llama_free(self._ctx)
            self._ctx = None


def _batch_arrays(batch: Any, n: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return token, position and logits flags of a batch as arrays; the sequence is set for good."""
    for i in range(n):
        batch.n_seq_id[i] = 1
        batch.seq_id[i][0] = _SEQUENCE
    as_array = np.ctypeslib.as_array
    return as_array(batch.token, (n,)), as_array(batch.pos, (n,)), as_array(batch.logits, (n,))


def _open_error(engine: LlamaCppEngine, n_ctx: int) -> DoesNotFit | EngineFailed:
    reason = engine.library.log.errors()
    if facts.is_memory_error(reason):
        have = available_bytes()
        return facts.context_too_big(
            engine.model, engine.kv_size, n_ctx, engine.settings, have, reason
        )
    return EngineFailed(f"llama.cpp cannot open a context: {reason}", path=engine.model.path)
