"""A hub on the loopback interface: the part of the hub's HTTP interface that a download uses.

Small files are answered where they are asked for; large ones redirect to another host name, as the
hub's do to its content servers. Faults are set by file name.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "maker/tiny"


@dataclass
class Fault:
    """What a file's body does wrong.

    Attributes:
        cut_at: close the connection when so many bytes of the file are out.
        n_cuts: how often; then it is sent whole.
        hold_at: keep the connection open and silent when so many bytes are out.
        ignore_range: answer 200 with all of it.
        told_bytes: a false Content-Length.
        body: other content.
        status: an HTTP status instead of content.
        tag: another ETag.
        piece_bytes: no response has more of the file; it is then cut.
        drip_s: wait so long before each byte.
        loop: redirect to itself, with a body that does not end.
    """

    cut_at: int | None = None
    n_cuts: int = 1
    hold_at: int | None = None
    ignore_range: bool = False
    told_bytes: int | None = None
    body: bytes | None = None
    status: int | None = None
    tag: str = ""
    piece_bytes: int | None = None
    drip_s: float = 0.0
    loop: bool = False


@dataclass
class Asked:
    """One request that came in."""

    method: str
    path: str
    host: str
    range: str
    authorization: str


@dataclass
class Hub:
    """The hub: `files` of one repository at one commit, what is wrong, and what was asked."""

    files: dict[str, bytes] = field(default_factory=dict)
    large: set[str] = field(default_factory=set)
    faults: dict[str, Fault] = field(default_factory=dict)
    api_status: int = 200
    api_error: str = ""
    api_body: bytes | None = None
    api_headers: dict[str, str] = field(default_factory=dict)
    api_fault: Fault = field(default_factory=Fault)
    api_endless: bool = False
    asked: list[Asked] = field(default_factory=list)
    sent_bytes: int = 0
    port: int = 0
    released: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def add_folder(self, folder: Path) -> None:
        """Publish the files of a checkpoint; weights are large files."""
        for path in sorted(folder.iterdir()):
            self.files[path.name] = path.read_bytes()
            if path.suffix in {".safetensors", ".npz"}:
                self.large.add(path.name)

    def digest(self, name: str) -> str:
        """Return the tag of a file: SHA-256, or git's SHA-1 for small ones."""
        content = self.files[name]
        if name in self.large:
            return hashlib.sha256(content).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()  # noqa: S324

    def listing(self) -> dict[str, Any]:
        rows = []
        for name, content in self.files.items():
            row: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": "a" * 40}
            if name in self.large:
                row["lfs"] = {"sha256": self.digest(name), "size": len(content), "pointerSize": 1}
            else:
                row["blobId"] = self.digest(name)
            rows.append(row)
        return {"_id": "1", "id": REPO, "modelId": REPO, "sha": COMMIT, "siblings": rows}

    def bodies(self) -> list[str]:
        """Return the names of the files whose content was asked for, in order."""
        found = [a.path.rpartition("/")[2] for a in self.asked if a.method == "GET"]
        return [name for name in found if name in self.files]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        path = urlsplit(self.path).path
        get = self.headers.get
        asked = Asked(self.command, path, get("host", ""), get("range", ""), "")
        asked.authorization = get("authorization", "")
        self.hub.asked.append(asked)
        if re.fullmatch(rf"/api/models/{REPO}(/revision/(main|v1|{COMMIT}))?", path):
            self._api()
        elif path.startswith("/api/models/"):
            code = "RevisionNotFound" if path.startswith(f"/api/models/{REPO}/") else "RepoNotFound"
            self._send(404, b"{}", {"X-Error-Code": code}, with_body=with_body)
        elif found := re.fullmatch(rf"/{REPO}/resolve/{COMMIT}/([^/]+)", path):
            self._resolve(found[1], with_body=with_body)
        elif found := re.fullmatch(r"/content/([^/]+)", path):
            self._content(found[1], with_body=with_body)
        else:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"}, with_body=with_body)

    def _api(self) -> None:
        body = self.hub.api_body
        body = json.dumps(self.hub.listing()).encode() if body is None else body
        extra = {"X-Error-Code": self.hub.api_error} if self.hub.api_error else {}
        extra |= self.hub.api_headers
        if self.hub.api_endless:
            self._pour(self.hub.api_status, extra)
        else:
            fault = self.hub.api_fault
            self._send(self.hub.api_status, body, extra, with_body=True, fault=fault)

    def _pour(self, status: int, headers: dict[str, str]) -> None:
        """Send a JSON text that does not end, until nobody reads it."""
        self.send_response(status)
        for key, value in {"Connection": "close", **headers}.items():
            self.send_header(key, value)
        self.close_connection = True
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(b'{"a": "')
            while not self.hub.released.is_set():
                self.hub.sent_bytes += self.wfile.write(b"x" * (1 << 18))

    def _resolve(self, name: str, *, with_body: bool) -> None:
        if name not in self.hub.files:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"}, with_body=with_body)
        elif name in self.hub.large:
            there = f"http://localhost:{self.hub.port}/content/{name}"
            tags = {"X-Linked-Etag": f'"{self.hub.digest(name)}"', "Location": there}
            tags |= {"X-Linked-Size": str(len(self.hub.files[name])), "X-Repo-Commit": COMMIT}
            self._send(302, b"", tags, with_body=with_body)
        else:
            self._content(name, with_body=with_body)

    def _content(self, name: str, *, with_body: bool) -> None:
        fault = self.hub.faults.get(name, Fault())
        content = self.hub.files[name] if fault.body is None else fault.body
        tags = {"ETag": f'"{fault.tag or self.hub.digest(name)}"', "X-Repo-Commit": COMMIT}
        if fault.status is not None and with_body:
            self._send(fault.status, b"", {}, with_body=with_body)
            return
        if fault.loop and with_body:
            self._pour(302, {"Location": self.path})
            return
        start, status = 0, 200
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("range", ""))
        if wanted and not fault.ignore_range:
            start, status = int(wanted[1]), 206
            tags["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self._send(status, content[start:], tags, with_body=with_body, fault=fault, start=start)

    def _send(
        self,
        status: int,
        body: bytes,
        headers: dict[str, str],
        *,
        with_body: bool,
        fault: Fault | None = None,
        start: int = 0,
    ) -> None:
        fault = fault or Fault()
        self.send_response(status)
        length = len(body) if fault.told_bytes is None or not with_body else fault.told_bytes
        for key, value in {"Content-Length": str(length), **headers}.items():
            self.send_header(key, value)
        # Another hub may get this port later: a connection kept open would still lead here.
        self.send_header("Connection", "close")
        self.close_connection = True
        self.end_headers()
        if not with_body:
            return
        if fault.cut_at is not None and fault.n_cuts > 0 and start <= fault.cut_at:
            fault.n_cuts -= 1
            body = body[: fault.cut_at - start]
        if fault.hold_at is not None and start < fault.hold_at:
            self.wfile.write(body[: fault.hold_at - start])
            self.hub.released.wait(60)
            return
        body = body[: fault.piece_bytes]
        if fault.drip_s:
            self._drip(body, fault.drip_s)
            return
        self.hub.sent_bytes += len(body)
        with contextlib.suppress(ConnectionError):  # who has read enough goes
            self.wfile.write(body)

    def _drip(self, body: bytes, pause_s: float) -> None:
        with contextlib.suppress(OSError):
            for place in range(len(body)):
                self.wfile.write(body[place : place + 1])
                if self.hub.released.wait(pause_s):
                    break


def serve(hub: Hub) -> ThreadingHTTPServer:
    """Start a hub in threads of this process; close it with `shutdown` and `server_close`."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server
