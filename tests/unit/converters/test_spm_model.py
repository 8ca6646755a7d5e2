"""tokenizer.model files: read by length, refused where engines would cut text otherwise."""

from __future__ import annotations

import struct
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.converters.tokenizer import read_vocabulary
from edgellm.converters.vocabulary import TokenKind
from edgellm.errors import ConvertError, EdgeLLMError, MissingExtra, ModelCorrupt

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
BPE = 2


def varint(value: int) -> bytes:
    made = bytearray()
    value &= (1 << 64) - 1
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])


def field(number: int, value: bytes | float) -> bytes:
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def message(values: Mapping[int, bytes | float]) -> bytes:
    return b"".join(field(number, value) for number, value in values.items())


def piece(text: str, score: float = 0.0, kind: int = NORMAL) -> bytes:
    return field(1, message({1: text.encode(), 2: score, 3: kind}))


HEAD = [piece("<unk>", kind=UNKNOWN), piece("<s>", kind=CONTROL), piece("</s>", kind=CONTROL)]
BYTES = [piece(f"<0x{i:02X}>", kind=BYTE) for i in range(256)]
TAIL = [piece("ab", -0.5), piece("a", -1.25), piece("b", -2.0), piece("\u2581x", kind=USER_DEFINED)]
TRAINER: dict[int, bytes | float] = {3: BPE, 35: 1, 41: 1}
NORMALIZER: dict[int, bytes | float] = {1: b"identity", 3: 1, 4: 0, 5: 1}
N_VOCAB = 264


def model(
    pieces: list[bytes] | None = None,
    trainer: Mapping[int, bytes | float] | None = None,
    normalizer: Mapping[int, bytes | float] | None = None,
) -> bytes:
    """Give the bytes of a model; parts of it may be replaced."""
    return (
        b"".join([*HEAD, *BYTES, *TAIL] if pieces is None else pieces)
        + field(2, message(TRAINER | dict(trainer or {})))
        + field(3, message(NORMALIZER | dict(normalizer or {})))
    )


def test_pieces_scores_and_kinds(tmp_path: Path) -> None:
    """They are the model's own, and a text begins with a blank and the begin token."""
    (tmp_path / "tokenizer.model").write_bytes(model())
    vocabulary = read_vocabulary(tmp_path, N_VOCAB)
    assert (vocabulary.model, vocabulary.prefix, len(vocabulary.texts)) == (
        "llama",
        "each",
        N_VOCAB,
    )
    assert vocabulary.scores[259:262] == [-0.5, -1.25, -2.0]
    assert vocabulary.kinds[:4] == [UNKNOWN, CONTROL, CONTROL, BYTE]
    assert vocabulary.texts[262] == " x"  # the engine looks for it before blanks are replaced
    assert vocabulary.kinds[-1] == TokenKind.UNUSED
    assert vocabulary.post_processor["single"][0] == {"SpecialToken": {"id": "<s>"}}
    assert any("a blank behind ' x'" in text for text in vocabulary.warnings)


def test_without_a_blank_and_without_a_begin_token(tmp_path: Path) -> None:
    """Negative ids take ten bytes, and mean that there is none."""
    (tmp_path / "tokenizer.model").write_bytes(model(trainer={41: -1}, normalizer={3: 0}))
    vocabulary = read_vocabulary(tmp_path, N_VOCAB)
    assert (vocabulary.prefix, vocabulary.post_processor) == ("never", None)


@pytest.mark.parametrize(
    ("data", "message_"),
    [
        (model(trainer={3: 1}), "Unigram"),
        (model(trainer={3: 9}), "number 9"),
        (model(trainer={35: 0}), "no byte fallback"),
        (model(normalizer={1: b"nmt_nfkc"}), "nmt_nfkc"),
        (model(normalizer={2: b"map"}), "normalizer"),
        (model(normalizer={4: 1}), "extra blanks"),
        (model(normalizer={5: 0}), "blanks in a way"),
        (model(trainer={24: 1}), "blanks in a way"),
        (model([*HEAD, *BYTES[:-1], *TAIL]), "<0xFF>"),
        (model([*HEAD, *BYTES, *TAIL, piece("ab")]), "two ids stand for 'ab'"),
        (model([]), "has 0 pieces"),
    ],
)
def test_what_engines_would_do_otherwise_is_refused(
    tmp_path: Path, data: bytes, message_: str
) -> None:
    """Another algorithm, a normaliser, missing bytes: one line that says which."""
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(ConvertError, match=message_) as found:
        read_vocabulary(tmp_path, N_VOCAB)
    assert "tokenizer.model" in str(found.value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"IQ== 0\nIg== 1\n",  # a list of another library, under the same name
        model()[:-1],
        field(1, 7) + model(),
        model([*HEAD, *BYTES, piece("")]),
        model([*HEAD, *BYTES, piece("a", float("nan"))]),
        model([*HEAD, *BYTES, piece("a", kind=77)]),
        model([*HEAD, *BYTES, field(1, message({1: b"\xff"}))]),
        model([*HEAD, *BYTES, field(1, message({1: b"a", 2: 5}))]),
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\xff" * 40,
    ],
)
def test_damage_is_a_typed_error(tmp_path: Path, data: bytes) -> None:
    """Nothing is read beyond a field's length, and no field is believed."""
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises((ModelCorrupt, ConvertError)) as found:
        read_vocabulary(tmp_path, N_VOCAB)
    assert "tokenizer.model" in str(found.value)


@given(st.data())
def test_any_bytes_are_a_typed_error_or_a_vocabulary(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Cut, changed and repeated models never end in anything else."""
    whole = bytearray(model())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=6))
    folder = tmp_path_factory.mktemp("model")
    (folder / "tokenizer.model").write_bytes(bytes(whole))
    told = "tokenizer.model"
    try:
        read_vocabulary(folder, N_VOCAB)
    except EdgeLLMError as err:
        told = str(err)
    assert "tokenizer.model" in told


def test_without_the_library_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What could not be proven is not converted; the hint is the command."""
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    (tmp_path / "tokenizer.model").write_bytes(model())
    with pytest.raises(MissingExtra, match="sentencepiece") as found:
        read_vocabulary(tmp_path, N_VOCAB)
    assert found.value.hint == "run: pip install 'edgellm[spm]'"
