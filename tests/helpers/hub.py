"""A local server that imitates the model hub."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "someone/tiny-bert"


@dataclass
class Hub:
    """The content and behavior of the server, and a record of its requests.

    Attributes:
        files: content of each file, by its path in the repository.
        fails: status and hub error code to return instead of a file, by path.
        cuts: number of bytes after which the connection breaks, by path; later requests get status 503.
        requested_files: paths of the files that were read.
        ranges: partial requests, as path and first byte.
        discussions: pull requests, as the hub describes them.
        conversion_parent: the commit on which the pull requests are based.
    """

    files: dict[str, bytes]
    fails: dict[str, tuple[int, str]] = field(default_factory=dict)
    cuts: dict[str, int] = field(default_factory=dict)
    requested_files: list[str] = field(default_factory=list)
    ranges: list[tuple[str, int]] = field(default_factory=list)
    discussions: list[dict[str, Any]] = field(default_factory=list)
    conversion_parent: str = COMMIT

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Return the status, headers and body of the response to a request for a path."""
        api = f"/api/models/{REPOSITORY}"
        revision = path.removeprefix(f"{api}/revision/") if "/revision/" in path else "main"
        if not path.startswith((f"{api}/", f"/{REPOSITORY}/resolve/")) and path != api:
            return _error(404 if path.startswith("/api/models/someone/") else 401, "RepoNotFound")
        if path == f"{api}/discussions":
            content = {"discussions": self.discussions, "count": len(self.discussions), "start": 0}
            return 200, {}, json.dumps(content).encode()
        if path.startswith(f"{api}/commits/"):
            parents = [COMMIT] if path.endswith("/main") else ["f" * 40, self.conversion_parent]
            return 200, {}, json.dumps([_commit(parent) for parent in parents]).encode()
        if revision not in ("main", "v1", COMMIT):
            return _error(404, "RevisionNotFound")
        if "/tree/" in path:
            return 200, {}, json.dumps([self._entry(name) for name in sorted(self.files)]).encode()
        if path.startswith("/api/"):
            return 200, {}, json.dumps({"id": REPOSITORY, "sha": COMMIT, "siblings": []}).encode()
        name = path.split(f"/resolve/{COMMIT}/", 1)[-1]
        if name in self.fails:
            return _error(*self.fails[name])
        if name not in self.files:
            return _error(404, "EntryNotFound")
        self.requested_files.append(name)
        etag = hashlib.sha256(self.files[name]).hexdigest()
        return 200, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}, self.files[name]

    def _entry(self, name: str) -> dict[str, Any]:
        content = self.files[name]
        return {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}


def _commit(commit: str) -> dict[str, Any]:
    return {"id": commit, "authors": [], "date": "2026-01-01T00:00:00.000Z", "title": "x", "message": ""}


def pull_request(number: int, **changes: Any) -> dict[str, Any]:
    """Return a pull request of the hub's conversion bot in the JSON format of the hub.

    Args:
        changes: values that replace the default values of the JSON object.
    """
    return {
        "num": number,
        "author": {"name": "SFconvertbot"},
        "repo": {"name": REPOSITORY, "type": "model"},
        "title": "Adding `safetensors` variant of this model",
        "status": "open",
        "isPullRequest": True,
        "createdAt": "2026-01-01T00:00:00.000Z",
    } | changes


def _error(status: int, code: str) -> tuple[int, dict[str, str], bytes]:
    return status, {"X-Error-Code": code, "X-Error-Message": f"{code} of the test"}, b"{}"


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def _send(self, with_body: bool) -> None:
        path = self.path.split("?")[0]
        status, headers, body = self.hub.answer(path)
        name = path.rpartition("/")[2]
        part = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if part and status == 200:
            first = int(part[1])
            self.hub.ranges.append((name, first))
            headers["Content-Range"] = f"bytes {first}-{len(body) - 1}/{len(body)}"
            status, body = 206, body[first:]
        self.send_response(status)
        for header, value in headers.items():
            self.send_header(header, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not with_body:
            return
        cut = self.hub.cuts.pop(name, None)
        self.wfile.write(body[:cut])
        if cut is not None:
            self.hub.fails[name] = (503, "Unavailable")
            self.close_connection = True

    def do_GET(self) -> None:
        self._send(with_body=True)

    def do_HEAD(self) -> None:
        self._send(with_body=False)

    def log_message(self, *_args: object) -> None:
        pass


@contextmanager
def serve_hub(hub: Hub) -> Iterator[str]:
    """Yield the address of a hub server, which runs until the block ends."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
