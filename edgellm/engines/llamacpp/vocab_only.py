"""A GGUF's vocabulary alone, as llama.cpp reads it: no weights are loaded."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from edgellm.engines.llamacpp.library import load
from edgellm.engines.llamacpp.vocabulary import Vocabulary
from edgellm.errors import EngineFailed

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType


class VocabOnly:
    """The vocabulary of a file; a context manager, because the library holds it in memory.

    Raises:
        EngineUnavailable: the library is not installed.
        EngineFailed: it refuses the file.
    """

    def __init__(self, path: Path) -> None:
        library = load()
        self._lib = library.lib
        params = self._lib.llama_model_default_params()
        params.vocab_only = True
        params.n_gpu_layers = 0
        library.log.mark()
        self._model = self._lib.llama_model_load_from_file(os.fsencode(path), params)
        if not self._model:
            raise EngineFailed(
                f"llama.cpp cannot load the vocabulary: {library.log.errors()}", path=path
            )
        self.vocabulary = Vocabulary(library, self._model)

    def __enter__(self) -> Vocabulary:
        """Return the vocabulary."""
        return self.vocabulary

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Free it."""
        self._lib.llama_model_free(self._model)
