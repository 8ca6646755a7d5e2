"""The installed engine's own files: found where Python would find them, and never loaded.

What a build can do shows in which libraries lie there: one with CUDA has a `libggml-cuda`. What it takes
for granted of a CPU stands in its code: `ggml_cpu_has_avx2` is a function that returns a constant, which
is read from the file. So a build for another CPU is known before it ends the process.

Source: ELF-64, `Elf64_Ehdr`, `Elf64_Phdr`, `Elf64_Shdr`, `Elf64_Sym` of elf.h; ggml-cpu.h, llama.cpp 0c1e57098.
"""

from __future__ import annotations

import importlib.util
import mmap
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edgellm.hw.flags import BUILD_FEATURES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgellm.hw.gpu import GpuKind

_PACKAGE: Final = "llama_cpp"
_BACKENDS: Final[tuple[tuple[str, GpuKind], ...]] = (
    ("ggml-cuda", "cuda"),
    ("ggml-vulkan", "cuda"),  # which drives the same cards
    ("ggml-metal", "metal"),
)
_GPU_BACKENDS: Final = (
    *("cann", "cuda", "hexagon", "hip", "metal", "musa", "opencl", "openvino", "sycl", "vulkan"),
    *("rpc", "virtgpu", "webgpu", "zdnn"),  # on another machine, or another's
)
_ASKED: Final = {f"ggml_cpu_has_{name}".encode(): name for name in BUILD_FEATURES}
_MAGIC: Final = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_PT_LOAD: Final = 1
_SHT_DYNSYM: Final = 11
_MAX_SYMBOLS: Final = 1 << 20
_NAME_BYTES: Final = 64
_ENDBR64: Final = b"\xf3\x0f\x1e\xfa"
# `return 1` and `return 0` as compilers write them for x86-64 and AArch64.
_YES: Final = (b"\xb8\x01\x00\x00\x00\xc3", b"\x20\x00\x80\x52\xc0\x03\x5f\xd6")
_NO: Final = (
    b"\x31\xc0\xc3",
    b"\xb8\x00\x00\x00\x00\xc3",
    b"\x00\x00\x80\x52\xc0\x03\x5f\xd6",
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


def has_gpu_code(folder: Path | None) -> bool:
    """Return whether a build has code for any GPU, also for those that nothing here can ask about."""
    names = [] if folder is None else [path.name for path in folder.iterdir()]
    return any(f"ggml-{backend}" in name for backend in _GPU_BACKENDS for name in names)


def cpu_libraries(folder: Path) -> tuple[Path, ...]:
    """Return the libraries with kernels for CPUs: one, or one a generation to choose from."""
    found = sorted(
        path
        for path in folder.iterdir()
        if "ggml-cpu" in path.name and path.suffix in (".so", ".dylib", ".dll")
    )
    return tuple(found)


def build_features(folder: Path | None) -> tuple[str, ...]:
    """Return what a build takes for granted of a CPU, as ggml names it.

    Empty where it chooses its kernels when it starts, or where its code cannot be read.

    Args:
        folder: of the engine's libraries, or None.
    """
    libraries = () if folder is None else cpu_libraries(folder)
    if len(libraries) != 1:
        return ()
    try:
        with (
            libraries[0].open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            found = dict(_constants(data))
    except (OSError, ValueError, OverflowError, struct.error):  # none, empty, or beyond its end
        return ()
    return tuple(name for name in BUILD_FEATURES if found.get(name))


def _constants(data: mmap.mmap) -> Iterator[tuple[str, bool]]:
    """Yield the functions that return a constant, and whether it is 1; other code says nothing."""
    if data[: len(_MAGIC)] != _MAGIC:
        return
    (section_offset,) = struct.unpack_from("<Q", data, 40)
    section_bytes, n_sections = struct.unpack_from("<HH", data, 58)
    sections = [
        struct.unpack_from("<IIQQQQII", data, section_offset + i * section_bytes)
        for i in range(n_sections)
    ]
    table = next((section for section in sections if section[1] == _SHT_DYNSYM), None)
    if table is None or table[6] >= len(sections):
        return
    names = sections[table[6]][4]
    for i in range(min(table[5] // 24, _MAX_SYMBOLS)):
        name_at, _, _, _, address, _ = struct.unpack_from("<IBBHQQ", data, table[4] + 24 * i)
        name = data[names + name_at : names + name_at + _NAME_BYTES].partition(b"\0")[0]
        if name in _ASKED and address:
            value = _returned(data, address)
            if value is not None:
                yield _ASKED[name], value


def _returned(data: mmap.mmap, address: int) -> bool | None:
    """Return what the function at an address returns, None if that is not plain."""
    (header_offset,) = struct.unpack_from("<Q", data, 32)
    header_bytes, n_headers = struct.unpack_from("<HH", data, 54)
    for i in range(n_headers):
        at = header_offset + i * header_bytes
        kind, _, offset, start, _, n_bytes = struct.unpack_from("<IIQQQQ", data, at)
        if kind == _PT_LOAD and start <= address < start + n_bytes:
            place = offset + address - start
            code = data[place : place + 16]
            code = code.removeprefix(_ENDBR64)
            if code.startswith(_YES):
                return True
            return False if code.startswith(_NO) else None
    return None
