"""Which command starts a worker: a Python that is one, also where the program itself is not.

In an application that embeds Python, `sys.executable` is that application, and starting it again would
open a second window. The right interpreter then lies where Python says that it is installed.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edgellm.errors import EngineUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

_PYTHON: Final = re.compile(r"(python|pypy)[0-9.]*w?(_d)?[a-z]{0,2}(\.exe)?", re.IGNORECASE)
_MODULE: Final = "edgellm.runtime.worker"
# As `-m` does, with an archive in the place of the folder that it looks in first.
_FROM_ARCHIVE: Final = (
    "import sys; sys.path[0] = sys.argv.pop(); import runpy; "
    f"runpy.run_module({_MODULE!r}, run_name='__main__', alter_sys=True)"
)


def worker_command() -> list[str]:
    """Return the command line of a worker of this process.

    Raises:
        EngineUnavailable: there is no interpreter that could run it.
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    root, told = package_root(), [str(os.getpid()), version]
    if root.is_dir():  # and then the folder to start in, where `-m` looks first
        return [python(), *_flags(), "-m", _MODULE, *told]
    return [python(), *_flags(), "-c", _FROM_ARCHIVE, *told, str(root)]


def _flags() -> list[str]:
    """Return what keeps the worker from finding what the program was told not to look for."""
    flags = sys.flags
    told = {
        "-E": flags.ignore_environment,
        "-s": flags.no_user_site,
        "-S": flags.no_site,
        "-B": sys.dont_write_bytecode,
    }
    return [flag for flag, is_set in told.items() if is_set]


def python() -> str:
    """Return the path of a Python interpreter of this version.

    Raises:
        EngineUnavailable: none is found, as in an application frozen into one file.
    """
    for path in _candidates():
        if path.is_file() and os.access(path, os.X_OK) and _PYTHON.fullmatch(path.name):
            return str(path)
    raise EngineUnavailable(
        f"no Python interpreter to run a model in: {sys.executable or 'this program'!r} is none",
        hint='open the model with isolation="none"',
    )


def _candidates() -> Iterator[Path]:
    if sys.executable:
        yield Path(sys.executable)
    major, minor = sys.version_info[:2]
    folders = dict.fromkeys([sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix])
    for folder in folders:
        if os.name == "nt":
            yield Path(folder, "Scripts", "python.exe")
            yield Path(folder, "python.exe")
        else:
            for name in (f"python{major}.{minor}", f"python{major}", "python"):
                yield Path(folder, "bin", name)


def package_root() -> Path:
    """Return the folder that `edgellm` is imported from: there the worker finds the same one."""
    return Path(__file__).resolve().parents[3]
