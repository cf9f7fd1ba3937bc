"""A hub on this machine, which huggingface_hub talks to: repositories of small files, without a login."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(ThreadingHTTPServer):
    """files: repository -> path -> content."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, dict[str, bytes]] = {}

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        repository, found, rest = self.path.lstrip("/").partition("/resolve/")
        path = rest.partition("/")[2]
        content = self.server.files.get(repository, {}).get(path)
        if not found or content is None:
            missing = "EntryNotFound" if repository in self.server.files else "RepoNotFound"
            self._answer(b"", 404 if self.path != "/" else 200, {"X-Error-Code": missing})
            return
        etag = f'"{hashlib.sha256(content).hexdigest()}"'
        self._answer(content, 200, {"ETag": etag, "X-Repo-Commit": COMMIT})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/api/repos/create":
            name = f"user/{json.loads(body)['name']}"
            self.server.files.setdefault(name, {})
            self._json({"url": f"{self.server.address}/{name}", "name": name, "id": COMMIT})
        elif "/preupload/" in self.path:
            files = json.loads(body)["files"]
            self._json(
                {
                    "files": [
                        {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                        for file in files
                    ]
                }
            )
        elif "/commit/" in self.path:
            name = self.path.removeprefix("/api/models/").partition("/commit/")[0]
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    self.server.files[name][line["value"]["path"]] = content
            url = f"{self.server.address}/{name}/commit/{COMMIT}"
            self._json({"success": True, "commitOid": COMMIT, "commitUrl": url, "hookOutput": ""})
        else:
            self._json({"errors": [], "warnings": []})  # of the card

    def _json(self, content: object) -> None:
        self._answer(json.dumps(content).encode(), 200, {"Content-Type": "application/json"})

    def _answer(self, content: bytes, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@contextlib.contextmanager
def running() -> Iterator[FakeHub]:
    with FakeHub() as hub:
        thread = threading.Thread(target=hub.serve_forever, daemon=True)
        thread.start()
        yield hub
        hub.shutdown()
        thread.join()
