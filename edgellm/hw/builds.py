"""The installed engine's own files: found where Python would find them, and never loaded.

What a build can do shows in which libraries lie there: one with CUDA has a `libggml-cuda`.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from edgellm.hw.gpu import GpuKind

_PACKAGE: Final = "llama_cpp"
_BACKENDS: Final[tuple[tuple[str, GpuKind], ...]] = (
    ("ggml-cuda", "cuda"),
    ("ggml-vulkan", "cuda"),  # which drives the same cards
    ("ggml-metal", "metal"),
)


def engine_folder() -> Path | None:
    """Return the folder of llama.cpp's libraries, None where it is not installed."""
    spec = importlib.util.find_spec(_PACKAGE)  # looks, imports nothing
    places = (spec.submodule_search_locations or []) if spec else []
    folders = (Path(place) / "lib" for place in places)
    return next((folder for folder in folders if folder.is_dir()), None)


def gpu_kinds(folder: Path | None) -> frozenset[GpuKind]:
    """Return the kinds of GPU that a build has code for; none without a build."""
    if folder is None:
        return frozenset()
    names = [path.name for path in folder.iterdir()]
    return frozenset(kind for part, kind in _BACKENDS if any(part in name for name in names))


def cpu_libraries(folder: Path) -> tuple[Path, ...]:
    """Return the libraries with kernels for CPUs: one, or one a generation to choose from."""
    found = sorted(
        path
        for path in folder.iterdir()
        if "ggml-cpu" in path.name and path.suffix in (".so", ".dylib", ".dll")
    )
    return tuple(found)
