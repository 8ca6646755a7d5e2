"""A checkpoint's chat template: a file of its own first, then the tokenizer's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from edgellm.errors import ConvertError
from edgellm.formats.checked_json import read_bounded, read_json_object

from .spec import Config

if TYPE_CHECKING:
    from pathlib import Path

    from .recipe import KeyValues

MAX_TEMPLATE_BYTES: Final = 4 << 20
_MAX_NAME: Final = 64  # characters of a template's name, which becomes part of a key
_KEY: Final = "tokenizer.chat_template"


@dataclass(frozen=True, slots=True)
class SourceTemplate:
    """The template as transformers would render it.

    Attributes:
        text: the template named default, or None.
        bos_text: what it knows as `bos_token`; None where the configuration names none.
        eos_text: what it knows as `eos_token`; None where the configuration names none.
    """

    text: str | None
    bos_text: str | None
    eos_text: str | None


def source_template(folder: Path) -> SourceTemplate:
    """Read the default chat template of a checkpoint, and the texts it is given.

    Raises:
        ConvertError: a template is no text, or not UTF-8.
        ModelCorrupt: a file is no JSON object.
    """
    path = folder / "tokenizer_config.json"
    tokenizer = Config(read_json_object(path) if path.is_file() else {}, path)
    text = read_templates(folder, tokenizer).get(_KEY)
    named = [tokenizer.get(f"{role}_token") for role in ("bos", "eos")]
    texts = [value.get("content") if isinstance(value, dict) else value for value in named]
    bos_text, eos_text = (value if isinstance(value, str) else None for value in texts)
    return SourceTemplate(text if isinstance(text, str) else None, bos_text, eos_text)


def read_templates(folder: Path, tokenizer: Config) -> KeyValues:
    """Return the templates as a GGUF keeps them.

    Args:
        folder: the checkpoint.
        tokenizer: its tokenizer_config.json.

    Raises:
        ConvertError: a template is no text, or not UTF-8.
        ModelCorrupt: a file is no JSON object.
    """
    named: dict[str, str] = {}
    jinja, as_json = folder / "chat_template.jinja", folder / "chat_template.json"
    source, value = tokenizer, tokenizer.get("chat_template")
    if jinja.is_file():
        data = read_bounded(jinja, max_bytes=MAX_TEMPLATE_BYTES)
        try:
            value = data.decode("utf-8")
        except UnicodeDecodeError as err:
            raise ConvertError(f"not UTF-8: byte {err.start}", path=jinja) from err
    elif as_json.is_file():
        source = Config(read_json_object(as_json), as_json)
        value = source.get("chat_template")
    if isinstance(value, list):
        named = dict(_named_template(row, source) for row in value)
        value = named.pop("default", None)
    if not isinstance(value, (str, type(None))):
        raise source.error(f"chat_template is {str(value)[:60]!r}; a text is needed")
    values: KeyValues = {_KEY: value} if value else {}
    if named:
        values["tokenizer.chat_templates"] = sorted(named)
        values |= {f"{_KEY}.{name}": named[name] for name in sorted(named)}
    return values


def _named_template(row: Any, source: Config) -> tuple[str, str]:
    name, text = (row.get("name"), row.get("template")) if isinstance(row, dict) else (None, None)
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME or not isinstance(text, str):
        raise source.error(f"chat_template holds {str(row)[:60]!r}; a name and a text are needed")
    return name, text
