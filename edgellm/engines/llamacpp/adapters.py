"""LoRA adapters of a loaded model: checked before the library sees them, loaded once, set on contexts.

Invariant: what is set is what the fingerprint names, in this order, with these scales.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from edgellm.engines.llamacpp import facts
from edgellm.errors import DoesNotFit, ModelCorrupt, UsageError
from edgellm.formats.identity import LoadingId
from edgellm.formats.lora import checked_lora
from edgellm.hw.memory import available_bytes
from edgellm.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgellm.engines.llamacpp.library import Library
    from edgellm.formats.gguf import GgufHeader
    from edgellm.formats.lora import LoraInfo

MAX_ADAPTERS: Final = 4
"""For some architectures the engine makes room for no more nodes, and would end the process."""

MAX_SCALE: Final = 1e6
_IN_ORDER: Final = 2
# More on one tensor lie in a hash table by their addresses, and sums of floats depend on the order
# (`llama_adapter_loras`, llama-adapter.h); two always come out in the reverse of the order set.


class Adapters:
    """The adapters asked for; none is a valid number of them.

    Attributes:
        infos: what their files say.
    """

    def __init__(self, wanted: Sequence[tuple[str, float]], model: GgufHeader) -> None:
        """Check the files and begin to work out their content ids.

        Args:
            wanted: path and scale of each, in order.
            model: header of the model they are for.

        Raises:
            UsageError: too many of them, or a scale that is no number to compute with.
            ModelNotFound, ModelCorrupt, ModelUnsupported: a file is refused.
            DoesNotFit: a file is longer than the memory that is free.
        """
        if len(wanted) > MAX_ADAPTERS:
            raise UsageError(f"{len(wanted)} LoRA adapters, at most {MAX_ADAPTERS} are taken")
        for path, scale in wanted:
            if not math.isfinite(scale) or abs(scale) > MAX_SCALE:
                raise UsageError(
                    f"LoRA adapter {path}: its scale must be between -{MAX_SCALE:g} and "
                    f"{MAX_SCALE:g}, not {scale}"
                )
        # As the library will have them: two scales that become one number are one.
        self._scales = [ctypes.c_float(scale).value for _, scale in wanted]
        checked = [checked_lora(path, model) for path, _ in wanted]
        self.infos: tuple[LoraInfo, ...] = tuple(info for _, info in checked)
        _check_room(self.infos)
        self._ids = [LoadingId(Path(info.path), header) for header, info in checked]
        self._loaded: list[Any] = []

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what the user should know, one phrase each."""
        return tuple(said for info in self.infos for said in info.warnings)

    def load(self, library: Library, model: Any) -> None:
        """Load them into a model, which frees them with itself.

        Raises:
            DoesNotFit: there is no memory for one.
            ModelCorrupt: the library refuses one, with its words, or it changed meanwhile.
        """
        for info, identity in zip(self.infos, self._ids, strict=True):
            library.log.mark()
            adapter = library.lib.llama_adapter_lora_init(model, os.fsencode(info.path))
            if not adapter:
                reason = library.log.errors()
                said = f"llama.cpp {library.version} refuses the LoRA adapter: {reason}"
                if facts.is_memory_error(reason):
                    raise DoesNotFit(said, path=info.path, need_bytes=info.file_bytes)
                raise ModelCorrupt(said, path=info.path, hint="convert the adapter again")
            identity.check_unchanged()
            self._loaded.append(adapter)

    def apply(self, library: Library, context: Any) -> None:
        """Set them on a new context."""
        n = len(self._loaded)
        if n:
            pointers = (library.lib.llama_adapter_lora_p_ctypes * n)(*self._loaded)
            scales = (ctypes.c_float * n)(*self._scales)
            library.lib.llama_set_adapters_lora(context, pointers, n, scales)

    def identity(self) -> str:
        """Return content and scale of each in order, as a fingerprint has them, or `none`.

        Raises:
            ModelNotFound, ModelCorrupt, ModelUnsupported: a file could not be read to its end.
        """
        found = [
            f"{identity.result()}*{scale:.9g}"
            for identity, scale in zip(self._ids, self._scales, strict=True)
        ]
        return " ".join(found) or "none"

    def snapshot_block(self) -> str:
        """Return why sums with these adapters are not the same in every process, or ""."""
        used = [info.targets for info, scale in zip(self.infos, self._scales, strict=True) if scale]
        n = max(Counter(name for targets in used for name in targets).values(), default=0)
        if n <= _IN_ORDER:
            return ""
        return f"{n} LoRA adapters change one weight, and the engine adds them in no fixed order"


def _check_room(infos: Sequence[LoraInfo]) -> None:
    need, have = sum(info.file_bytes for info in infos), available_bytes()
    if need > have:
        raise DoesNotFit(
            f"LoRA adapters take {format_bytes(need)}, {format_bytes(have)} of memory are free",
            path=max(infos, key=lambda info: info.file_bytes).path,
            need_bytes=need,
            have_bytes=have,
        )
