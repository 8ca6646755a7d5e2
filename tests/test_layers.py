"""The floors of the package: who may import whom, held by reading every import there is."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "edgellm"
MAX_FILE_LINES = 400

# A module imports from its own room or from a lower number. A room that is not here is a failure:
# give it a floor first.
FLOORS = {
    "errors": 0,
    "wire": 0,
    "routing": 0,
    "closing": 0,
    "core": 0,
    "paths": 0,
    "fileio": 0,
    "units": 0,
    "threads": 0,
    "windows": 0,
    "ggml_types": 0,
    "kernels": 1,
    "config": 1,
    "formats": 1,
    "hw": 1,
    "prompt": 1,
    "store": 2,
    "catalog": 2,
    "engines": 3,
    "cloud": 3,
    "converters": 3,
    "policy": 4,
    "evaluate": 5,
    "runtime": 5,
    "__init__": 6,
    "__main__": 6,
    "cli": 6,
    "server": 6,
}
# Rooms that see less than their floor: the highest floor they may import from.
CEILINGS = {"converters": 1}
# Whom a room never imports, whatever the floors say.
NEVER = {"policy": {"engines", "cloud", "store", "fileio"}, "store": {"engines"}}
# Within floor 0 everybody speaks of errors; the doors stand beside each other.
SAME_FLOOR = {("runtime", "evaluate"), ("__main__", "cli"), ("cli", "__init__"), ("cli", "server")}

# The same within a room of many modules: a name is a folder in it, or a module beside them.
STOREYS = {
    "store": {
        **dict.fromkeys(("state", "answers"), 0),
        "format": 1,
        "sealed": 2,
        "disk": 3,
        "file": 4,
        **dict.fromkeys(("finding", "saving", "texts"), 5),
        **dict.fromkeys(("ledger", "uses", "explain", "key_sources"), 5),
        "packs": 6,
        **dict.fromkeys(("snapshots", "checkup", "purge"), 7),
        **dict.fromkeys(("shared", "background"), 8),
    }
}


@dataclass(frozen=True, slots=True)
class Import:
    """One import of our own code: `importer` is a file, both rooms are names of `FLOORS`."""

    importer: Path
    line: int
    room: str
    imported_room: str

    def __str__(self) -> str:
        where = self.importer.relative_to(PACKAGE.parent)
        return f"{where}:{self.line}: {self.room} imports {self.imported_room}"


def _files() -> list[Path]:
    """List every module, those behind the linked folders as well."""
    found: list[Path] = []
    folders = [PACKAGE]
    while folders:
        for entry in sorted(folders.pop().iterdir()):
            if entry.is_dir() and entry.name != "__pycache__":
                folders.append(entry)
            elif entry.suffix == ".py":
                found.append(entry)
    return found


def _room(file: Path) -> str:
    first = file.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def _is_room(name: str) -> bool:
    return (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()


def _module(file: Path) -> list[str]:
    """Give the package a file stands in, as dotted parts: what `from .` means there."""
    return ["edgellm", *file.relative_to(PACKAGE).parts[:-1]]


def _imported(node: ast.AST, file: Path) -> list[str]:
    """Give the dotted names an import statement may load, relative ones resolved."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = (node.module or "").split(".") if node.module else []
    if node.level:
        package = _module(file)
        base = package[: len(package) - node.level + 1] + base
    dotted = ".".join(base)
    # `from edgellm import store` names a room, `from edgellm.store import X` does not.
    return [f"{dotted}.{alias.name}" for alias in node.names] if dotted == "edgellm" else [dotted]


def _imports(file: Path) -> list[Import]:
    """List what a file imports of our own code, in functions and for types alone as well."""
    tree = ast.parse(file.read_text(encoding="utf-8"), filename=str(file))
    found: list[Import] = []
    for node in ast.walk(tree):
        for name in _imported(node, file):
            parts = name.split(".")
            if parts[0] != "edgellm":
                continue
            target = parts[1] if len(parts) > 1 and _is_room(parts[1]) else "__init__"
            found.append(Import(file, getattr(node, "lineno", 0), _room(file), target))
    return found


def _allowed(found: Import) -> bool:
    room, other = found.room, found.imported_room
    if room == other:
        return True
    if other in NEVER.get(room, set()):
        return False
    if (room, other) in SAME_FLOOR or FLOORS[room] == FLOORS[other] == 0:
        return True
    return FLOORS[other] <= CEILINGS.get(room, FLOORS[room] - 1)


ALL_FILES = _files()
IDS = [str(file.relative_to(PACKAGE)) for file in ALL_FILES]


def test_every_room_has_a_floor() -> None:
    """A new room is given its floor in the table before it is used."""
    assert {_room(file) for file in ALL_FILES} <= set(FLOORS)


def test_the_linked_folders_are_read() -> None:
    """The converters stand outside the package and obey its floors all the same."""
    assert any(_room(file) == "converters" for file in ALL_FILES)


@pytest.mark.parametrize("file", ALL_FILES, ids=IDS)
def test_imports_go_down(file: Path) -> None:
    """No module imports from its own floor's other rooms or from above."""
    assert [] == [str(found) for found in _imports(file) if not _allowed(found)]


@pytest.mark.parametrize("room", sorted(STOREYS))
def test_within_a_room_imports_go_down_too(room: str) -> None:
    """Folders of a room never look up; the modules that make use of them stand above."""
    storeys, folder = STOREYS[room], PACKAGE / room
    wrong: list[str] = []
    for file in _files():
        if folder not in file.parents or file == folder / "__init__.py":
            continue
        name = file.relative_to(folder).parts[0].removesuffix(".py")
        for line, module in _modules(file, f"edgellm.{room}"):
            if storeys[module] > storeys[name]:
                wrong.append(f"{file.relative_to(PACKAGE)}:{line} imports {module}")
    assert wrong == []


def _modules(file: Path, room: str) -> list[tuple[int, str]]:
    """List the folders and modules of a room that a file imports, with the lines."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        names = [f"{node.module}.{alias.name}" for alias in node.names]
        found += [
            (node.lineno, name.removeprefix(f"{room}.").split(".")[0])
            for name in names
            if name.startswith(f"{room}.")
        ]
    return found


@pytest.mark.parametrize("file", ALL_FILES, ids=IDS)
def test_only_the_command_line_prints(file: Path) -> None:
    """Outside `cli/` nothing is printed: a library speaks by values, errors and logs."""
    if _room(file) == "cli":
        return
    tree = ast.parse(file.read_text(encoding="utf-8"))
    printed = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert [] == printed


@pytest.mark.parametrize("file", ALL_FILES, ids=IDS)
def test_a_file_is_one_subject(file: Path) -> None:
    """A file of more than 400 lines is two rooms in one."""
    assert len(file.read_text(encoding="utf-8").splitlines()) <= MAX_FILE_LINES


@pytest.mark.parametrize("file", ALL_FILES, ids=IDS)
def test_a_module_says_what_it_is(file: Path) -> None:
    """Every module opens with a docstring."""
    assert ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("source", "where", "expected"),
    [
        ("from edgellm.engines.base import Engine", "store/file.py", ["engines"]),
        ("from edgellm import cli", "runtime/session.py", ["cli"]),
        ("from .base import X", "converters/llama.py", []),
        ("from ..engines import base", "converters/llama.py", ["engines"]),
        ("def f():\n    import edgellm.runtime.session", "prompt/render.py", ["runtime"]),
        ("if TYPE_CHECKING:\n    from edgellm.store import Store", "hw/facts.py", ["store"]),
        ("from edgellm.store import Store", "converters/llama.py", ["store"]),
        ("from edgellm.formats import gguf", "prompt/render.py", ["formats"]),
        ("from edgellm.evaluate import kld", "runtime/conversion.py", []),
        ("from edgellm.runtime import session", "evaluate/kld.py", ["runtime"]),
        ("from edgellm.fileio import replace", "policy/plan.py", ["fileio"]),
        ("import edgellm", "store/file.py", ["__init__"]),
    ],
)
def test_the_check_sees_what_it_should(
    source: str,
    where: str,
    expected: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A seeded wrong import of every form is found, and a right one is not."""
    package = tmp_path / "edgellm"
    for room in FLOORS:
        (package / room).mkdir(parents=True)
    file = package / where
    file.write_text(source)
    monkeypatch.setattr(f"{__name__}.PACKAGE", package)
    actual = [found.imported_room for found in _imports(file) if not _allowed(found)]
    assert expected == actual
