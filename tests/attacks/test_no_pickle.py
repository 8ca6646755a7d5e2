"""No byte that somebody wrote is ever run: held by reading our code, and by watching it run."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgellm.runtime.proving.tiny import write_tiny_model

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("edgellm", "converters", "examples")
MODULES = frozenset(
    {
        *("pickle", "_pickle", "marshal", "shelve", "dbm", "code", "codeop", "multiprocessing"),
        *("dill", "cloudpickle", "joblib", "diskcache", "yaml", "jsonpickle", "hickle"),
    }
)
"""They load objects, or run texts. `multiprocessing` sends pickles over its pipes."""

BUILTINS = frozenset({"eval", "exec", "compile", "__import__"})
NAMES = frozenset(
    {"LlamaDiskCache", "LlamaCache", "save_state", "load_state", "ProcessPoolExecutor"}
)
"""Of the engine's bindings, whose own cache and state are pickles; of the library, as above."""


def files() -> list[Path]:
    """List every module of ours, each once, though two folders are linked."""
    found = {path.resolve() for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    return sorted(found)


def offences(tree: ast.AST) -> Iterator[str]:
    """Give what would load or run somebody's bytes, with its line."""
    for node in ast.walk(tree):
        said = _offence(node)
        if said:
            yield f"{getattr(node, 'lineno', 0)}: {said}"


def _offence(node: ast.AST) -> str:
    match node:
        case ast.Import(names=names):
            taken = [name.name for name in names if name.name.partition(".")[0] in MODULES]
            return f"imports {taken[0]}" if taken else ""
        case ast.ImportFrom(module=str(module), names=names):
            taken = [name.name for name in names if name.name in NAMES]
            is_one = module.partition(".")[0] in MODULES
            return f"imports {module}" if is_one else f"imports {taken[0]}" if taken else ""
        case ast.Call(func=ast.Name(id=name)) if name in BUILTINS:
            return f"calls {name}"
        case ast.Call(
            func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name))]
        ):
            return f"imports {name}" if name.partition(".")[0] in MODULES else ""
        case ast.Call(
            func=ast.Attribute(attr="load", value=ast.Name(id="torch")), keywords=keywords
        ):
            safe = [k for k in keywords if k.arg == "weights_only"]
            is_safe = bool(safe) and getattr(safe[0].value, "value", False) is True
            return "" if is_safe else "calls torch.load without weights_only=True"
        case ast.keyword(arg="allow_pickle", value=value):
            return "" if getattr(value, "value", None) is False else "allows pickles"
        case ast.Attribute(attr=name) if name in NAMES:
            return f"uses {name}"
    return ""


def test_g19_no_module_of_ours_loads_or_runs_what_it_reads():
    """No pickle/marshal/eval on untrusted bytes: none at all."""
    found = [
        f"{path.relative_to(ROOT)}:{said}"
        for path in files()
        for said in offences(ast.parse(path.read_text("utf-8")))
    ]
    assert found == []
    assert len(files()) > 200


@pytest.mark.parametrize(
    "line",
    [
        *("import pickle", "from marshal import loads", "import multiprocessing.pool", "eval(x)"),
        *("exec(x)", "compile(x, '', 'exec')", "np.load(x, allow_pickle=True)", "__import__(x)"),
        *("torch.load(x)", "torch.load(x, weights_only=False)", "import yaml", "llm.save_state()"),
        *("from llama_cpp import LlamaDiskCache", "importlib.import_module('dill')"),
    ],
)
def test_g19_the_reading_sees_it(line: str):
    """The control: each way to load or run bytes is seen."""
    assert len(list(offences(ast.parse(line)))) == 1


@pytest.mark.parametrize(
    "line",
    [
        *("re.compile(x)", "torch.load(x, weights_only=True)", "np.load(x, allow_pickle=False)"),
        *("model.eval()", "ast.literal_eval(x)", "import json", "json.load(file)"),
    ],
)
def test_g19_the_reading_sees_nothing_else(line: str):
    """What only looks like it is none."""
    assert list(offences(ast.parse(line))) == []


WATCHED = """
import sys

def watch(event, arguments):
    if event == "pickle.find_class":
        sys.stderr.write(f"EVENT {event} {arguments}\\n")

import edgellm.cli.app, edgellm.runtime.local, llama_cpp, jinja2.sandbox, numpy, httpx
sys.addaudithook(watch)
if sys.argv[1] == "control":
    import pickle
    pickle.loads(pickle.dumps(print))
    sys.exit(0)
sys.exit(edgellm.cli.app.main(sys.argv[1:]))
"""


def _watched(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, *arguments],
        capture_output=True,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return "\n".join(line for line in done.stderr.splitlines() if line.startswith("EVENT"))


def test_g19_no_object_is_unpickled_while_a_model_answers(tmp_path: Path):
    """No pickle on untrusted bytes, by libraries either: file, template, snapshot written and read."""
    model = tmp_path / "tiny.gguf"
    write_tiny_model(model)
    command = ("run", "--isolation", "none", "-n", "3", "--snapshot", "exact", "--system")
    for _ in range(2):
        assert _watched(*command, "You are brief. " * 20, str(model), "Hello") == ""
    assert "pickle.find_class" in _watched("control")
