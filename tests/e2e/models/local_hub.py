"""A model hub on this machine: one model, laid out and answered for as the Hugging Face hub does."""

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

COMMIT = "0123456789" * 4
LARGE_SUFFIXES = (".bin", ".safetensors")  # kept apart by the hub, and named by their SHA-256


@dataclass
class LocalHub:
    """What it has and how it behaves.

    folder     the files of the model
    cut_after  bytes of a large file after which a connection ends, once; None = never
    damages    sends large files of the right length and with other bytes
    is_open    `held`, else large files, are sent once it is set
    asked      files that were sent, each with the Range that was asked for
    """

    name: str
    folder: Path
    cut_after: int | None = None
    damages: bool = False
    held: str = ""
    is_open: threading.Event = field(default_factory=threading.Event)
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""


class Handler(http.server.BaseHTTPRequestHandler):
    hub: LocalHub

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, *, with_body: bool) -> None:
        path = urlsplit(self.path).path
        if path in (f"/api/models/{self.hub.name}", f"/api/models/{self.hub.name}/revision/main"):
            names = [{"rfilename": each.name} for each in sorted(self.hub.folder.iterdir())]
            self.send_json({"id": self.hub.name, "sha": COMMIT, "siblings": names, "tags": []})
        elif path == f"/api/models/{self.hub.name}/tree/{COMMIT}":
            self.send_json([tree_entry(file) for file in sorted(self.hub.folder.iterdir())])
        elif path.startswith(f"/{self.hub.name}/resolve/") and (self.hub.folder / Path(path).name).is_file():
            self.send_file(self.hub.folder / Path(path).name, with_body=with_body)
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound" if self.hub.name in path else "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def send_json(self, answer: object) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_file(self, file: Path, *, with_body: bool) -> None:
        content, is_large = file.read_bytes(), file.suffix in LARGE_SUFFIXES
        wanted = self.headers.get("Range")
        start = int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted else 0
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{etag(content, is_large=is_large)}"')
        self.end_headers()
        if not with_body:
            return
        self.hub.asked.append((file.name, wanted))
        if file.name == self.hub.held or (is_large and not self.hub.held):
            self.hub.is_open.wait()
        body = bytes(len(content) - start) if is_large and self.hub.damages else content[start:]
        if is_large and self.hub.cut_after is not None:
            body, self.hub.cut_after = body[: self.hub.cut_after], None
        with suppress(BrokenPipeError, ConnectionResetError):  # of a client that was killed
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def serve_hub(hub: LocalHub) -> Iterator[LocalHub]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    hub.is_open.set()
    try:
        yield hub
    finally:
        hub.is_open.set()
        server.shutdown()
        thread.join()
        server.server_close()


def tree_entry(file: Path) -> dict[str, object]:
    content = file.read_bytes()
    size, git_hash = len(content), etag(content, is_large=False)
    entry = {"type": "file", "path": file.name, "size": size, "oid": git_hash}
    if file.suffix not in LARGE_SUFFIXES:
        return entry
    return entry | {"lfs": {"oid": etag(content, is_large=True), "size": size, "pointerSize": 130}}


def etag(content: bytes, *, is_large: bool) -> str:
    if is_large:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
