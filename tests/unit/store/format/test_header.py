"""Every field of the header that is wrong, foreign or from the future is a miss that says so."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from edgellm.errors import SnapshotCorrupt, SnapshotError
from edgellm.store.format.parse import parse_header
from edgellm.store.snapshots import Hit, Miss, Saved, SnapshotStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Header = dict[str, Any]

TOKENS = list(range(12))
LATER = "incompatible: "
WRONG = "corrupt: "


def swap_roles(header: Header) -> None:
    """Call every K a V and every V a K."""
    for part in header["parts"]:
        for row in part["sections"]:
            row["role"] = {"K": "V", "V": "K"}.get(row["role"], row["role"])


def interleave_roles(header: Header) -> None:
    """Name the four rows of the first part as an engine would that writes layer after layer."""
    for n, row in enumerate(header["parts"][0]["sections"]):
        row["layer"], row["role"] = n // 2, "KV"[n % 2]


def number_from_seven(header: Header) -> None:
    """Number the layers as if others came before."""
    for row in header["parts"][0]["sections"]:
        row["layer"] += 7


def at(*path: str | int, to: object) -> Callable[[Header], None]:
    """Return a change that sets one place in the header."""

    def change(header: Header) -> None:
        place: Any = header
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = to

    return change


SECTION = ("parts", 0, "sections", 0)
CHANGES: dict[str, tuple[Callable[[Header], object], str]] = {
    "format_2": (at("format", to=2), LATER + "format 2"),
    "format_true": (at("format", to=True), WRONG),
    "feature": (at("required_features", to=["zstd"]), LATER + "requires 'zstd'"),
    "parent": (at("parent", to="ab" * 16), LATER + "field 'parent' is set"),
    "cipher": (at("cipher", to="aes-gcm"), LATER + "field 'cipher' is set"),
    "signature": (at("signature", to={}), LATER + "field 'signature' is set"),
    "tier": (at("tier", to="q3"), LATER + "tier 'q3'"),
    "tier_alone": (at("tier", to="q4"), WRONG + "tier 'q4' with exactness 'bits'"),
    "exactness": (at("exactness", to="close"), LATER + "exactness 'close'"),
    "unknown": (at("note", to="hello"), LATER + "the header: unknown field 'note'"),
    "unknown_in_part": (at("parts", 0, "x", to=1), LATER + "a part: unknown field 'x'"),
    "unknown_in_section": (at(*SECTION, "x", to=1), LATER + "a section: unknown field 'x'"),
    "unknown_in_tokens": (at("tokens", "x", to=1), LATER + "tokens: unknown field 'x'"),
    "missing": (
        lambda h: {k: v for k, v in h.items() if k != "tier"},
        WRONG + "the header: 'tier'",
    ),
    "reordered": (lambda h: dict(reversed(h.items())), WRONG + "the header is not in canonical"),
    "fingerprint": (at("fingerprint", to="0" * 64), WRONG + "the fingerprint is not that"),
    "fingerprint_case": (lambda h: at("fingerprint", to=h["fingerprint"].upper())(h), WRONG),
    "hard": (at("hard", 2, 1, to="cd" * 32), WRONG + "the fingerprint is not that"),
    "hard_number": (at("hard", 2, 1, to=7), WRONG + "the header: 'hard'"),
    "hard_not_ascii": (at("hard", 2, 1, to="값"), WRONG + "the header: 'hard'"),
    "hard_triple": (at("hard", 2, to=["a", "b", "c"]), WRONG + "the header: 'hard'"),
    "soft_object": (at("soft", to={"threads": "2"}), WRONG + "the header: 'soft'"),
    "n_tokens": (at("n_tokens", to=11), WRONG + "11 tokens in 48 bytes"),
    "n_tokens_0": (at("n_tokens", to=0), WRONG + "the header: 'n_tokens'"),
    "n_tokens_float": (at("n_tokens", to=12.0), WRONG + "the header: 'n_tokens'"),
    "n_tokens_huge": (at("n_tokens", to=1 << 64), WRONG + "the header: 'n_tokens'"),
    "tokens_sha256": (at("tokens_sha256", to="0" * 64), LATER + "other tokens under this name"),
    "created": (at("created", to=-1), WRONG + "the header: 'created'"),
    "tokens_offset": (at("tokens", "offset", to=64), WRONG + "a section at 64, expected at 0"),
    "tokens_xxh3": (at("tokens", "xxh3", to="0" * 32), WRONG + "section 0 at 0: the checksum"),
    "parts_object": (at("parts", to={}), WRONG + "the header: 'parts'"),
    "part_list": (at("parts", 0, to=[]), WRONG + "a part is not an object"),
    "kind": (at("parts", 0, "kind", to="ring"), LATER + "a part: unknown kind 'ring'"),
    "dense_late": (at("parts", 0, "first", to=1), WRONG + "a dense part holds positions 1 to 13"),
    "window_early": (
        at("parts", 1, "first", to=6),
        WRONG + "a window part holds positions 6 to 11",
    ),
    "dense_short": (at("parts", 0, "n_tokens", to=11), WRONG + "a dense part holds positions 0"),
    "opaque_as_dense": (at("parts", 2, "kind", to="dense"), WRONG + "layer 0 blob: 1 rows"),
    "layer_twice": (
        at("parts", 0, "sections", 1, "layer", to=0),
        WRONG + "layer 0 K where layer 1 K",
    ),
    "layers_from_7": (number_from_seven, WRONG + "layer 7 K where layer 0 K"),
    "layer_skipped": (
        at("parts", 0, "sections", 1, "layer", to=2),
        WRONG + "layer 2 K where layer 1 K",
    ),
    "layers_turned": (
        lambda h: at(*SECTION, "layer", to=1)(h) or at("parts", 0, "sections", 1, "layer", to=0)(h),
        WRONG + "layer 1 K where layer 0 K",
    ),
    "roles_swapped": (swap_roles, WRONG + "layer 0 V where layer 0 K"),
    "roles_interleaved": (interleave_roles, WRONG + "layer 0 V where layer 1 K"),
    "one_value_too_few": (
        at("parts", 0, "sections", 2, "role", to="K"),
        WRONG + "3 layers of K and 1",
    ),
    "blob_number": (at("parts", 2, "sections", 0, "layer", to=1), WRONG + "layer 1 blob where"),
    "role": (at(*SECTION, "role", to="Q"), LATER + "a section: unknown role 'Q'"),
    "role_blob": (at(*SECTION, "role", to="blob"), WRONG + "layer 0 blob: f16 in a part of kind"),
    "type": (at(*SECTION, "type", to="f8"), WRONG + "layer 0 K: 768 bytes for shape"),
    "type_blob": (at("parts", 2, "sections", 0, "type", to="q8_0"), WRONG + "layer 0 blob: q8_0"),
    "shape_one": (at(*SECTION, "shape", to=[12]), WRONG + "a section: 'shape'"),
    "shape_zero": (at(*SECTION, "shape", to=[0, 32]), WRONG + "a section: 'shape'"),
    "shape_text": (at(*SECTION, "shape", to=["12", 32]), WRONG + "a section: 'shape'"),
    "shape_turned": (at(*SECTION, "shape", to=[32, 12]), WRONG + "layer 0 K: 32 rows for 12"),
    "shape_wide": (at(*SECTION, "shape", to=[12, 64]), WRONG + "layer 0 K: 768 bytes"),
    "shape_wraps": (at(*SECTION, "shape", to=[1 << 32, 1 << 33]), WRONG + "layer 0 K: 768 bytes"),
    "offset": (at(*SECTION, "offset", to=128), WRONG + "a section at 128, expected at 64"),
    "offset_text": (at(*SECTION, "offset", to="64"), WRONG + "a section: 'offset'"),
    "n_bytes": (at(*SECTION, "n_bytes", to=767), WRONG + "layer 0 K: 767 bytes"),
    "n_bytes_huge": (at(*SECTION, "n_bytes", to=1 << 50), WRONG + "a section at 832"),
    "xxh3": (at(*SECTION, "xxh3", to="0" * 32), WRONG + "section 1 at 64: the checksum"),
    "xxh3_short": (at(*SECTION, "xxh3", to="0"), WRONG + "a section: 'xxh3'"),
    "section_gone": (lambda h: h["parts"][0]["sections"].pop() and None, WRONG + "a section at"),
    "part_gone": (lambda h: h["parts"].pop() and None, WRONG + "the header says"),
    "not_json": (lambda _: b'{"format":1', WRONG + "the header is not JSON"),
    "list": (lambda _: b"[]", WRONG + "the header is not an object"),
    "nothing": (lambda _: b"", WRONG + "the header is not JSON"),
    "not_ascii": (lambda _: b'{"\xff":1}', WRONG + "the header is not JSON"),
    "nan": (at("extra", to={"x": float("nan")}), WRONG + "the header is not JSON"),
    "deep": (lambda _: b"[" * 200_000, WRONG + "the header is not JSON"),
    "long_number": (lambda _: b'{"format":' + b"9" * 5000 + b"}", WRONG + "the header is not JSON"),
    "spaces": (lambda h: json.dumps(h).encode(), WRONG + "the header is not in canonical form"),
    "twice": (
        lambda h: json.dumps(h, separators=(",", ":")).encode()[:-1] + b',"format":1}',
        WRONG + "the header is not in canonical form",
    ),
}


@pytest.mark.parametrize("case", sorted(CHANGES))
def test_a_wrong_field_is_a_miss_with_its_reason(tmp_path: Path, snapshot_files: Any, case: str):
    """The checksums of each file are right: only the rules of the format can refuse it."""
    change, reason = CHANGES[case]
    store = SnapshotStore(tmp_path)
    saved = store.save(snapshot_files.FINGERPRINT, TOKENS, snapshot_files.state())
    assert isinstance(saved, Saved)
    snapshot_files.forge(saved.path, change)
    found = store.lookup(snapshot_files.FINGERPRINT, TOKENS)
    assert isinstance(found, Miss)
    assert found.reason.startswith(reason)
    # What is broken is of no use to anybody; what is only foreign may be of use to a later version.
    assert saved.path.exists() == reason.startswith(LATER)


def test_the_builders_make_a_file_that_is_accepted(tmp_path: Path, snapshot_files: Any):
    """The control: taken apart and put together unchanged, it is a hit; so it is with `extra`."""
    store = SnapshotStore(tmp_path)
    state = snapshot_files.state()
    saved = store.save(snapshot_files.FINGERPRINT, TOKENS, state)
    assert isinstance(saved, Saved)
    before = saved.path.read_bytes()
    snapshot_files.forge(saved.path, lambda _: None)
    assert saved.path.read_bytes() == before
    snapshot_files.forge(saved.path, at("extra", to={"a": [1, "x"], "b": None}))
    found = store.lookup(snapshot_files.FINGERPRINT, TOKENS)
    assert isinstance(found, Hit)
    assert snapshot_files.same(state, found.state)


@pytest.mark.parametrize("junk", ["1", "null", '"x"', "{}", '{"format":null}', '{"format":1}'])
def test_json_that_is_no_header_is_a_snapshot_error(junk: str):
    """No JSON value leads to another exception."""
    with pytest.raises(SnapshotCorrupt):
        parse_header(junk.encode())


def test_every_member_may_have_any_other_json_value(tmp_path: Path, snapshot_files: Any):
    """Each place in the header, replaced by each kind of value, is refused or parsed."""
    store = SnapshotStore(tmp_path)
    saved = store.save(snapshot_files.FINGERPRINT, TOKENS, snapshot_files.state())
    assert isinstance(saved, Saved)
    header, _ = snapshot_files.split(saved.path.read_bytes())

    def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        below = [p for k, v in inner if isinstance(v, (dict, list)) for p in places(v, (*path, k))]
        keys = value if isinstance(value, dict) else range(len(value))
        return [(*path, k) for k in keys] + below

    for place in places(header):
        for value in (None, True, -1, 0, 1.5, 1 << 70, "", "x", [], [[]], {}, {"a": 1}):
            changed = json.loads(json.dumps(header))
            at(*place, to=value)(changed)
            try:
                parse_header(json.dumps(changed, separators=(",", ":")).encode())
            except SnapshotError:
                continue
