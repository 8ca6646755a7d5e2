"""Why each setting of a plan has its value, in words, and what the user should know besides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgellm.policy.fitting import ANSWER_ROOM, MIN_AUTO_CTX
from edgellm.units import format_bytes

if TYPE_CHECKING:
    from edgellm.policy.estimate import Estimate, PlanSettings
    from edgellm.policy.fitting import Fitting

ASKED_FOR: Final = "asked for"
_WORDS: Final = {
    "host": "of memory are available",
    "cgroup": "are left of the control group's limit",
    "rlimit": "are left of the process's address space limit",
    "profile": "may be taken by the device's profile",
}


def reasons_for(
    fitting: Fitting, first: PlanSettings, last: PlanSettings
) -> tuple[tuple[str, str], ...]:
    """Return the name of each setting and why it has its value, and last those of the memory.

    Args:
        fitting: the model, the machine and what was asked.
        first: what was wished, and the defaults.
        last: what is left of them.
    """
    share, machine = fitting.machine.share, fitting.machine
    quota = "no quota" if share.quota_cpus is None else f"a quota of {share.quota_cpus:g}"
    free = {
        "n_ctx": _ctx(fitting, first, last),
        "n_batch": (
            "the default"
            if first.n_batch == last.n_batch
            else f"{first.n_batch} would not fit: prompts are read more slowly"
        ),
        "kv_type": "the default: no other gives the same answers",
        "n_gpu_layers": _layers(fitting, last),
        "n_threads": f"{share.n_cpus} CPUs and {quota}",
        "flash_attention": "left to the engine",
        "repack": "weights may be copied into the layout this CPU computes fastest with",
    }
    wishes = fitting.wishes
    kept = {name for name in free if getattr(wishes, name) is not None}
    if wishes.n_gpu_layers and not last.n_gpu_layers:
        kept.discard("n_gpu_layers")  # there is no GPU to put them on: the engine computes here
    told = [(name, ASKED_FOR if name in kept else reason) for name, reason in free.items()]
    told.append(("snapshots", "prefixes are kept" if last.snapshots else "prefixes are not kept"))
    left = f"{format_bytes(machine.available_bytes)} {_WORDS[machine.limited_by]}"
    told.append(("memory", f"{left}, {format_bytes(fitting.margin_bytes)} stay free"))
    return tuple(told)


def warnings_of(
    fitting: Fitting, found: Estimate, settings: PlanSettings, slow: tuple[str, ...]
) -> tuple[str, ...]:
    """Return what is not known of a plan, will be slow or worse than expected, or is too small.

    Args:
        fitting: the model, the machine and what was asked.
        found: the memory it takes.
        settings: of the plan.
        slow: types of weights without a fast kernel here.
    """
    told = [f"not estimated: {what}" for what in found.unknown]
    if slow:
        names = ", ".join(slow)
        told.append(f"the engine has no fast kernel for {names} on this CPU: answers will be slow")
    trained, prompt = fitting.shape.model.n_ctx_train, fitting.prompt_tokens
    if prompt >= settings.n_ctx:
        told.append(f"a context of {settings.n_ctx} tokens cannot hold the prompt's {prompt}")
    if settings.n_ctx > trained:
        told.append(f"the model was trained with {trained} tokens: beyond, answers get worse")
    return tuple(told)


def _ctx(fitting: Fitting, first: PlanSettings, last: PlanSettings) -> str:
    trained = fitting.shape.model.n_ctx_train
    if last.n_ctx < first.n_ctx:
        return f"{first.n_ctx} tokens would not fit; the model was trained with {trained}"
    if last.n_ctx == trained:
        return "all that the model was trained with"
    return f"min(the model's {trained}, max({MIN_AUTO_CTX}, prompt + {ANSWER_ROOM}))"


def _layers(fitting: Fitting, last: PlanSettings) -> str:
    machine, whole = fitting.machine, fitting.n_layers
    if not machine.gpus:
        idle = machine.idle_gpus
        return f"the engine here cannot use the {idle[0].name}" if idle else "no GPU"
    name = machine.gpus[0].name
    if last.n_gpu_layers >= whole:
        return f"all fit the {name}"
    have = fitting.gpu_have_bytes or 0
    return f"of {whole}; {format_bytes(have)} may be taken on the {name}"
