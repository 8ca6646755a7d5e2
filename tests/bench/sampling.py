"""What choosing a token costs beside computing it: our part of the decode loop.

Decodes real answers with SmolLM2, then times each kind of sampling on the logits they gave. Goal:
the default sampling, text joining and stop strings included, at most 5 % of the decode time.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from _models import model_or_exit
from _report import Report, bench_parser

from edgellm.core import Message, Sampling
from edgellm.engines.base import EngineSettings
from edgellm.engines.llamacpp import LlamaCppEngine
from edgellm.prompt.template import make_prompter
from edgellm.runtime.generate import Decoding
from edgellm.runtime.sampling import Sampler
from edgellm.runtime.text import TextJoiner

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

GOAL_PERCENT = 5.0
N_ANSWERS = 10
N_TOKENS = 48
N_REPEATS = 10
QUESTION = "Tell me, in a few paragraphs, how a bicycle stays upright."
SETTINGS = {
    "default": Sampling(seed=1),
    "default, repeat penalty 1.1": Sampling(seed=1, repeat_penalty=1.1),
    "greedy": Sampling(temperature=0),
    "top_k 0": Sampling(seed=1, top_k=0),
    "temperature only": Sampling(seed=1, top_k=0, top_p=1, min_p=0),
}


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = bench_parser(__doc__)
    parser.add_argument("--model", type=Path, help="a GGUF file; SmolLM2 if it is not given")
    options = parser.parse_args()
    report = Report("sampling: the cost of choosing a token")
    engine = LlamaCppEngine(options.model or model_or_exit("smollm2"), EngineSettings())
    engine.reserve(1024)
    n_vocab = engine.vocab().n_tokens
    report.row("vocabulary", n_vocab, "tokens")
    shares, decode_us, rows = answers(engine, n_vocab)
    report.row("engine, per token, median", decode_us, "us")
    share = median(shares)
    report.row("default loop / engine, best answer", min(shares), "%")
    report.row("default loop / engine, worst answer", max(shares), "%")
    report.row(
        "default loop / engine, median",
        share,
        "%",
        f"<= {GOAL_PERCENT:g}",
        ok=share <= GOAL_PERCENT,
    )
    for name, sampling in SETTINGS.items():
        pick_us = picking_us(sampling, n_vocab, rows)
        report.row(f"pick, {name}, median", pick_us, "us")
        report.row(f"pick, {name} / engine", 100 * pick_us / decode_us, "%")
    engine.close()
    return report.finish(options.json)


def answers(
    engine: LlamaCppEngine, n_vocab: int
) -> tuple[list[float], float, list[NDArray[np.float32]]]:
    """Give answers; return our share of each in percent, the engine's time and some logits."""
    vocab = engine.vocab()
    prompter = make_prompter(
        engine.model.chat_template, bos_text=vocab.bos_text, eos_text=vocab.eos_text
    )
    text = prompter.render([Message("user", QUESTION)])
    prompt = engine.tokenize(text, special=True, add_bos=True)
    shares, token_us, rows = [], [], []
    for seed in range(N_ANSWERS):
        engine.truncate(0)
        logits = engine.decode(prompt)[-1]
        rows.append(logits.copy())
        sampler = Sampler(Sampling(seed=seed), n_vocab)
        sampler.prime(prompt)
        joiner = TextJoiner(("<stop>", "\n\nUser:"))
        decoding = Decoding(engine, logits, sampler, joiner, max_tokens=N_TOKENS, n_ctx=1024)
        for _ in decoding:
            pass
        outcome = decoding.outcome
        rows.append(engine.decode(list(outcome.tokens[-1:]))[-1].copy())
        shares.append(100 * outcome.choose_s / outcome.decode_s)
        token_us.append(1e6 * outcome.decode_s / outcome.n_decoded)
    return shares, median(token_us), rows


def picking_us(sampling: Sampling, n_vocab: int, rows: list[NDArray[np.float32]]) -> float:
    """Return the median time of one choice in microseconds."""
    sampler = Sampler(sampling, n_vocab)
    sampler.prime(range(100))
    times_s = []
    for _ in range(N_REPEATS):
        for logits in rows:
            started_s = perf_counter()
            sampler.accept(sampler.pick(logits))
            times_s.append(perf_counter() - started_s)
    return 1e6 * median(times_s)


if __name__ == "__main__":
    sys.exit(main())
