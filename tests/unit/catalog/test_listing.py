"""The hub's list of files: what is needed of it, and what of it is not believed."""

from __future__ import annotations

from typing import Any

import pytest

from edgellm.catalog.listing import INDEX, read_listing, small_files, weight_files
from edgellm.errors import FetchError, ModelUnsupported

COMMIT = "a" * 40


def row(name: Any, size: Any = 5, digest: Any = "b" * 40, lfs: Any = None) -> dict[str, Any]:
    return {"rfilename": name, "size": size, "blobId": digest, "lfs": lfs}


def listing(*names: str) -> Any:
    return read_listing(COMMIT, [row(name) for name in names])


def test_what_a_conversion_reads_and_nothing_else():
    """Configuration, tokenizer, templates, card and licence; no code, no pickle, no other format."""
    needed = ["README.md", "LICENSE", "LICENSE.txt", "added_tokens.json", "chat_template.jinja"]
    needed += ["config.json", "generation_config.json", INDEX, "special_tokens_map.json"]
    needed += ["tokenizer.json", "tokenizer.model", "tokenizer_config.json", "chat_template.json"]
    others = ["modeling_x.py", "pytorch_model.bin", "tokenizer.py", "model.onnx", "a.gguf"]
    others += ["flax_model.msgpack", ".gitattributes", "onnx/config.json", "../config.json"]
    others += ["vocab.bin", "training_args.bin", "x/../../config.json", "config.json\n"]
    found = small_files(listing(*needed, *others))
    assert [file.name for file in found] == sorted(needed)


def test_weights_of_an_index_or_one_file_or_all():
    """Copies of the weights under another name are not fetched as well."""
    both = listing("model.safetensors", "consolidated.safetensors")
    assert [file.name for file in weight_files(both, ())] == ["model.safetensors"]
    assert [f.name for f in weight_files(both, {"consolidated.safetensors"})] == [
        "consolidated.safetensors"
    ]
    other = listing("a.safetensors", "b.safetensors")
    assert [file.name for file in weight_files(other, ())] == ["a.safetensors", "b.safetensors"]


@pytest.mark.parametrize("shard", ["c.safetensors", "../a.safetensors", "config.json"])
def test_an_index_names_only_listed_weights(shard: str):
    """A shard that is not in the repository's own folder is not asked for."""
    with pytest.raises(FetchError, match="1 weight files of the index are not there"):
        weight_files(listing("a.safetensors", "config.json"), {shard, "a.safetensors"})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pytorch_model.bin", "only pickled weights"),
        ("model-q4.gguf", "holds GGUF files already, such as model-q4.gguf"),
        ("README.md", "has no .*safetensors"),
    ],
)
def test_repositories_without_weights_say_what_they_have(name: str, message: str):
    """Nothing to convert is told before anything is fetched."""
    with pytest.raises(ModelUnsupported, match=message):
        weight_files(listing(name), ())


def test_large_files_go_by_their_own_hash():
    """The hash of a large file is that of its content, not of the pointer git keeps."""
    lfs = {"sha256": "c" * 64}
    [file] = read_listing(COMMIT, [row("model.safetensors", lfs=lfs)]).files.values()
    assert file.digest == "c" * 64


@pytest.mark.parametrize(
    ("commit", "rows", "message"),
    [
        (None, [], "names no commit"),
        ("main", [], "names no commit"),
        (COMMIT, None, "names no files"),
        (COMMIT, {}, "names no files"),
        (COMMIT, [5], "names no files"),
        (COMMIT, ["config.json"], "names no files"),
        (COMMIT, [row("config.json", lfs={"sha256": 5})], "tells no hash"),
        (COMMIT, [row("a.txt")] * 100_001, "100001 files; at most 100000 are read"),
        (COMMIT, [row(f"tokenizer{i}.json") for i in range(65)], "65 small files; at most 64"),
        (
            COMMIT,
            [row(f"tokenizer{i}.json", size=60 << 20) for i in range(18)],
            "1132462080 bytes in small files; at most 1073741824",
        ),
        ("../" * 13 + "x", [], "names no commit"),
        (COMMIT, [row("config.json", size=None)], "config.json: the hub tells no length"),
        (COMMIT, [row("config.json", size=-1)], "no length"),
        (COMMIT, [row("config.json", size=1 << 60)], "no length"),
        (COMMIT, [row("config.json", size=True)], "no length"),
        (COMMIT, [row("config.json", size=1 << 30)], "at most 67108864 are read"),
        (COMMIT, [row("config.json", digest=None)], "tells no hash"),
        (COMMIT, [row("config.json", digest="../../../etc/passwd")], "tells no hash"),
        (COMMIT, [row("config.json", digest="B" * 40)], "tells no hash"),
    ],
)
def test_a_list_that_cannot_be_is_refused(commit: Any, rows: Any, message: str):
    """Commit, lengths and hashes become paths and counts: each has its form."""
    with pytest.raises(FetchError, match=message):
        read_listing(commit, rows)
