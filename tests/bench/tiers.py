"""What each snapshot tier saves on disk and costs in the answer, beside one flipped bit.

Two models with F32 weights, so that the engine rounds next to nothing itself: SmolLM2 (dense) and
gemma-3-270m (sliding windows), both made F32 from their quantised files. Three kinds of text, all
ours: a licence, Python source (a file of this project as it once was) and a prompt of JSON tools
(made up here). A prefix of 1,024 tokens is decoded, captured, saved in a tier, looked up and
restored; then 256 tokens that follow are forced, and their logits compared with those after the
exact state was restored. KL divergences in nats; each text is judged, and the mean over all
positions of the three, where the most likely token must be the same at 97 of 100. Size is the whole
file over the keys and values as f16.

The control flips the lowest mantissa bit of every value: what no reader of f16 can call a change.
On a 4-bit model it changes the answer, because such an engine rounds what it multiplies; so the
packaged SmolLM2 (Q4_1) is measured too, and the tiers are held against its control.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from _models import model_or_exit
from _report import Report, bench_parser

from edgellm.core import Tier
from edgellm.engines.base import EngineSettings
from edgellm.engines.llamacpp import LlamaCppEngine
from edgellm.evaluate.divergence import kl_divergence, top1_agreement
from edgellm.store.format.codec import pack_state
from edgellm.store.snapshots import Hit, Saved, SnapshotStore

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edgellm.store.state import KVState

N_PREFIX, N_FORCED = 1024, 256
GOALS = {
    Tier.Q8: (0.52, 2e-4),
    Tier.Q6: (0.42, 6e-4),
    Tier.Q5: (0.36, 2.5e-3),
    Tier.Q4: (0.33, 5e-3),
}
CONTROL = "lowest bit flipped"
F32_MODELS = ("smollm2", "gemma3")
FOUR_BIT = "smollm2 Q4_1"
MIN_SAME_TOP_PERCENT = 97.0
GOAL_TO_CONTROL = 1.3  # of q8 and q6 on the 4-bit model: the size of the noise that is there anyway


@dataclass(frozen=True, slots=True)
class Score:
    """One restored state against the exact one: size in f16 sizes, and one figure a position."""

    ratio: float
    kl: NDArray[np.float64]
    same_top1: NDArray[np.bool_]


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = bench_parser(__doc__)
    for name in F32_MODELS:
        parser.add_argument(f"--{name}", type=Path, help="the model with F32 weights, GGUF")
    options = parser.parse_args()
    packaged = {name: model_or_exit(name) for name in F32_MODELS}
    report = Report("tiers: what a rounded snapshot saves and costs")
    with tempfile.TemporaryDirectory() as scratch:
        store = Path(scratch) / "store"
        for name in F32_MODELS:
            model = getattr(options, name) or as_f32(packaged[name], Path(scratch))
            judge_f32(report, name, scores_of(report, name, model, store, "f32"))
        scores = scores_of(report, FOUR_BIT, packaged["smollm2"], store, "q4_1")
        judge_four_bit(report, scores)
    return report.finish(options.json)


def scores_of(
    report: Report, name: str, model: Path, root: Path, weights: str
) -> dict[str, list[Score]]:
    """Score every tier on one model: by tier, one score a text."""
    engine = LlamaCppEngine(model, EngineSettings())
    found = engine.model.weight_types
    if max(found, key=lambda kind: found[kind]) != weights or (weights == "f32" and len(found) > 1):
        sys.exit(f"{model.name} holds {', '.join(found)}, not {weights}")
    engine.reserve(N_PREFIX + N_FORCED)
    scores: dict[str, list[Score]] = {}
    for kind, text in texts().items():
        tokens = engine.tokenize(text, special=False, add_bos=True)[: N_PREFIX + N_FORCED]
        if len(tokens) < N_PREFIX + N_FORCED:
            sys.exit(f"{kind}: {len(tokens)} tokens, {N_PREFIX + N_FORCED} are needed")
        for tier, score in score_text(engine, tokens, SnapshotStore(root)).items():
            scores.setdefault(tier, []).append(score)
            limit = GOALS[Tier(tier)][1] if weights == "f32" and tier != CONTROL else None
            judge(report, f"{name} {tier}, {kind}, KLD", float(score.kl.mean()), "nats", limit)
    engine.close()
    return scores


def judge_f32(report: Report, name: str, scores: dict[str, list[Score]]) -> None:
    """Hold the means over all texts against the goals."""
    for tier, parts in scores.items():
        kl = np.concatenate([part.kl for part in parts])
        same = np.concatenate([part.same_top1 for part in parts])
        limits = (None, None) if tier == CONTROL else GOALS[Tier(tier)]
        ratio = max(part.ratio for part in parts)
        judge(report, f"{name} {tier}, file / f16 bytes", ratio, "x", limits[0])
        judge(report, f"{name} {tier}, KLD mean", float(kl.mean()), "nats", limits[1])
        report.row(f"{name} {tier}, KLD max", float(kl.max()), "nats")
        top, least = 100 * float(same.mean()), MIN_SAME_TOP_PERCENT
        report.row(f"{name} {tier}, same top token", top, "%", f">= {least:g}", ok=top >= least)


def judge_four_bit(report: Report, scores: dict[str, list[Score]]) -> None:
    """Hold each tier against what one flipped bit does to a 4-bit model."""
    means = {
        tier: float(np.concatenate([part.kl for part in parts]).mean())
        for tier, parts in scores.items()
    }
    for tier, mean in means.items():
        report.row(f"{FOUR_BIT} {tier}, KLD mean", mean, "nats")
        if tier != CONTROL:
            limit = GOAL_TO_CONTROL if tier in (Tier.Q8.value, Tier.Q6.value) else None
            ratio = mean / means[CONTROL]
            judge(report, f"{FOUR_BIT} {tier}, KLD / control's", ratio, "x", limit)


def judge(report: Report, name: str, value: float, unit: str, limit: float | None) -> None:
    """Add a row, with a goal where there is one."""
    if limit is None:
        report.row(name, value, unit)
    else:
        report.row(name, value, unit, f"<= {limit:g}", ok=value <= limit)


def score_text(engine: LlamaCppEngine, tokens: list[int], store: SnapshotStore) -> dict[str, Score]:
    """Restore one prefix in each tier and force the rest."""
    prefix, forced = tokens[:N_PREFIX], tokens[N_PREFIX:]
    engine.truncate(0)
    engine.decode(prefix)
    state = engine.capture()
    expected = forced_logits(engine, state, forced)
    f16_bytes = sum(s.rows.nbytes for part in state.parts for s in part.sections)

    def score(restored: KVState, n_bytes: int) -> Score:
        logits = forced_logits(engine, restored, forced)
        kl, same = kl_divergence(expected, logits), top1_agreement(expected, logits)
        return Score(n_bytes / f16_bytes, kl, same)

    scores = {CONTROL: score(flipped(state), f16_bytes)}
    for tier in GOALS:
        store.remove()
        saved = store.save(engine.fingerprint(), prefix, pack_state(state, tier))
        found = store.lookup(engine.fingerprint(), prefix, tier)
        if not isinstance(saved, Saved) or not isinstance(found, Hit) or found.info.tier != tier:
            sys.exit(f"{tier.value}: {saved}, {found}")
        scores[tier.value] = score(found.state, saved.n_bytes)
    return scores


def forced_logits(engine: LlamaCppEngine, state: KVState, forced: list[int]) -> NDArray[np.float32]:
    """Return the logits after each forced token, from a restored state."""
    engine.restore(state)
    return engine.decode(forced, "all").copy()


def flipped(state: KVState) -> KVState:
    """Return the state with the lowest mantissa bit of every value flipped."""
    return replace(
        state,
        parts=tuple(
            replace(
                part,
                sections=tuple(replace(s, rows=s.rows ^ np.uint16(1)) for s in part.sections),
            )
            for part in state.parts
        ),
    )


def texts() -> dict[str, str]:
    """Return the three texts: written by us, and the same with any Python and at any commit."""
    root = Path(__file__).resolve().parents[2]
    return {
        "licence": (root / "LICENSE").read_text(encoding="utf-8"),
        "source": (root / "tests" / "data" / "source.txt").read_text(encoding="utf-8"),
        "tools": tool_prompt(),
    }


def tool_prompt() -> str:
    """Write a system prompt of tools, as programs that let models call functions send it."""
    nouns = ("invoice", "parcel", "guest", "lamp", "recipe", "ticket", "meeting", "sensor")
    verbs = ("create", "find", "update", "archive", "describe")
    fields = ("id", "name", "owner", "due_date", "amount", "room", "note", "priority")
    types = ("string", "integer", "number", "boolean")
    tools = []
    for i, (verb, noun) in enumerate((verb, noun) for noun in nouns for verb in verbs):
        chosen = [fields[(i * 3 + k * 5) % len(fields)] for k in range(2 + i % 3)]
        properties = {
            field: {"type": types[(i + k) % len(types)], "description": f"{field} of the {noun}"}
            for k, field in enumerate(chosen)
        }
        function = {
            "name": f"{verb}_{noun}",
            "description": f"Use this to {verb} one {noun}; ask before you guess the {chosen[0]}.",
            "parameters": {"type": "object", "properties": properties, "required": chosen[:1]},
        }
        tools.append({"type": "function", "function": function})
    return "You may call these tools:\n" + json.dumps(tools, indent=2)


def as_f32(source: Path, scratch: Path) -> Path:
    """Expand a model's weights."""
    target = scratch / f"{source.stem}-f32.gguf"
    command = [sys.executable, "-m", "edgellm", "convert", source, "-o", target, "--type", "f32"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return target


if __name__ == "__main__":
    sys.exit(main())
