"""`edgellm convert org/name` in processes of its own, against a hub on the loopback interface."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edgellm.formats.gguf import read_header

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "tests" / "data" / "checkpoints" / "llama3-untied-sharded-bf16"
SHARD = "model-00001-of-00002.safetensors"
# Written where each Python process of the test reads it at its start, the children's too.
NO_SOCKETS = """
import os, sys
def watch(event, args):
    if event in ("socket.connect", "socket.sendto", "socket.bind") or "getaddrinfo" in event:
        with open(os.environ["SOCKET_LOG"], "a") as log:
            log.write(f"{event} {args!r}\\n")
sys.addaudithook(watch)
"""


@pytest.fixture
def hub(loopback: ModuleType) -> Any:
    """A hub with one sharded checkpoint."""
    made = loopback.Hub()
    made.add_folder(TINY)
    server = loopback.serve(made)
    yield made
    made.released.set()
    server.shutdown()
    server.server_close()


class Convert:
    """Starts `edgellm convert` with a home of its own."""

    def __init__(self, url: str, folder: Path, warm_start: Any) -> None:
        self.folder = folder
        self.warm_start = warm_start  # None where Python's own start matters
        self.out = folder / "out.gguf"
        drop = ("HF_", "HUGGING", "http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy")
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(drop)}
        self.environment |= {"HF_ENDPOINT": url, "HF_HOME": str(folder / "hf")}

    def start(self, *arguments: object, **environment: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "edgellm", "convert", *map(str, arguments)]
        return subprocess.Popen(
            [*command, "-o", str(self.out), "--bits", "8"],
            env=self.environment | environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *arguments: object, **environment: str) -> tuple[int, str, str]:
        if self.warm_start is None:
            process = self.start(*arguments, **environment)
            out, err = process.communicate(timeout=60)
            code = process.returncode
        else:
            words = ["convert", *arguments, "-o", self.out, "--bits", "8"]
            env = self.environment | environment
            done = self.warm_start.run(words, cwd=self.folder, timeout=60, env=env)
            code, out, err = done.returncode, done.stdout.decode(), done.stderr.decode()
        assert "Traceback" not in err, err
        return code, out, err

    def partials(self) -> list[Path]:
        return list((self.folder / "hf").rglob("*.edgellm-partial"))


@pytest.fixture
def convert(hub: Any, tmp_path: Path, warm_start: Any) -> Convert:
    return Convert(hub.url, tmp_path, warm_start)


def test_a_model_of_the_hub_becomes_a_gguf(convert: Convert, hub: Any, loopback: ModuleType):
    """Fetched, converted, and equal to what the folder itself becomes but for the address in it."""
    code, out, err = convert("maker/tiny")
    assert code == 0, err
    assert out.startswith(f"{convert.out}: ")
    assert f"maker/tiny: commit {loopback.COMMIT[:12]}, in {convert.folder}" in err
    assert "fetching maker/tiny: 100 %, " in err
    assert "it/s" not in err
    header = read_header(convert.out)
    url = f"{hub.url}/maker/tiny/tree/{loopback.COMMIT}"
    assert header.metadata["general.source.url"] == url
    fetched = convert.out.read_bytes()[header.data_start :]
    assert convert(TINY, "--force")[0] == 0
    local = read_header(convert.out)
    assert convert.out.read_bytes()[local.data_start :] == fetched
    assert set(header.metadata) - set(local.metadata) == {"general.source.url"}


def test_a_killed_download_goes_on_where_it_was(convert: Convert, hub: Any, loopback: ModuleType):
    """A kill -9 in the middle of a shard, and the same command again: only the rest is asked for."""
    half = len(hub.files[SHARD]) // 2
    hub.faults[SHARD] = loopback.Fault(hold_at=half)
    process = convert.start("maker/tiny")
    last_s = time.monotonic() + 30
    while not [p for p in convert.partials() if p.stat().st_size == half]:
        assert time.monotonic() < last_s, process.poll()
        time.sleep(0.02)
    process.kill()
    process.communicate()
    hub.released.set()
    hub.faults.clear()
    hub.asked.clear()
    code, _, err = convert("maker/tiny")
    assert code == 0, err
    ranges = {a.path: a.range for a in hub.asked if a.path.startswith("/content/")}
    assert ranges[f"/content/{SHARD}"] == f"bytes={half}-"
    assert convert.partials() == []
    assert read_header(convert.out).tensors


def test_json_is_one_line(convert: Convert):
    """--json prints the result and nothing of the way there."""
    code, out, err = convert("hf:maker/tiny@v1", "--json")
    assert code == 0, err
    assert json.loads(out)["type"] == "converted"
    assert "fetching" not in err


def test_what_may_not_be_written_is_told_before_anything_is_fetched(convert: Convert, hub: Any):
    """An output that is there, or has no folder, stops it before the first request."""
    convert.out.write_bytes(b"mine")
    assert convert("maker/tiny")[0] == 2
    convert.out = convert.folder / "no-folder" / "out.gguf"
    assert convert("maker/tiny")[0] == 2
    assert hub.asked == []


@pytest.mark.parametrize("variable", ["EDGELLM_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_says_so_at_once(convert: Convert, hub: Any, variable: str):
    """Nothing is asked; what was fetched before is converted."""
    code, _, err = convert("maker/tiny", **{variable: "1"})
    assert (code, hub.asked) == (1, [])
    assert f"{variable} forbids the network" in err
    assert convert("maker/tiny", "--dry-run")[0] == 0
    hub.asked.clear()
    assert convert("maker/tiny", "--dry-run", **{variable: "1"})[0] == 0
    assert hub.asked == []


@pytest.mark.parametrize(
    ("name", "change", "code", "told"),
    [
        ("maker/nothing", {}, 3, "no such model on the hub"),
        ("maker/tiny@v9", {}, 3, "no such revision"),
        ("maker/tiny", {"api_status": 403, "api_error": "GatedRepo"}, 2, "is gated"),
        ("maker/tiny", {"api_status": 500}, 1, "HTTP 500"),
        ("hf:nonsense", {}, 2, "names no repository"),
        ("./maker/tiny", {}, 3, "no such file or folder"),
    ],
)
def test_exit_codes(
    convert: Convert, hub: Any, name: str, change: dict[str, Any], code: int, told: str
):
    """Not there is 3, not allowed or not a name 2, a broken hub 1; one line each, and no file."""
    for key, value in change.items():
        setattr(hub, key, value)
    found, out, err = convert(name, HF_TOKEN="hf_verysecret")
    assert (found, out) == (code, "")
    assert told in err
    assert "hf_verysecret" not in err
    assert not convert.out.exists()


@pytest.mark.parametrize("packed", [False, True])
def test_a_hub_without_end_costs_no_memory(convert: Convert, hub: Any, packed: bool):
    """A list that does not end, or unpacks to a gigabyte, is an error and no gigabytes."""
    if packed:
        packer = zlib.compressobj(1, wbits=31)
        pieces = [packer.compress(b"0" * (1 << 20)) for _ in range(1 << 10)]
        hub.api_body = b"".join([*pieces, packer.flush()])
        hub.api_headers = {"Content-Encoding": "gzip"}
    hub.api_endless = not packed
    process = convert.start("maker/tiny")
    # Room for a start, not for the list: whoever keeps it fails in another way.
    resource.prlimit(process.pid, resource.RLIMIT_DATA, (1 << 30, 1 << 30))
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, ""), err
    assert err.startswith("error: maker/tiny: the hub")
    assert ("not asked for" if packed else "more than 32 MB") in err


def test_a_hub_that_contradicts_its_list(convert: Convert, hub: Any, loopback: ModuleType):
    """One typed line says which file and how, without a raw warning; nothing is left of it."""
    hub.faults["config.json"] = loopback.Fault(tag="f" * 40)
    code, out, err = convert("maker/tiny")
    assert (code, out) == (1, "")
    assert "Warning" not in err
    [line] = [line for line in err.splitlines() if line.startswith("error: ")]
    assert "config.json: the server has ffffffffffffffff..., not " in line
    assert not list((convert.folder / "hf").rglob("snapshots"))


def test_bytes_that_were_changed_on_the_way_are_thrown_away(
    convert: Convert, hub: Any, loopback: ModuleType
):
    """A shard of other bytes is deleted, which is said, and the next run gets the right one."""
    changed = hub.files[SHARD][:-1] + bytes([hub.files[SHARD][-1] ^ 1])
    hub.faults[SHARD] = loopback.Fault(body=changed)
    code, _, err = convert("maker/tiny")
    assert code == 1
    assert f"{SHARD}: its hash is " in err
    assert "is deleted" in err
    assert convert.partials() == []
    hub.faults.clear()
    assert convert("maker/tiny", "--dry-run")[0] == 0


def test_a_local_folder_needs_no_network(convert: Convert, hub: Any, tmp_path: Path):
    """No name is looked up and nothing connected to, in any process of it; nor with no network."""
    watched = tmp_path / "watched"
    watched.mkdir()
    (watched / "sitecustomize.py").write_text(NO_SOCKETS)
    log = tmp_path / "sockets.log"
    shutil.copytree(TINY, tmp_path / "maker" / "tiny")
    # The installed package needs no path of its own; the source tree is put there by conftest.py.
    path = os.pathsep.join(filter(None, [str(watched), os.environ.get("PYTHONPATH", "")]))
    convert.environment |= {"PYTHONPATH": path, "SOCKET_LOG": str(log)}
    convert.warm_start = None
    code, _, err = convert("maker/tiny")
    assert code == 0, err
    assert hub.asked == []
    assert not log.exists(), log.read_text()
    code, _, _ = convert("hf:maker/tiny", "--dry-run")  # the control: the watch sees what it should
    assert code == 0
    assert "socket.connect" in log.read_text()


def test_a_network_that_is_not_there_is_no_hindrance(convert: Convert, tmp_path: Path):
    """In a network namespace without a way out, where the system lets us make one."""
    space = ["unshare", "--map-root-user", "--net"]
    if shutil.which("unshare") is None or subprocess.run([*space, "true"], check=False).returncode:
        space = []  # containers may forbid it; the run is then the plain one
    command = [*space, sys.executable, "-m", "edgellm", "convert", str(TINY), "--bits", "8"]
    done = subprocess.run(
        [*command, "-o", str(convert.out)],
        env=convert.environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
