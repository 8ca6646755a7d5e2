"""The committed logits are what torch computes from the committed weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

CHECKPOINTS = Path(__file__).resolve().parents[1] / "data" / "checkpoints"
NAMES = sorted(path.name for path in CHECKPOINTS.iterdir() if path.is_dir())


@pytest.mark.torch
@pytest.mark.parametrize("name", NAMES)
def test_committed_logits_are_torchs(name: str) -> None:
    """Loaded by transformers and run in float32, each checkpoint gives its logits again."""
    import torch
    from transformers import LlamaForCausalLM

    folder = CHECKPOINTS / name
    with np.load(folder / "logits.npz") as stored:
        tokens, rows, expected = (stored[key] for key in ("tokens", "rows", "logits"))
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        found = model(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0].numpy()[rows]
    assert np.abs(found - expected).max() <= 1e-4 * expected.std()
