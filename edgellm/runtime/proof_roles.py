"""What begins, ends and pads a text in a written file, against the three files that say so in a checkpoint.

Every id that a file calls an end is one where the engine stops, and it stops at no other, but for those it
knows by their text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from edgellm.converters.special import STOPS_BY_TEXT
from edgellm.errors import VerifyFailed
from edgellm.runtime.source_tokens import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from edgellm.engines.base import Vocab
    from edgellm.runtime.source_tokens import SourceTokens

_KEY: Final = "tokenizer.ggml.{}_token_id"
_END_KEYS: Final = tuple(_KEY.format(role) for role in ("eos", "eot", "eom"))
_GGUF_ROLES: Final = {"bos": "bos", "unk": "unknown", "pad": "padding"}


@dataclass(frozen=True, slots=True)
class Roles:
    """Ids by what the source's files call them.

    Attributes:
        ends: every id that any of them calls an end.
        named: ids of `bos`, `unk` and `pad`, where one is named.
    """

    ends: frozenset[int]
    named: Mapping[str, int]


def read_roles(folder: Path, source: SourceTokens) -> Roles:
    """Read generation_config.json, config.json and tokenizer_config.json."""
    generation, config, tokenizer = (
        read_json(folder / f"{stem}.json")
        for stem in ("generation_config", "config", "tokenizer_config")
    )
    named: dict[str, int] = {}
    for role in _GGUF_ROLES:
        by_text = _by_text(tokenizer, role, source)
        ids = [*by_text, *_ids(generation, role), *_ids(config, role)]
        named |= {role: ids[0]} if ids else {}
    # What generation_config.json says stands in for config.json, and does not add to it.
    ends = _ids(generation, "eos") or _ids(config, "eos")
    return Roles(frozenset((*ends, *_by_text(tokenizer, "eos", source))), named)


def _ids(values: Mapping[str, Any], role: str) -> list[int]:
    value = values.get(f"{role}_token_id")
    return value if isinstance(value, list) else [] if value is None else [value]


def _by_text(tokenizer: Mapping[str, Any], role: str, source: SourceTokens) -> list[int]:
    value = tokenizer.get(f"{role}_token")
    text = value.get("content") if isinstance(value, dict) else value
    found = None if text is None else source.find(text)
    return [] if found is None else [found]


def compare_roles(
    metadata: Mapping[str, Any], vocab: Vocab, source: SourceTokens, roles: Roles
) -> list[str]:
    """Hold a file's special tokens against the source's; return what to warn of.

    Raises:
        VerifyFailed: the engine stops elsewhere, or a file's begin, unknown or padding is another.
    """
    for role, gguf_role in _GGUF_ROLES.items():
        meant, found = roles.named.get(role), metadata.get(_KEY.format(gguf_role))
        if meant != found:
            raise VerifyFailed(f"{role}_token_id is {meant} in the source and {found} in the file")
    written = {int(metadata[key]) for key in _END_KEYS if key in metadata}
    for i in sorted((written & vocab.end_ids) - roles.ends):
        text = source.text(i)
        is_free = text is None and not roles.ends  # a file must name one: it changes nothing
        if text not in STOPS_BY_TEXT and not is_free:
            raise VerifyFailed(
                f"the engine stops at token {i}, {text!a:.60}; the source ends at {_shown(roles)}"
            )
    return _missing(vocab, source, roles, n_places=len(written))


def _missing(vocab: Vocab, source: SourceTokens, roles: Roles, *, n_places: int) -> list[str]:
    by_text: list[str] = []
    for i in sorted(roles.ends - vocab.end_ids):
        text = source.text(i)
        if text in STOPS_BY_TEXT:  # by the same rule it leaves out some beside others
            by_text.append(f"the engine does not stop at {text!a}, which the source calls an end")
        elif n_places < len(_END_KEYS):  # with all places taken, the converter has warned
            raise VerifyFailed(
                f"the engine does not stop at token {i}, {text!a:.60}; the source ends at "
                f"{_shown(roles)}"
            )
    return by_text


def _shown(roles: Roles) -> str:
    return ", ".join(map(str, sorted(roles.ends)[:8])) or "no token"
