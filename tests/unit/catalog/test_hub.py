"""Models of the hub by name: what is a name, what is fetched, and what each failure says."""

from __future__ import annotations

import gzip
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from edgellm.catalog import answers, library
from edgellm.catalog.hub import HubName, fetch, parse_name
from edgellm.errors import (
    DoesNotFit,
    FetchError,
    MissingExtra,
    ModelNotFound,
    ModelUnsupported,
    UsageError,
)

TINY = HubName("maker/tiny")
WEIGHTS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
CHECKPOINT = Path(__file__).parents[2] / "data" / "checkpoints" / "llama3-untied-sharded-bf16"


@pytest.mark.parametrize(
    ("text", "repo_id", "revision"),
    [
        ("org/name", "org/name", None),
        ("hf:org/name", "org/name", None),
        ("Qwen/Qwen2.5-0.5B_x", "Qwen/Qwen2.5-0.5B_x", None),
        ("org/name@v1.0", "org/name", "v1.0"),
        ("hf:org/name@refs/pr/1", "org/name", "refs/pr/1"),
    ],
)
def test_names(text: str, repo_id: str, revision: str | None):
    """An organisation, a name, and a branch, tag or commit behind an @."""
    assert parse_name(text) == HubName(repo_id, revision)


@pytest.mark.parametrize(
    "text",
    [
        *("name", "./org/name", "/org/name", "../org/name", "org/name/more", "org\\name", "org/"),
        *("org/name.gguf", "org/model.safetensors", "org/na me", "org/-name", "", ".", "~/name"),
        *("org/name@../x", "org/name@a/../../x", "org/name@", "org/..", "org/name\n", "\u00e9/x"),
    ],
)
def test_paths(text: str):
    """What may be meant as a path is one."""
    assert parse_name(text) is None


def test_what_is_there_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder of that name wins, and so does one in which the name may have been misspelt."""
    monkeypatch.chdir(tmp_path)
    assert parse_name("models/tiny") is not None
    (tmp_path / "models").mkdir()
    assert parse_name("models/tiny") is None
    assert parse_name("hf:models/tiny") == HubName("models/tiny")
    (tmp_path / "models" / "tiny").symlink_to("nowhere")
    assert parse_name("models/tiny") is None


@pytest.mark.parametrize("text", ["hf:", "hf:name", "hf:/x/y", "hf:org/name@..", "hf:a/b/c"])
def test_the_prefix_demands_a_name(text: str):
    """With `hf:` before it, what is no name is an error and not a path."""
    with pytest.raises(UsageError, match="names no repository"):
        parse_name(text)


def test_a_checkpoint_is_fetched_whole(hub: Any):
    """Only what a conversion reads, each file once, equal to the source, with a running total."""
    told: list[tuple[int, int]] = []
    found = fetch(TINY, progress=lambda done, total: told.append((done, total)))
    names = sorted(path.name for path in found.folder.iterdir())
    needed = {path.name for path in CHECKPOINT.iterdir()} - {"logits.npz"} | {"README.md"}
    assert set(names) == needed
    for path in CHECKPOINT.iterdir():
        if path.name in names:
            assert (found.folder / path.name).read_bytes() == path.read_bytes()
    assert sorted(set(hub.bodies())) == names
    assert told[-1][0] == told[-1][1] == found.fetched_bytes + (CHECKPOINT / _INDEX).stat().st_size
    assert [done for done, _ in told] == sorted(done for done, _ in told)


_INDEX = "model.safetensors.index.json"


def test_a_second_fetch_asks_for_the_list_alone(hub: Any):
    """What is there is not fetched again, and the commit is the one that was there."""
    first = fetch(TINY)
    hub.asked.clear()
    again = fetch(TINY)
    assert (again.folder, again.commit, again.fetched_bytes) == (first.folder, first.commit, 0)
    assert hub.bodies() == []


def test_a_revision_is_kept_apart(hub: Any):
    """A tag is looked up, pinned, and found offline by its own name."""
    found = fetch(HubName("maker/tiny", "v1"))
    assert fetch(HubName("maker/tiny", "v1"), offline=True).folder == found.folder
    assert fetch(HubName("maker/tiny", found.commit), offline=True).folder == found.folder
    with pytest.raises(FetchError, match="was not fetched before"):
        fetch(TINY, offline=True)


def test_a_new_commit_between_list_and_files_changes_nothing(hub: Any):
    """All files are asked for by commit, never by the branch that may move."""
    fetch(TINY)
    paths = [asked.path for asked in hub.asked if "/resolve/" in asked.path]
    assert paths
    assert not [path for path in paths if "/resolve/main/" in path]


@pytest.mark.parametrize("how", ["flag", "variable"])
def test_offline_opens_no_connection(hub: Any, how: str, monkeypatch: pytest.MonkeyPatch):
    """Offline says so at once; what was fetched before is used."""
    from huggingface_hub import constants

    fetch(TINY)
    hub.asked.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", how == "variable")
    name = {"flag": "EDGELLM_OFFLINE", "variable": "HF_HUB_OFFLINE"}[how]
    assert fetch(TINY, offline=how == "flag").fetched_bytes == 0
    with pytest.raises(FetchError, match=f"{name} forbids the network"):
        fetch(HubName("maker/other"), offline=how == "flag")
    assert hub.asked == []


def test_a_fetch_that_failed_is_not_found_offline(hub: Any, loopback: Any):
    """A revision's name leads to a commit only when all of its files are there."""
    hub.faults[WEIGHTS[1]] = loopback.Fault(status=404)
    with pytest.raises(FetchError, match=WEIGHTS[1]):
        fetch(TINY)
    with pytest.raises(FetchError, match="was not fetched before"):
        fetch(TINY, offline=True)
    hub.asked.clear()
    del hub.faults[WEIGHTS[1]]
    fetch(TINY)
    assert WEIGHTS[0] not in hub.bodies()


@pytest.mark.parametrize(
    ("repo_id", "revision"), [("maker/nothing", None), ("maker/tiny", "no-such-tag")]
)
def test_what_the_hub_does_not_have(hub: Any, repo_id: str, revision: str | None):
    """A repository or a revision that is not there: exit 3, by name."""
    with pytest.raises(ModelNotFound, match="no such") as caught:
        fetch(HubName(repo_id, revision))
    assert repo_id in str(caught.value)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (403, "GatedRepo", "is gated: its terms must be accepted first"),
        (401, "", r"does not let you have it \(HTTP 401\)"),
        (401, "RepoNotFound", r"does not let you have it \(HTTP 401\)"),
        (403, "", "does not let you have it"),
    ],
)
def test_refusals_say_what_to_do(hub: Any, monkeypatch: Any, status: int, code: str, message: str):
    """Gated, private or without rights: the login command, and never the token."""
    monkeypatch.setenv("HF_TOKEN", "hf_verysecret")
    hub.api_status, hub.api_error = status, code
    with pytest.raises(UsageError, match=message) as caught:
        fetch(TINY)
    assert caught.value.exit_code == 2
    assert "hf auth login" in str(caught.value)
    assert "hf_verysecret" not in str(caught.value)
    assert "Bearer hf_verysecret" in {asked.authorization for asked in hub.asked}


def test_unauthorized_without_a_token_may_mean_not_there(hub: Any):
    """The hub hides what is private behind the same answer as what does not exist: exit 3."""
    hub.api_status, hub.api_error = 401, "RepoNotFound"
    with pytest.raises(ModelNotFound, match="no such model on the hub, or it is private"):
        fetch(TINY)


@pytest.mark.parametrize("body", [b"<html>log in</html>", b"[1]", b"{}", b'{"sha": 5}', b'"x"'])
def test_what_is_no_hub(hub: Any, body: bytes):
    """A proxy's page, or JSON of something else, is an error of ours."""
    hub.api_body = body
    with pytest.raises(FetchError):
        fetch(TINY)


@pytest.mark.parametrize("status", [200, 302])
def test_a_list_without_end_is_left(hub: Any, status: int):
    """Neither a list nor the body of a redirect is read for ever: 32 MB at most."""
    hub.api_endless, hub.api_status = True, status
    hub.api_headers = {"Location": f"/api/models/{TINY}?again"} if status != 200 else {}
    with pytest.raises(FetchError, match=r"more than 32 MB|redirects more than 20 times"):
        fetch(TINY)
    assert hub.sent_bytes < 200 << 20


def test_a_compressed_list_is_not_unpacked(hub: Any):
    """No such form was asked for, and a few bytes of it can become gigabytes."""
    hub.api_body = gzip.compress(b'{"a": "' + b"0" * (64 << 20))
    hub.api_headers = {"Content-Encoding": "gzip"}
    with pytest.raises(FetchError, match="'gzip' form, which was not asked for"):
        fetch(TINY)


def test_a_list_that_drips_is_left(hub: Any, loopback: Any, monkeypatch: pytest.MonkeyPatch):
    """Each byte comes in time, the list does not."""
    hub.api_fault = loopback.Fault(drip_s=0.02)
    monkeypatch.setattr(answers, "LIMIT_S", 0.3)
    with pytest.raises(FetchError, match=r"has not answered within 0\.3 seconds"):
        fetch(TINY)


def test_without_a_thread_the_hub_is_not_asked(hub: Any, monkeypatch: pytest.MonkeyPatch):
    """A system that has none to give is an error of ours, and no wait."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(answers, "Started", refuse)
    with pytest.raises(FetchError, match="no thread could be started to ask the hub"):
        fetch(TINY)
    assert not hub.asked


def test_a_hub_that_contradicts_itself_in_a_head_is_not_asked(hub: Any, recwarn: Any):
    """The list and the bytes decide: names are given without another request, or a warning."""
    fetch(TINY)
    assert {asked.method for asked in hub.asked} == {"GET"}
    assert not recwarn.list


def test_other_programs_find_what_was_fetched(hub: Any):
    """huggingface_hub's own functions find each file, offline, by branch and by commit."""
    import huggingface_hub

    found = fetch(TINY)
    cache = huggingface_hub.constants.HF_HUB_CACHE
    for revision in (None, "main", found.commit):
        path = huggingface_hub.try_to_load_from_cache(
            str(TINY), "config.json", cache_dir=cache, revision=revision
        )
        assert Path(str(path)) == found.folder / "config.json"
        folder = huggingface_hub.snapshot_download(
            str(TINY), revision=revision, cache_dir=cache, local_files_only=True
        )
        assert Path(folder) == found.folder
    [repo] = huggingface_hub.scan_cache_dir(cache).repos
    assert (repo.repo_id, repo.nb_files) == (str(TINY), len(list(found.folder.iterdir())))


@pytest.mark.parametrize("links", [True, False])
def test_a_name_that_leads_elsewhere_is_put_right(hub: Any, links: bool, monkeypatch: Any):
    """A link to nothing, or a file of another length, is replaced by what was proven."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_DISABLE_SYMLINKS", not links, raising=False)
    folder = fetch(TINY).folder
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("nowhere")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").write_bytes(b"other")
    fetch(TINY)
    for path in folder.iterdir():
        assert path.read_bytes() == hub.files[path.name]
        assert path.is_symlink() == links
    assert {path.name for path in folder.iterdir()} < set(hub.files)


def test_no_network(hub: Any, monkeypatch: pytest.MonkeyPatch):
    """Nobody answers: it says so, and how to use what is there."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(FetchError, match=r"the hub cannot be reached .*HF_HUB_OFFLINE=1"):
        fetch(TINY)


def test_too_small_a_disk_is_told_before_the_weights(hub: Any, monkeypatch: pytest.MonkeyPatch):
    """The sum of all files is held against the free space first."""
    usage = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(library.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(DoesNotFit, match=r"more, .* are free") as err:
        fetch(TINY)
    assert err.value.have_bytes == 1000
    assert set(hub.bodies()) <= {_INDEX}


def test_a_repository_of_pickles_is_left_alone(hub: Any):
    """Nothing of it is fetched."""
    for name in [*WEIGHTS, "consolidated.safetensors", _INDEX]:
        del hub.files[name]
    with pytest.raises(ModelUnsupported, match="only pickled weights"):
        fetch(TINY)
    assert hub.bodies() == []


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    """Without huggingface_hub the error is the command that installs it."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtra, match=r"pip install 'edgellm\[hub\]'"):
        fetch(TINY)
