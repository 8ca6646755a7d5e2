"""How a plan is found: the defaults, then what free settings may give up, and a reason for each.

Only what leaves answers as they are is given up unasked: a smaller batch, a shorter context. Whether
it fits is one comparison, and it is made in one place.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from edgellm.formats.gguf_memory import CELLS
from edgellm.ggml_types import MAX_THREADS, TYPES_BY_NAME
from edgellm.hw.flags import slow_types
from edgellm.policy.estimate import PlanSettings, estimate
from edgellm.policy.plan import Plan

if TYPE_CHECKING:
    from edgellm.formats.gguf_shape import ModelShape
    from edgellm.hw.machine import MachineFacts
    from edgellm.policy.estimate import Estimate
    from edgellm.policy.plan import Wishes

MIN_AUTO_CTX: Final = 4096
ANSWER_ROOM: Final = 1024
MIN_CTX: Final = 512
DEFAULT_BATCH: Final = 512
MIN_BATCH: Final = 64
DEFAULT_KV_TYPE: Final = "f16"
WIDE_KV_TYPES: Final = ("f16", "f32", "bf16")
_MIN_MARGIN_BYTES: Final = 32 << 20
_MAX_MARGIN_BYTES: Final = 1 << 30
MAPPED_BYTES: Final = 192 << 20
"""Address space of a worker that is never written to: libraries, and what each thread's heap reserves."""


def margin_bytes(available_bytes: int) -> int:
    """Return what is left to others: a tenth of what is available, 32 MiB to 1 GiB."""
    return max(_MIN_MARGIN_BYTES, min(_MAX_MARGIN_BYTES, available_bytes // 10))


def available_for(need_bytes: int) -> int:
    """Return what must be available so that a need is met with the margin kept."""
    return need_bytes + max(_MIN_MARGIN_BYTES, min(_MAX_MARGIN_BYTES, need_bytes // 9))


def gpu_margin_bytes(total_bytes: int) -> int:
    """Return what is left of a GPU's own memory: a tenth, at least 1 GiB.

    Pools grow over days: an engine with 128 MiB to spare ran out after 76 hours (llama.cpp #28338).
    """
    return max(_MAX_MARGIN_BYTES, total_bytes // 10)


def gpu_total_for(need_bytes: int) -> int:
    """Return the least that a GPU must have so that a need is met with the margin kept."""
    return max(need_bytes + _MAX_MARGIN_BYTES, -(-need_bytes * 10 // 9))


class Fitting:
    """One model, one machine, one set of wishes.

    Args:
        shape: the model's sizes.
        wishes: what the user asked for.
        machine: where it is to run.
        prompt_tokens: length of the prompt, 0 where it is not known yet.
    """

    def __init__(
        self, shape: ModelShape, wishes: Wishes, machine: MachineFacts, prompt_tokens: int
    ) -> None:
        self.shape, self.wishes, self.machine = shape, wishes, machine
        self.margin_bytes = margin_bytes(machine.available_bytes)
        self.have_bytes = max(0, machine.available_bytes - self.margin_bytes)
        self.gpu_have_bytes = _gpu_have_bytes(machine)
        self.n_layers = shape.model.n_layers + 1  # the output counts as one after the last
        self.prompt_tokens = prompt_tokens
        n_train = shape.model.n_ctx_train
        self.default_ctx = min(n_train, max(MIN_AUTO_CTX, prompt_tokens + ANSWER_ROOM))
        answer = ANSWER_ROOM if wishes.max_tokens is None else wishes.max_tokens
        least = prompt_tokens + answer if prompt_tokens or wishes.max_tokens else MIN_CTX
        self.least_ctx = min(self.default_ctx, whole_cells(max(MIN_CTX, least)))

    def plan(self) -> Plan:
        """Return the plan."""
        from edgellm.policy.reasons import reasons_for, warnings_of
        from edgellm.policy.ways import ways_to_fit

        first = self._with_layers(self._defaults())
        settings = self._lowered(first)
        found = self.estimate(settings)
        fits = bool(self.shape.unknown) or self.is_enough(found)
        types = sorted({weight.type.name for weight in self.shape.weights})
        slow = slow_types(types, self.machine.flags)
        return Plan(
            settings=settings,
            estimate=found,
            need_bytes=self.need_bytes(found),
            have_bytes=self.have_bytes,
            margin_bytes=self.margin_bytes,
            gpu_have_bytes=self.gpu_have_bytes,
            fits=fits,
            reasons=reasons_for(self, first, settings),
            ways=() if fits else ways_to_fit(self, first, settings),
            slow_types=slow,
            full_kv_bytes=self._full_kv_bytes(settings),
            tokens_per_s=self._tokens_per_s(settings),
            warnings=warnings_of(self, found, settings, slow),
            shape=self.shape,
            machine=self.machine,
            wishes=self.wishes,
        )

    def estimate(self, settings: PlanSettings) -> Estimate:
        """Return what these settings take on this machine."""
        return estimate(self.shape, settings, flags=self.machine.flags or None)

    def need_bytes(self, found: Estimate) -> int:
        """Return what the host must give; one memory is counted once, with all that lies in it.

        A limit of address space counts what is reserved, also where it is never written to, and
        what a worker maps.
        """
        need = found.total_bytes + (found.gpu_bytes if self.machine.unified else 0)
        if self.machine.limited_by == "rlimit":
            need += max(0, found.reserved_bytes - found.compute_bytes) + MAPPED_BYTES
        return need

    def is_enough(self, found: Estimate) -> bool:
        """Return whether what is taken is there, on the host and on the GPU."""
        on_gpu = self.gpu_have_bytes is None or found.gpu_bytes <= self.gpu_have_bytes
        return on_gpu and self.need_bytes(found) <= self.have_bytes

    def fits(self, settings: PlanSettings) -> bool:
        """Return whether these settings fit; true where something of the model is not known."""
        return bool(self.shape.unknown) or self.is_enough(self.estimate(settings))

    def largest_ctx(self, settings: PlanSettings, most: int) -> int:
        """Return the largest context below `most` that fits, in whole cells; 0 if the least does not."""
        low, high = self.least_ctx // CELLS, most // CELLS
        if low > high or not self.fits(dataclasses.replace(settings, n_ctx=low * CELLS)):
            return 0
        while low < high:
            middle = (low + high + 1) // 2
            if self.fits(dataclasses.replace(settings, n_ctx=middle * CELLS)):
                low = middle
            else:
                high = middle - 1
        return low * CELLS

    def _defaults(self) -> PlanSettings:
        """Return what is wished and else the default; the engine takes no more threads or layers."""
        wishes, machine = self.wishes, self.machine
        layers = self.n_layers if machine.gpus or machine.may_offload else 0
        return PlanSettings(
            n_ctx=wishes.n_ctx or self.default_ctx,
            n_batch=wishes.n_batch or DEFAULT_BATCH,
            kv_type=wishes.kv_type or DEFAULT_KV_TYPE,
            n_gpu_layers=min(wishes.n_gpu_layers or 0, layers),
            n_threads=wishes.n_threads or min(MAX_THREADS, machine.share.n_threads),
            flash_attention=wishes.flash_attention or "auto",
            repack=wishes.repack is not False,
            snapshots=wishes.snapshots,
        )

    def _with_layers(self, settings: PlanSettings) -> PlanSettings:
        """Put as many layers on the GPU as fit, where the user leaves it open."""
        if self.wishes.n_gpu_layers is not None or not self.machine.gpus:
            return settings
        low, high = 0, self.n_layers
        while low < high:
            middle = (low + high + 1) // 2
            found = self.estimate(dataclasses.replace(settings, n_gpu_layers=middle))
            if self.gpu_have_bytes is None or found.gpu_bytes <= self.gpu_have_bytes:
                low = middle
            else:
                high = middle - 1
        return dataclasses.replace(settings, n_gpu_layers=low)

    def _lowered(self, settings: PlanSettings) -> PlanSettings:
        """Give up speed, then room, as far as the user left them open and it is needed."""
        if self.fits(settings):
            return settings
        if self.wishes.n_batch is None:
            n_batch = settings.n_batch
            while n_batch > MIN_BATCH and not self.fits(settings):
                n_batch //= 2
                settings = dataclasses.replace(settings, n_batch=n_batch)
        if self.wishes.n_ctx is None and not self.fits(settings):
            n_ctx = self.largest_ctx(settings, settings.n_ctx) or self.least_ctx
            settings = dataclasses.replace(settings, n_ctx=n_ctx)
        return settings

    def _full_kv_bytes(self, settings: PlanSettings) -> int:
        whole = dataclasses.replace(settings, n_ctx=self.shape.model.n_ctx_train)
        found = self.estimate(whole)
        return found.kv_bytes + found.gpu_kv_bytes

    def _tokens_per_s(self, settings: PlanSettings) -> float | None:
        """Return bandwidth over the bytes read for a token; None where weights lie in two memories."""
        rate = self.machine.bandwidth_gb_s
        n_layers = settings.n_gpu_layers
        if n_layers and not self.machine.unified:
            whole = n_layers >= self.n_layers
            rate = self.machine.gpus[0].bandwidth_gb_s if whole and self.machine.gpus else None
        read = read_bytes_per_token(self.shape)
        return None if rate is None or not read else rate * 1e9 / read


def can_round_rows(shape: ModelShape) -> bool:
    """Return whether keys and values can be kept in blocks: heads of whole blocks, of 32 values."""
    block = TYPES_BY_NAME["q8_0"].block_size
    return not (shape.widths.head_keys % block or shape.widths.head_values % block)


def whole_cells(n_tokens: int) -> int:
    """Return a number of tokens rounded up to what the engine gives out at once."""
    return -(-n_tokens // CELLS) * CELLS


def read_bytes_per_token(shape: ModelShape) -> int:
    """Return the bytes of weights that one token reads: its experts alone, and no row but its own.

    Embeddings are a look-up of one row, unless they are the output matrix as well.
    """
    widths, total = shape.widths, 0
    for weight in shape.weights:
        if weight.name == "token_embd.weight" and not shape.tied:
            continue
        if "_exps" in weight.name and widths.experts:
            total += weight.n_bytes * widths.experts_used // widths.experts
        else:
            total += weight.n_bytes
    return total


def _gpu_have_bytes(machine: MachineFacts) -> int | None:
    """Return what may be taken on the GPUs; None without one, or where it is not told."""
    free = [gpu.free_bytes for gpu in machine.gpus if gpu.free_bytes is not None]
    if not machine.gpus or len(free) < len(machine.gpus):
        return None
    if machine.unified:  # the host's margin is kept already
        return sum(free)
    margins = sum(gpu_margin_bytes(gpu.total_bytes or 0) for gpu in machine.gpus)
    return max(0, sum(free) - margins)
