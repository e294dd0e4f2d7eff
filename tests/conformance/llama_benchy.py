"""llama-benchy: prompts cut from a book, streamed chat answers, its own count of tokens by their ids."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import legato.cli.models
from tests.conformance.environment import ConformanceError, Environment
from tests.conformance.live_server import LiveServer

REQUIREMENTS = (("llama-benchy==0.4.0",),)
FLAGS = ()
ANSWER_TOKENS, NUM_RUNS, CONCURRENCY = 16, 2, (1, 3)
NUM_REQUESTS = NUM_RUNS * sum(CONCURRENCY)


def check(environment: Environment, server: LiveServer, model: Path) -> str:
    report, events = environment.output("report.json"), environment.output("events.jsonl")
    with book_url() as url, server.counting() as counts:
        environment.run(
            "llama-benchy", "--base-url", f"{server.url}/v1", "--model", server.name, "--tokenizer", model,
            "--pp", 64, "--tg", ANSWER_TOKENS, "--runs", NUM_RUNS, "--concurrency", *CONCURRENCY,
            "--exact-tg", "--no-cache", "--book-url", url, "--emit-progress", events, "--exit-on-first-fail",
            "--save-result", report, "--format", "json",
        )  # fmt: skip
    if counts.num_refused or counts.num_broken:
        raise ConformanceError(f"the server refused or broke requests: {counts}")
    ended = [json.loads(line) for line in events.read_text().splitlines()]
    ended = [event for event in ended if event["type"] == "request_end"]
    if [event["error"] for event in ended] != [""] * NUM_REQUESTS:
        raise ConformanceError(f"not {NUM_REQUESTS} requests without an error: {ended}")
    # it does not count a last token that has no text, such as an end marker
    if not {event["total_tokens"] for event in ended} <= {ANSWER_TOKENS - 1, ANSWER_TOKENS}:
        raise ConformanceError(f"not {ANSWER_TOKENS} tokens in each answer: {ended}")
    if len(json.loads(report.read_text())["benchmarks"]) != len(CONCURRENCY):
        raise ConformanceError("its report lacks a test")
    return f"{NUM_REQUESTS} chat streams of {ANSWER_TOKENS} tokens, and an answer that names Paris"


@contextmanager
def book_url() -> Iterator[str]:
    """A text on this machine, in place of the book that it would fetch."""
    folder = Path(legato.cli.models.__file__).parent
    handler = partial(_QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http_server:
        thread = threading.Thread(target=http_server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{http_server.server_port}/check_text.txt"
        finally:
            http_server.shutdown()
            thread.join()


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""
