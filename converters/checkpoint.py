"""A checkpoint folder: which weight files it has, and where in them each tensor lies.

Everything is decided from headers and sizes; no weight is read, no pickle is opened, no file
outside the folder is reached by a name in an index.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from edgellm.errors import ModelCorrupt, ModelNotFound, ModelUnsupported
from edgellm.formats.checked_json import read_json_object
from edgellm.formats.safetensors import read_header

if TYPE_CHECKING:
    from pathlib import Path

    from edgellm.formats.safetensors import TensorEntry

DTYPES: Final = ("F32", "F16", "BF16")
_AGAIN: Final = "download the checkpoint again"
_MAX_NAMED: Final = 8  # names listed in one message
_MAX_NAME_BYTES: Final = 255  # what file systems take
_PICKLES: Final = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True, slots=True)
class TensorSource:
    """A tensor and the file that holds it."""

    path: Path
    entry: TensorEntry


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The weights of a folder: `tensors` by name, `shards` in the order of their names."""

    folder: Path
    tensors: dict[str, TensorSource]
    shards: tuple[Path, ...]


def open_checkpoint(folder: Path) -> Checkpoint:
    """Read the headers of every weight file of a folder.

    Raises:
        ModelNotFound: no such folder, or no weights in it.
        ModelCorrupt: a file contradicts itself, the files contradict the index, or some that it
            names are missing.
        ModelUnsupported: the weights are pickles.
    """
    if not folder.is_dir():
        what = "a file, not a checkpoint folder" if folder.exists() else "no such file or folder"
        raise ModelNotFound(what, path=folder, hint="check the name")
    indexes = sorted(folder.glob("*.safetensors.index.json"))
    if len(indexes) > 1:
        names = ", ".join(path.name for path in indexes)
        raise ModelCorrupt(f"more than one index: {names}", path=folder, hint="keep one of them")
    weight_map = _weight_map(indexes[0]) if indexes else None
    shards = _shards(folder, weight_map)
    tensors: dict[str, TensorSource] = {}
    for shard in shards:
        header = read_header(shard)
        for entry in header.tensors:
            if entry.name in tensors:
                other = tensors[entry.name].path.name
                raise ModelCorrupt(
                    f"tensor {entry.name[:120]!r} is also in {other}", path=shard, hint=_AGAIN
                )
            tensors[entry.name] = TensorSource(shard, entry)
    if weight_map is not None:
        _check_index(indexes[0], weight_map, tensors)
    return Checkpoint(folder, tensors, tuple(shards))


def require_float(tensor: TensorSource) -> None:
    """Refuse a tensor that is not a plain floating point type.

    Raises:
        ModelUnsupported: it is quantised or of another kind; names tensor and dtype.
    """
    if tensor.entry.dtype not in DTYPES:
        raise ModelUnsupported(
            f"tensor {tensor.entry.name!r} has dtype {tensor.entry.dtype}: "
            "the checkpoint is quantised already",
            path=tensor.path,
            hint=f"convert the original checkpoint; {', '.join(DTYPES)} are read",
        )


def _weight_map(index: Path) -> dict[str, str]:
    value: Any = read_json_object(index).get("weight_map")
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise ModelCorrupt("has no weight_map of names", path=index, hint=_AGAIN)
    for name in set(value.values()):
        plain = name and "/" not in name and "\\" not in name and name not in (".", "..")
        short = len(name.encode("utf-8", "replace")) <= _MAX_NAME_BYTES
        if not plain or not short or not name.endswith(".safetensors"):
            raise ModelCorrupt(
                f"names {name[:80]!r}; a shard is a .safetensors file of the same folder",
                path=index,
                hint=_AGAIN,
            )
    return value


def _shards(folder: Path, weight_map: dict[str, str] | None) -> list[Path]:
    if weight_map is not None:
        shards = [folder / name for name in sorted(set(weight_map.values()))]
        missing = [shard.name for shard in shards if not shard.is_file()]
        if missing:
            raise ModelCorrupt(
                f"{len(missing)} of {len(shards)} weight files are missing: {few(missing)}",
                path=folder,
                hint=_AGAIN,
            )
        return shards
    shards = sorted(folder.glob("*.safetensors"))
    if shards:
        return shards
    pickles = sorted(path.name for kind in _PICKLES for path in folder.glob(kind))
    if pickles:
        raise ModelUnsupported(
            f"only pickled weights ({few(pickles)}), which can run code when they are opened",
            path=folder,
            hint="get the safetensors version of the checkpoint",
        )
    raise ModelNotFound("no *.safetensors file in it", path=folder, hint=_AGAIN)


def _check_index(index: Path, weight_map: dict[str, str], tensors: dict[str, TensorSource]) -> None:
    lost = [name for name in weight_map if name not in tensors]
    if lost:
        raise ModelCorrupt(f"tensors are in no file: {few(lost)}", path=index, hint=_AGAIN)
    moved = [name for name, shard in weight_map.items() if tensors[name].path.name != shard]
    if moved:
        raise ModelCorrupt(
            f"tensors are in another file than said: {few(moved)}", path=index, hint=_AGAIN
        )


def few(names: list[str], most: int = _MAX_NAMED) -> str:
    """List names for a message, at most so many of them."""
    shown = ", ".join(name[:100] for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
