"""A package index on this machine: simple pages, wheels, ranges, and faults on demand."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass
class LocalIndex:
    """What it has and how it behaves.

    files       name -> content
    cut_after   bytes of a file after which a connection ends; None = never
    max_cuts    connections that are cut so
    stall       end no connection that is cut, until it is set: whoever reads waits
    asked       paths, each with the Range that was asked for
    """

    files: dict[str, bytes] = field(default_factory=dict)
    cut_after: int | None = None
    max_cuts: int = 1
    knows_ranges: bool = True
    status: int = 200
    stall: threading.Event | None = None
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""

    def ranges(self, name: str) -> list[str | None]:
        """The ranges of a file that were asked for, in order."""
        return [each for path, each in self.asked if path == f"/files/{name}"]


@contextmanager
def serve_index(index: LocalIndex) -> Iterator[LocalIndex]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, wanted = urlsplit(self.path).path, self.headers.get("Range")
            index.asked.append((path, wanted))
            if path.startswith("/simple/"):
                self.send_page(path.split("/")[2])
            elif index.status != 200:
                self.send_error(index.status)
            else:
                self.send_file(index.files[path.removeprefix("/files/")], wanted)

        def send_page(self, project: str) -> None:
            names = [name for name in index.files if name.split("-")[0].replace("_", "-") == project]
            page = "".join(f'<a href="/files/{name}">{name}</a>' for name in names).encode()
            self.send_response(200 if names else 404)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def send_file(self, content: bytes, wanted: str | None) -> None:
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and index.knows_ranges else 0
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            if index.cut_after is None or index.max_cuts == 0:
                self.wfile.write(content[start:])
                return
            index.max_cuts -= 1
            self.wfile.write(content[start : start + index.cut_after])
            if index.stall is not None:
                index.stall.wait(60)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    index.url = f"http://127.0.0.1:{server.server_port}/simple"
    try:
        yield index
    finally:
        if index.stall is not None:
            index.stall.set()
        server.shutdown()
        thread.join()
        server.server_close()
