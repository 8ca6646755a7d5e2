"""Why a start is not warm: the prompt as a run would make it, and what the store has for it.

Nothing is decoded. The engine is opened for its settings alone: weights are mapped and not read, and
a context of the smallest size says which attention kernel was chosen, which no header can tell.
Texts are for the user's own terminal; none is logged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from edgellm.core import Message, Tier
from edgellm.runtime.causes import CAUSES, begins_otherwise, code_cause, field_cause
from edgellm.runtime.differences import Said, compare, tool_names
from edgellm.runtime.prefill import MIN_SNAPSHOT_TOKENS
from edgellm.runtime.prompting import Prompting
from edgellm.runtime.spelled import SpelledTokens
from edgellm.runtime.storing import make_storing
from edgellm.store.disk import names
from edgellm.store.explain import HIT, field_changes
from edgellm.store.packs.imports import Imports

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from edgellm.core import Tools
    from edgellm.engines.base import Engine
    from edgellm.runtime.differences import Difference
    from edgellm.runtime.live import Prompt
    from edgellm.runtime.session import SessionOptions
    from edgellm.store.explain import Explanation, FieldChange
    from edgellm.store.snapshots import SnapshotStore
    from edgellm.store.state import Fingerprint

_REPACK = "repack"  # the one field that is set otherwise here than in a run
_QUESTION = "Hello"  # what stands behind the prefix does not matter, as long as something does


@dataclass(frozen=True, slots=True)
class Why:
    """Whether the store has a prompt's prefix, and if not, why.

    Attributes:
        code: `hit`; `imported` where a pack has it that waits for its first use; `converted` where a
            snapshot of other settings would be used, rounded otherwise; or the code of the miss.
        cause: one of `CAUSES`; "" for no miss.
        message: one phrase for people.
        fix: one line of advice; "" for a hit.
        key: name of the snapshot that is looked for.
        path: where it lies or would lie.
        n_tokens: length of the prefix.
        n_usable: how many of them a run would take from the store, those of a shorter cut perhaps.
        tier: of the snapshot found, or of the nearest one.
        created_s: when that was written, Unix seconds; 0 without one.
        changes: fields of the fingerprint that differ from the nearest snapshot's.
        difference: where the tokens differ from the nearest snapshot's.
        notes: what the prompt's making had to say.
    """

    code: str
    cause: str
    message: str
    fix: str
    key: str
    path: str
    n_tokens: int
    n_usable: int = 0
    tier: str = ""
    created_s: int = 0
    changes: tuple[FieldChange, ...] = ()
    difference: Difference | None = None
    notes: tuple[str, ...] = ()


def why(
    path: Path,
    options: SessionOptions,
    messages: Sequence[Message],
    store: SnapshotStore,
    *,
    tools: Tools = (),
    clock: Callable[[], datetime] = datetime.now,
) -> Why:
    """Say what the store has for a conversation's prefix, as a run with these options would ask.

    Args:
        path: the model.
        options: how a run would open it.
        messages: the system messages; a question is put behind them.
        store: where snapshots lie.
        tools: what the model may call.
        clock: the time that templates see.

    Raises:
        EdgeLLMError: the model cannot be opened, or the template refuses the messages.
    """
    from edgellm.engines.llamacpp import LlamaCppEngine

    # Copies of the weights that a CPU multiplies faster with are of no use here, and of no weight:
    # they change the rounding, which is no hard field.
    engine = LlamaCppEngine(path, replace(options.engine, repack=False))
    try:
        engine.reserve(1)
        return Doctor(engine, store, options, clock=clock).look(messages, tools)
    finally:
        engine.close()


class Doctor:
    """Looks at prompts for one engine and one store.

    Args:
        engine: with a context reserved.
        store: where snapshots lie.
        options: how a session would be opened: tier and template count.
        clock: the time that templates see.
        min_tokens: the shortest prefix that is kept.
    """

    def __init__(
        self,
        engine: Engine,
        store: SnapshotStore,
        options: SessionOptions,
        *,
        clock: Callable[[], datetime] = datetime.now,
        min_tokens: int = MIN_SNAPSHOT_TOKENS,
    ) -> None:
        self._engine = engine
        self._vocab = engine.vocab()
        self._store = store
        self._storing = make_storing(store, options)
        self._is_off = options.snapshot is Tier.OFF
        self._min_tokens = min_tokens
        self._prompting = Prompting(engine, options.chat_template, clock=clock, keeps_prefixes=True)

    def prompt(self, messages: Sequence[Message], tools: Tools = ()) -> Prompt:
        """Return the prompt of these system messages and some question.

        Raises:
            TemplateError: the template failed or refused the messages.
        """
        return self._prompting.prompt([*messages, Message("user", _QUESTION)], None, tools)

    def look(self, messages: Sequence[Message], tools: Tools = ()) -> Why:
        """Explain the prefix of these system messages.

        Raises:
            TemplateError: the template failed or refused the messages.
        """
        prompt = self.prompt(messages, tools)
        content = "\n".join(message.content for message in messages)
        found = self._explained(prompt, Said(prompt.text, content, tool_names(tools)))
        notes, self._prompting.notes = self._prompting.notes, []
        if trouble := self._store.trouble:
            notes.append(trouble)
        return replace(found, notes=tuple(notes))

    def _explained(self, prompt: Prompt, said: Said) -> Why:
        block = self._engine.snapshot_block()
        if self._is_off or block:
            return self._refused("off", f"snapshots are off: {block or 'asked'}", prompt)
        if not prompt.cuts:
            return self._refused("no_prefix", "the prompt has no stable prefix", prompt)
        fingerprint = self._engine.fingerprint()
        tier = self._storing.tier(fingerprint)
        cuts = [cut for cut in reversed(prompt.cuts) if cut >= self._min_tokens]
        first: tuple[Explanation, tuple[int, ...]] | None = None
        for cut in cuts:
            prefix = prompt.tokens[:cut]
            found = self._store.explain(fingerprint, prefix, tier, cuts=prompt.cuts)
            if found.code == HIT:
                return self._hit(found, prompt, first)
            if self._waits(fingerprint, prefix, prompt.cuts):
                return self._waiting(found, prompt, cut)
            first = first or (found, prefix)
        if first is None:
            message = (
                f"{prompt.n_prefix} tokens are fewer than the {self._min_tokens} that are kept"
            )
            return self._refused("too_short", message, prompt)
        return self._converted(fingerprint, prompt, cuts, tier) or self._miss(*first, said)

    def _converted(
        self, fingerprint: Fingerprint, prompt: Prompt, cuts: Sequence[int], tier: Tier
    ) -> Why | None:
        """Describe a snapshot made under other settings that a run would take, if it may round."""
        if not self._storing.allows_loss:
            return None
        for source in self._engine.relatives():
            for cut in cuts:
                prefix = prompt.tokens[:cut]
                found = self._store.explain(source, prefix, tier, cuts=prompt.cuts)
                if found.code == HIT:
                    changes = field_changes(source, fingerprint)
                    named = ", ".join(f"{change.name} {change.stored}" for change in changes)
                    message = f"a snapshot made with {named} is laid out anew: rounding differs"
                    hit = self._hit(found, prompt, None)
                    return replace(hit, code="converted", message=message, changes=changes)
        return None

    def _waits(self, fingerprint: Fingerprint, prefix: Sequence[int], cuts: Sequence[int]) -> bool:
        """Return whether a pack that was imported has this prefix, cut at the same places."""
        ids, inside = names.token_ids(prefix), names.cuts_below(cuts, len(prefix))
        imports = Imports(self._store.files)
        return imports.waiting(fingerprint.digest(), ids, inside) is not None

    def _waiting(self, found: Explanation, prompt: Prompt, cut: int) -> Why:
        key, path = found.path.stem, str(found.path)
        message = (
            f"an imported snapshot of {cut} tokens waits: the next run probes it, then uses it"
        )
        return Why("imported", "", message, "", key, path, prompt.n_prefix, cut)

    def _refused(self, code: str, message: str, prompt: Prompt) -> Why:
        """Describe what the session does not ask the store for."""
        cause = code_cause(code)
        return Why(code, cause, message, CAUSES[cause], "", "", prompt.n_prefix)

    def _hit(
        self,
        found: Explanation,
        prompt: Prompt,
        longer: tuple[Explanation, tuple[int, ...]] | None,
    ) -> Why:
        info = found.info
        n_tokens = info.n_tokens if info else 0
        said = f"all {n_tokens} tokens are stored"
        if longer is not None:
            said = f"{n_tokens} of {prompt.n_prefix} tokens are stored, up to an earlier boundary"
        changed = [one for one in found.soft_changes if not one.startswith(_REPACK)]
        if changed:
            said += f"; rounding may differ ({'; '.join(changed)})"
        return Why(
            code=HIT,
            cause="",
            message=said,
            fix="",
            key=found.path.stem,
            path=str(found.path),
            n_tokens=prompt.n_prefix,
            n_usable=n_tokens,
            tier=info.tier.value if info else "",
            created_s=info.created_s if info else 0,
        )

    def _miss(self, found: Explanation, prefix: tuple[int, ...], said: Said) -> Why:
        near = found.near
        missed = Why(found.code, "", "", "", found.path.stem, str(found.path), len(prefix))
        if found.problem:
            cause = code_cause(found.code)
            message = f"the file there cannot be used: {found.problem}"
        elif near is None:
            cause, message = "never_stored", "nothing is stored that is like it"
        elif near.cuts is not None:
            cause, message = "cuts", "the same tokens are stored, cut elsewhere: rounding differs"
        elif near.changes:
            cause = field_cause(near.changes)
            message = "the same tokens are stored, under another fingerprint"
            missed = replace(missed, changes=near.changes)
        elif not near.alike and not begins_otherwise(near.tokens, prefix, self._vocab.bos_id):
            cause = "never_stored"
            message = "for this model and these settings other prompts are stored, none like it"
        else:
            spell = SpelledTokens(self._vocab, self._engine.tokenize)
            cause, difference = compare(near.tokens, prefix, said, spell, self._vocab.bos_id)
            message = f"a prompt like it is stored, which differs from token {difference.token} on"
            missed = replace(missed, difference=difference)
        if near is not None and cause != "never_stored":
            missed = replace(missed, tier=near.tier.value, created_s=near.created_s)
        return replace(missed, cause=cause, message=message, fix=CAUSES[cause])
