"""LlamaCppEngine: one model, one sequence, decoded in batch-size chunks through the C functions.

The context is made on `reserve`, because its size depends on the first prompt. Windows are kept at
their own size (`swa_full` off), so a window cache can be cut back only as long as it forgot nothing.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import os
import threading
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from edgellm.engines.base import EngineFacts
from edgellm.engines.llamacpp import facts
from edgellm.engines.llamacpp.adapters import Adapters
from edgellm.engines.llamacpp.checked import CheckedFile
from edgellm.engines.llamacpp.context import ABORTED, Context
from edgellm.engines.llamacpp.library import load
from edgellm.engines.llamacpp.relayout import relayout
from edgellm.engines.llamacpp.vocabulary import Vocabulary
from edgellm.errors import (
    Cancelled,
    DoesNotFit,
    EngineFailed,
    ModelCorrupt,
    PromptTooLong,
    SnapshotIncompatible,
)
from edgellm.formats.gguf_memory import keeps_keys_only, kv_size
from edgellm.formats.identity import LoadingId
from edgellm.ggml_types import MAX_THREADS
from edgellm.hw.cpu import available_threads
from edgellm.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from edgellm.engines.base import EngineSettings, Vocab
    from edgellm.store.state import Fingerprint, KVState, PartOutline

_ALL_LAYERS: Final = -1
_LOAD_WITHOUT_MMAP: Final = 0  # LLAMA_LOAD_MODE_NONE, llama.h
_MIN_CTX: Final = 256


class LlamaCppEngine:
    """An `Engine` over llama.cpp."""

    def __init__(
        self, path: Path, settings: EngineSettings, checked: CheckedFile | None = None
    ) -> None:
        """Load the model.

        Args:
            path: of its file.
            settings: how to open it.
            checked: what was found out of a file before, which counts while that is this one.

        Raises:
            ModelNotFound, ModelCorrupt, ModelUnsupported: the file, or a LoRA adapter's, is refused,
                before loading or by the library.
            EngineUnavailable: the library is not installed.
            DoesNotFit: the weights do not fit the memory.
            UsageError: the settings contradict each other.
        """
        self._kv_type = facts.check_settings(settings)
        header, model = (checked or CheckedFile(path)).found(path)
        self.adapters = Adapters(settings.adapters, header)
        self._relayout = relayout(header, model)
        self.model = dataclasses.replace(model, warnings=(*model.warnings, *self.adapters.warnings))
        self.kv_size = kv_size(header, self.model)
        self.library = load()
        self.settings = settings
        self.n_threads = settings.n_threads or min(available_threads(), MAX_THREADS)
        self._identity = LoadingId(path, header)
        self._model = self._load(path)
        self._n_gpu_layers = facts.offloaded_layers(self.library.log)
        self._vocabulary = Vocabulary(self.library, self._model)
        self._context: Context | None = None
        self._cancel = ctypes.create_string_buffer(2)  # see Context: the abort callback reads it
        block = facts.snapshot_block(self.library, self._model, self.model)
        self._block = block or self.adapters.snapshot_block()
        keys_only = keeps_keys_only(header, self.model)
        self.announced = facts.announced(self.library, self._model, self.model, keys_only=keys_only)

    def _load(self, path: Path) -> Any:
        lib = self.library.lib
        params = lib.llama_model_default_params()
        layers = self.settings.n_gpu_layers
        params.n_gpu_layers = _ALL_LAYERS if layers is None else layers
        params.use_extra_bufts = self.settings.repack
        model, reason = self._try(path, params)
        if not model and facts.is_mapping_error(reason):
            facts.check_unmapped(self.model, gpu=lib.llama_supports_gpu_offload() and layers != 0)
            params.load_mode = _LOAD_WITHOUT_MMAP
            model, reason = self._try(path, params)
            note = (
                "the file system cannot map the model: it was read instead, which takes "
                f"{format_bytes(self.model.file_bytes)} of memory of its own"
            )
            warnings = (*self.model.warnings, note)
            self.model = dataclasses.replace(self.model, warnings=warnings)
        if not model:
            raise facts.load_error(self.model, self.library.version, reason)
        try:
            self._identity.check_unchanged()
            self.adapters.load(self.library, model)
        except (ModelCorrupt, DoesNotFit):
            lib.llama_model_free(model)
            raise
        return model

    def _try(self, path: Path, params: Any) -> tuple[Any, str]:
        """Load once; return the model, or nothing and what the library said."""
        self.library.log.mark()
        model = self.library.lib.llama_model_load_from_file(os.fsencode(path), params)
        return model, "" if model else self.library.log.errors()

    @property
    def n_ctx(self) -> int:
        """Return the context length in tokens, 0 before the first `reserve`."""
        return self._context.n_ctx if self._context else 0

    @property
    def position(self) -> int:
        """Return how many tokens are in the memory."""
        return self._context.position() if self._context else 0

    @functools.lru_cache(maxsize=1)  # noqa: B019  # the engine outlives its one entry
    def vocab(self) -> Vocab:
        """Return the vocabulary."""
        return self._vocabulary.describe()

    def tokenize(self, text: str, *, special: bool, add_bos: bool) -> list[int]:
        """Split text into token ids."""
        return self._vocabulary.tokenize(text, special=special, add_bos=add_bos)

    def reserve(self, n_ctx: int) -> None:
        """Make the context hold at least `n_ctx` tokens; growing it clears the memory."""
        n_ctx = max(n_ctx, _MIN_CTX)
        if n_ctx <= self.n_ctx:
            return
        facts.check_context(self.model, self.kv_size, n_ctx, self.settings, self._n_gpu_layers)
        if self._context:
            self._context.close()
            self._context = None
        self._context = Context(self, self._model, n_ctx, self._kv_type, self._cancel)

    def _open(self) -> Context:
        if self._context is None:
            raise ValueError("reserve a context first")
        return self._context

    def decode(
        self, tokens: Sequence[int], logits: Literal["last", "all"] = "last"
    ) -> NDArray[np.float32]:
        """Append tokens to the memory in batch-size chunks from the first one."""
        context = self._open()
        ids = np.asarray(tokens, np.int32)
        if not ids.size or ids.min() < 0 or ids.max() >= self._vocabulary.n_tokens:
            raise ValueError(f"{ids.size} tokens, ids must be 0..{self._vocabulary.n_tokens - 1}")
        start = context.position()
        if start + ids.size > context.n_ctx:
            raise PromptTooLong(
                f"{ids.size} tokens after {start} do not fit a context of {context.n_ctx}",
                hint="use a larger --ctx or a shorter prompt",
            )
        n_batch = context.n_batch
        rows = []
        for at in range(0, ids.size, n_batch):
            chunk = ids[at : at + n_batch]
            self._run(context, chunk, start + at, every=logits == "all")
            if logits == "all":
                rows.append(context.logits(chunk.size).copy())
        return np.concatenate(rows) if rows else context.last_logits()

    def _run(self, context: Context, chunk: NDArray[np.int32], start: int, *, every: bool) -> None:
        if self._cancel.raw[0]:
            raise Cancelled("the decode was stopped")
        self.library.log.mark()
        code = self._interruptible(context, chunk, start, every=every)
        if code == ABORTED:
            if context.position() != start:  # the library could not take the chunk back
                context.clear()
            raise Cancelled("the decode was stopped")
        if code:
            context.clear()
            reason = self.library.log.errors()
            raise EngineFailed(f"decode of {chunk.size} tokens at {start} gave {code}: {reason}")

    def _interruptible(
        self, context: Context, chunk: NDArray[np.int32], start: int, *, every: bool
    ) -> int:
        """Decode in the library's own thread, so that this one can still take a signal.

        A chunk of a large model takes seconds; the interpreter runs signal handlers only when the
        main thread is not inside a C function.
        """
        if os.getpid() != self.library.pid:
            raise EngineFailed("the model was loaded before a fork", hint="load it in the child")
        decode = functools.partial(context.decode, chunk, start, every=every)
        try:
            running = self.library.compute.begin(decode)
        except RuntimeError:  # there is no thread to be had, or the interpreter ends
            if self.library.compute.is_closed and threading.current_thread().daemon:
                raise SystemExit from None
            return decode()
        try:
            running.wait()
        except BaseException:  # a handler raised: the C code must be out before it is unwound
            self.cancel()
            running.wait()
            raise
        return running.result()

    def truncate(self, n_tokens: int) -> bool:
        """Forget all but the first `n_tokens`, where that leaves the memory as it once was."""
        context = self._open()
        position = context.position()
        if not 0 <= n_tokens <= position:
            return False
        if n_tokens == position:
            return True
        if n_tokens == 0:
            context.clear(data=context.was_restored)
            return True
        return context.remove_from(n_tokens)

    @property
    def restore_moves(self) -> bool:
        """Return True for memories that a restore puts in another order, windows and unknown ones."""
        return self._context is not None and self._context.layout.moves and not self._block

    def snapshot_block(self) -> str:
        """Return why state cannot be captured and restored exactly, or ""."""
        return self._block

    def capture(self) -> KVState:
        """Copy the memory out, once."""
        if self._block:
            raise SnapshotIncompatible(self._block)
        return self._open().capture()

    def landing(self, outline: tuple[PartOutline, ...]) -> KVState | None:
        """Return a state of these shapes to be filled in, None where this memory has others."""
        context = self._open()
        n_tokens = outline[0].first + outline[0].n_tokens if outline else 0
        if self._block or not 0 < n_tokens <= context.n_ctx:
            return None
        try:
            return context.landing(outline)
        except SnapshotIncompatible:
            return None

    def restore(self, state: KVState) -> None:
        """Replace the memory by `state`; on any failure the memory is left empty and clean."""
        context = self._open()
        reason = self._block
        if not 0 < state.n_tokens <= context.n_ctx:
            reason = f"{state.n_tokens} tokens do not fit a context of {context.n_ctx}"
        try:
            context.restore(state, refused=reason)
        except SnapshotIncompatible:
            context.clear()  # what a failed restore wrote may hold NaN, which masks do not stop
            raise

    def fingerprint(self) -> Fingerprint:
        """Return what a snapshot must agree with, as of now."""
        return facts.fingerprint(self, self._open(), self._identity.result())

    def relatives(self) -> tuple[Fingerprint, ...]:
        """Return the fingerprints under which `adapt` takes a state, the nearest first."""
        kinds = self._open().layout.kinds
        return () if self._block else self._relayout.relatives(self.fingerprint(), kinds)

    def adapt(self, state: KVState, source: Fingerprint) -> KVState:
        """Return a state made under `source` laid out for this engine; its rounding differs."""
        kinds = self._open().layout.kinds
        return self._relayout.adapt(state, source, self.fingerprint(), kinds)

    def cancel(self) -> None:
        """Make a running `decode`, and later ones, stop soon; callable from any thread."""
        self._cancel[0] = b"\1"

    def resume(self) -> None:
        """Take `cancel` back."""
        self._cancel[0] = b"\0"

    def facts(self) -> EngineFacts:
        """Return the settings as they were resolved."""
        return EngineFacts(
            name=f"llama.cpp {self.library.version} (ggml {self.library.commit})",
            n_batch=self.settings.n_batch,
            n_threads=self.n_threads,
            n_gpu_layers=self._n_gpu_layers,
            kv_type=self.settings.kv_type,
            flash_attention=self._context.flash_attention if self._context else "",
        )

    def close(self) -> None:
        """Free the model. Calling it again does nothing."""
        if self._context:
            self._context.close()
            self._context = None
        if self._model:
            self.library.lib.llama_model_free(self._model)
            self._model = None
