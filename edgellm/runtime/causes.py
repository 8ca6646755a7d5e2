"""What kind of difference made a miss: of two prompts' texts, or of two fingerprints' fields.

Pure: texts and names in, one of `CAUSES` out. Texts are compared, never kept or logged.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgellm.store.explain import FieldChange

CAUSES: Final = {
    "date": "take the date out of the system prompt, or say it in the user's message",
    "id": "take what changes at every start (an id, a counter) out of the system prompt",
    "bos": "use one template: the beginning token is part of the prefix",
    "template": "use the same --chat-template as before, or warm the new one",
    "tools": "the tools changed: warm the new ones",
    "tool_order": "give tools and JSON in one fixed order",
    "text": "the text was edited: put what changes often last, or warm the new text",
    "model_file": "the model file is another one: warm it once",
    "lora": "load the same adapters at the same scale, or warm this combination",
    "rope": "use the rope settings of before, or warm the new ones",
    "kv_type": "use the --kv-type of before, or warm this one",
    "flash_attention": "use the --flash-attn of before, or warm this setting",
    "build": "the engine was upgraded or is set up otherwise: warm once",
    "tier": "ask for a coarser tier with --snapshot, or warm in this one",
    "cuts": "declare files, documents and marks in the same pieces as before, or warm this form",
    "damaged": "nothing to do: the next run makes it again; `edgellm snapshots check` finds more",
    "unusable": "see `edgellm snapshots check`",
    "never_stored": "`edgellm snapshots warm` makes it now, any run makes it as well",
    "too_short": "nothing to do: so few tokens are read as fast as a file",
    "no_prefix": "the template leaves nothing in front of the user's words: give a system prompt",
    "off": "run without --snapshot off, with a model whose memory can be kept",
    "unknown": "warm it once",
}
"""Each cause, and what to do about it."""

# Several may differ at once: the first of these explains the others.
_FIELD_CAUSES: Final = (
    ("model", "model_file"),
    ("architecture", "model_file"),
    ("memory", "model_file"),
    ("adapters", "lora"),
    ("rope", "rope"),
    ("kv_type_k", "kv_type"),
    ("kv_type_v", "kv_type"),
    ("kv_type", "kv_type"),
    ("flash_attention", "flash_attention"),
    ("engine", "build"),
    ("split", "build"),
    ("n_streams", "build"),
    ("attention_rotation", "build"),
    ("name", "model_file"),
)
_CODE_CAUSES: Final = {
    "corrupt": "damaged",
    "base_missing": "damaged",
    "too_coarse": "tier",
    "too_short": "too_short",
    "no_prefix": "no_prefix",
    "off": "off",
}
_MONTHS: Final = "(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_DAYS: Final = "(?:mon|tue|wed|thu|fri|sat|sun)(?:[a-z]*day)?"
_DATES: Final = re.compile(
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}(?:[t ]\d{1,2}:\d{2}(?::\d{2})?)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}"
    rf"|\d{{1,2}}:\d{{2}}(?::\d{{2}})?|\b{_DAYS}\b"
    rf"|(?:\d{{1,2}}\.? )?\b{_MONTHS}\b(?:\.?,? \d{{1,4}})?(?:,? \d{{4}})?"
    r"|\b1[4-9]\d{8}(?:\d{3})?\b",
    re.IGNORECASE,
)
_IDS: Final = re.compile(r"\b[0-9a-f]{8}(?:-?[0-9a-f]+)*\b|\b\d{6,}\b", re.IGNORECASE)
_WORD: Final = re.compile(r"\w+")
_REACH: Final = 64


def field_cause(changes: Sequence[FieldChange]) -> str:
    """Return the cause that hard fields of a fingerprint speak of."""
    changed = {change.name for change in changes}
    return next((cause for name, cause in _FIELD_CAUSES if name in changed), "build")


def code_cause(code: str) -> str:
    """Return the cause that a code of the store or the session is, or `unusable`."""
    return _CODE_CAUSES.get(code, "unusable")


def begins_otherwise(stored: Sequence[int], now: Sequence[int], bos_id: int | None) -> bool:
    """Return whether two prompts begin with different numbers of beginning-of-sequence tokens."""
    return bos_id is not None and _leading(stored, bos_id) != _leading(now, bos_id)


def _leading(tokens: Sequence[int], token: int) -> int:
    return next((n for n, found in enumerate(tokens) if found != token), len(tokens))


def text_cause(stored: str, now: str, content: str, tools: Sequence[str] = ()) -> str:
    """Return why two prompts' texts differ.

    Args:
        stored: the prefix that is stored.
        now: the one asked for.
        content: what the system message says now.
        tools: names of the tools that are declared now.
    """
    at = first_differing(stored, now)
    for cause, pattern in (("date", _DATES), ("id", _IDS)):
        if _covers(pattern, stored, at) and _covers(pattern, now, at):
            return cause
    before, after = _differing(stored, now, at)
    # The same words in another order: of tools, of members of an object, of documents.
    words = sorted(_WORD.findall(before))
    if len(words) > 1 and words == sorted(_WORD.findall(after)):
        return "tool_order"
    content = content.strip()
    place = now.find(content) if content else -1
    # A message that is whole in both prompts was not what changed.
    if place >= 0 and place <= at <= place + len(content) and content not in stored:
        return "text"
    if any(name in before or name in after for name in tools):
        return "tools"
    return "template" if place >= 0 or not content else "text"


def first_differing(left: str, right: str) -> int:
    """Return the index of the first character that differs, or the shorter length."""
    n = min(len(left), len(right))
    return next((i for i in range(n) if left[i] != right[i]), n)


def _covers(pattern: re.Pattern[str], text: str, at: int) -> bool:
    """Return whether a match stands where the texts begin to differ."""
    start = max(0, at - _REACH)
    near = text[start : at + _REACH]
    return any(m.start() <= at - start <= m.end() for m in pattern.finditer(near))


def _differing(left: str, right: str, at: int) -> tuple[str, str]:
    """Return what stands between the common beginning and the common end, in whole words."""
    most = min(len(left), len(right)) - at
    same = next((n for n in range(most) if left[-1 - n] != right[-1 - n]), most)
    end_left, end_right = len(left) - same, len(right) - same
    while end_left < len(left) and _WORD.match(left[end_left]):
        end_left, end_right = end_left + 1, end_right + 1
    while at and _WORD.match(left[at - 1]):
        at -= 1
    return left[at:end_left], right[at:end_right]
