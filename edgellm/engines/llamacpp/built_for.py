"""Which CPU the installed library was built for, compared with this one before it is loaded.

Afterwards is too late: the first instruction that the CPU lacks ends the process without a word.
"""

from __future__ import annotations

from typing import Final

from edgellm.errors import EngineUnavailable
from edgellm.hw.builds import build_features, engine_folder
from edgellm.hw.flags import cpu_flags, missing_flags

REBUILD_COMMAND: Final = (
    "CMAKE_ARGS=-DGGML_NATIVE=on "
    "pip install 'llama-cpp-python>=0.3.36,<0.4' --force-reinstall --no-cache-dir --no-binary :all:"
)


def refuse_other_cpu() -> None:
    """Refuse a library whose code this CPU cannot run.

    Raises:
        EngineUnavailable: it lacks something that the build takes for granted; names it.
    """
    missing = missing_flags(build_features(engine_folder()), cpu_flags())
    if missing:
        raise EngineUnavailable(
            f"the llama.cpp engine was built for a CPU with {', '.join(missing)}, "
            "which this one lacks",
            hint=f"build it for this CPU: {REBUILD_COMMAND}",
        )
