"""Which tokens begin and end a text, and the chat template: from four files, in order of trust.

generation_config.json says what ends an answer, then config.json, then tokenizer_config.json. Every
id that ends an answer must be one the engine stops at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from edgellm.errors import ConvertError
from edgellm.formats.checked_json import read_json_object

from .chat_template import read_templates
from .spec import Config
from .vocabulary import TokenKind

if TYPE_CHECKING:
    from pathlib import Path

    from .recipe import KeyValues
    from .vocabulary import Vocabulary

_PREFIX: Final = "tokenizer.ggml."
# Texts at which llama.cpp stops without being told (special_eog_ids, llama-vocab.cpp 0c1e57098).
STOPS_BY_TEXT: Final = frozenset(
    {
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "</s>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|end_of_text|>",
        "<|flush|>",
        "<|calls|>",
        "<turn|>",
        "<|tool_response>",
        "[e~[",
        "<end_of_utterance>",
        "<eos>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
    }
)
# Control tokens that llama.cpp turns into ordinary ones (`impl::load`, there).
_READ_FROM_TEXT: Final = frozenset({"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"})
_DEFAULT_END: Final = {"gpt2": 11, "llama": 2}  # of a file without a number: `impl::load`, there
_GGUF_ROLES: Final = {"bos": "bos", "unk": "unknown", "pad": "padding"}


@dataclass(frozen=True, slots=True)
class Specials:
    """What `key_values` of the GGUF say about special tokens and templates."""

    key_values: KeyValues
    end_ids: tuple[int, ...]
    warnings: tuple[str, ...]


def read_specials(folder: Path, config: Config, vocabulary: Vocabulary) -> Specials:
    """Read the special tokens and the chat template of a checkpoint.

    `vocabulary.kinds` is changed: tokens with a role become control tokens.

    Raises:
        ConvertError: an id is outside the vocabulary, or a text is no token of it.
        ModelCorrupt: a file is no JSON object.
    """
    path = folder / "generation_config.json"
    generation = Config(_optional(path), path)
    path = folder / "tokenizer_config.json"
    tokenizer = Config(_optional(path), path)
    roles = _Roles(vocabulary)
    values: KeyValues = {}
    warnings: list[str] = []
    for role, gguf_role in _GGUF_ROLES.items():
        named = roles.by_text(tokenizer, f"{role}_token")
        for source in (generation, config):
            named = named or roles.by_id(source, f"{role}_token_id")
        if named:
            values[f"{_PREFIX}{gguf_role}_token_id"] = named[0]
            _never_from_text(vocabulary, named[0])
    ends = _ends(roles, generation, config, tokenizer)
    template = read_templates(folder, tokenizer)
    values |= _end_keys(ends, vocabulary, warnings, has_template=bool(template))
    values |= _added_around(vocabulary, tokenizer, values, warnings)
    _known_by_text(vocabulary, warnings)
    if vocabulary.prefix == "first" and template:
        # Chats begin with a special token: no blank at all is right behind every one of them.
        values[f"{_PREFIX}add_space_prefix"] = False
    return Specials(values | template, tuple(ends), tuple(warnings))


def _known_by_text(vocabulary: Vocabulary, warnings: list[str]) -> None:
    """Say which tokens engines take for something else because of their text."""
    for i, kind in enumerate(vocabulary.kinds):
        ordinary = kind in (TokenKind.USER_DEFINED, TokenKind.NORMAL)
        if ordinary and vocabulary.texts[i] in STOPS_BY_TEXT:
            vocabulary.kinds[i] = int(TokenKind.CONTROL)
            shown = repr(vocabulary.texts[i])
            warnings.append(f"engines end an answer at {shown} because of its text")
        elif kind == TokenKind.CONTROL and vocabulary.texts[i] in _READ_FROM_TEXT:
            shown = repr(vocabulary.texts[i])
            warnings.append(f"engines read {shown} from plain text too, because of its text")


def _never_from_text(vocabulary: Vocabulary, i: int) -> None:
    """Make a token with a role a control token where its file calls it an ordinary added one."""
    if vocabulary.kinds[i] == TokenKind.USER_DEFINED:
        vocabulary.kinds[i] = int(TokenKind.CONTROL)


class _Roles:
    """Looks special tokens up, by id or by text, and names the file when they are not there."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def by_id(self, source: Config, key: str) -> list[int]:
        value = source.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        n_vocab = len(self._vocabulary.texts)
        for i in ids:
            if type(i) is not int or not 0 <= i < n_vocab:
                raise source.error(f"{key} is {str(value)[:60]}; ids go from 0 to {n_vocab - 1}")
        return ids

    def by_text(self, tokenizer: Config, key: str) -> list[int]:
        value = tokenizer.get(key)
        text = value.get("content") if isinstance(value, dict) else value
        if text is None:
            return []
        i = self._vocabulary.ids.get(text) if isinstance(text, str) else None
        if i is None:
            raise tokenizer.error(f"{key} is {str(text)[:60]!r}, which is no token")
        return [i]


def _ends(roles: _Roles, generation: Config, config: Config, tokenizer: Config) -> list[int]:
    """Return the ids that end an answer, the main one first, each once."""
    key = "eos_token_id"
    trusted = roles.by_id(generation, key) or roles.by_id(config, key)
    by_text = roles.by_text(tokenizer, "eos_token")
    # Templates print the tokenizer's end token: where it is one of several, it is the main one.
    main = [i for i in by_text if i in trusted] or trusted[:1]
    return list(dict.fromkeys([*main, *trusted, *by_text]))


def _end_keys(
    ends: list[int], vocabulary: Vocabulary, warnings: list[str], *, has_template: bool
) -> KeyValues:
    if not ends:
        if has_template:
            raise ConvertError(
                "a chat model, but no file says which token ends an answer",
                hint="add eos_token_id to generation_config.json",
            )
        return _no_end(vocabulary, warnings)
    for i in ends:
        vocabulary.kinds[i] = int(TokenKind.CONTROL)
    values: KeyValues = {f"{_PREFIX}eos_token_id": ends[0]}
    rest = ends[1:]
    by_name = {text: i for i in rest if (text := vocabulary.texts[i]) in STOPS_BY_TEXT}
    slots = [i for i in rest if i not in by_name.values()]
    eom = by_name.get("<|eom_id|>")
    eot = slots.pop(0) if slots else next((i for i in rest if i != eom), None)
    if eom is None and slots:
        eom = slots.pop(0)
    for name, value in (("eot", eot), ("eom", eom)):
        if value is not None:
            values[f"{_PREFIX}{name}_token_id"] = value
    if slots:
        lost = ", ".join(repr(vocabulary.texts[i]) for i in slots)
        warnings.append(f"GGUF has no place for these ends of an answer: {lost}")
    return values


def _no_end(vocabulary: Vocabulary, warnings: list[str]) -> KeyValues:
    """Choose an end that changes nothing: where a file names none, engines take a number of their own."""
    by_text = (i for i, text in enumerate(vocabulary.texts) if text in STOPS_BY_TEXT)
    unused = (i for i, kind in enumerate(vocabulary.kinds) if kind == TokenKind.UNUSED)
    stop, free = next(by_text, None), next(unused, None)
    default = _DEFAULT_END[vocabulary.model]
    then = "answers run to their length limit"
    if stop is not None:
        then = f"engines will stop at {vocabulary.texts[stop]!r} because of its text"
    elif free is None and default < len(vocabulary.texts):
        then = f"engines will stop at token {default}, {vocabulary.texts[default]!r}"
    warnings.append(f"no file says which token ends a text: {then}")
    end = free if stop is None else stop
    return {} if end is None else {f"{_PREFIX}eos_token_id": end}


def _added_around(
    vocabulary: Vocabulary, tokenizer: Config, values: KeyValues, warnings: list[str]
) -> KeyValues:
    """Return whether the tokenizer puts begin and end tokens around a text.

    tokenizer.json decides, its post-processor is what runs; the Llama tokenizer classes alone build
    it anew from add_bos_token and add_eos_token.
    """
    before, after = _around(vocabulary.post_processor, tokenizer.path.with_name("tokenizer.json"))
    wants = (values.get(f"{_PREFIX}bos_token_id"), values.get(f"{_PREFIX}eos_token_id"))
    for ids, want in zip((before, after), wants, strict=True):
        if ids and [vocabulary.ids.get(text) for text in ids] != [want]:
            shown = str(ids)[:120]
            warnings.append(f"the tokenizer puts {shown} around a text, which engines cannot")
    adds = [bool(before), bool(after)]
    if str(tokenizer.get("tokenizer_class")).startswith("Llama"):
        for i, key in enumerate(("add_bos_token", "add_eos_token")):
            adds[i] = bool(tokenizer.flag(key)) if tokenizer.has(key) else adds[i]
    return {
        f"{_PREFIX}add_bos_token": adds[0] and wants[0] is not None,
        f"{_PREFIX}add_eos_token": adds[1] and wants[1] is not None,
    }


def _around(post: Any, path: Path) -> tuple[list[str], list[str]]:
    """Return the special tokens that a post-processor puts before and after a single text."""
    if post is None:
        return [], []
    if not isinstance(post, dict):
        raise ConvertError(f"post_processor is {str(post)[:60]!r}", path=path)
    if post.get("type") == "Sequence":
        parts = [_around(part, path) for part in _rows(post, "processors", path)]
        return [t for b, _ in parts for t in b], [t for _, a in parts for t in a]
    if post.get("type") != "TemplateProcessing":
        return [], []
    before: list[str] = []
    after: list[str] = []
    side = before
    for piece in _rows(post, "single", path):
        special = piece.get("SpecialToken") if isinstance(piece, dict) else None
        if isinstance(special, dict):
            side.append(str(special.get("id")))
        else:
            side = after
    return before, after


def _rows(post: dict[str, Any], key: str, path: Path) -> list[Any]:
    rows = post.get(key)
    if not isinstance(rows, (list, type(None))):
        raise ConvertError(f"post_processor.{key} is {str(rows)[:60]!r}, no list", path=path)
    return rows or []


def _optional(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.is_file() else {}
