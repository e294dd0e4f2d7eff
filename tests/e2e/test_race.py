"""The teaching server's race: streams run, plain calls come in a loop, and every core is busy elsewhere."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.conftest import Server, end_server, start_server

PROMPTS = [f"prompt number {number}" for number in range(12)]
NUM_STREAMS = 3


@contextmanager
def busy_cores() -> Iterator[None]:
    """Other processes take all cores, and more."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def plain(server: Server, prompt: str) -> str:
    """The answer, or the error."""
    answer = server.post("/basic_generate", {"prompt": prompt, "max_tokens": 8})[1]
    return str(answer.get("generated_text", answer))


def streamed(server: Server, prompt: str) -> str:
    body = json.dumps({"prompt": prompt, "max_tokens": 8, "temperature": 0}).encode()
    request = urllib.request.Request(
        server.url + "/generate_stream", body, {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        events = [json.loads(line[6:]) for line in response if line.startswith(b"data: ")]
    return prompt + "".join(str(event.get("token", event)) for event in events)


def num_mixed_up(server: Server, num_calls: int) -> int:
    """How many of so many plain calls, and of the streams beside them, get what is not their answer."""
    alone = {prompt: plain(server, prompt) for prompt in PROMPTS}
    assert len(set(alone.values())) == len(PROMPTS)
    is_over = False

    def stream_on(number: int) -> int:
        count = 0
        while not is_over:
            prompt = PROMPTS[number]
            count += streamed(server, prompt) != alone[prompt]
        return count

    def call(number: int) -> bool:
        prompt = PROMPTS[number % len(PROMPTS)]
        return plain(server, prompt) != alone[prompt]

    with busy_cores(), ThreadPoolExecutor(NUM_STREAMS) as streams, ThreadPoolExecutor(4) as calls:
        streaming = [streams.submit(stream_on, number) for number in range(NUM_STREAMS)]
        try:
            wrong = sum(calls.map(call, range(num_calls)))
        finally:
            is_over = True
        return wrong + sum(each.result() for each in streaming)


@pytest.mark.parametrize("num_calls", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_nobody_gets_anothers_answer(server: Server, num_calls: int) -> None:
    assert num_mixed_up(server, num_calls) == 0


def test_a_client_that_matches_by_order_is_seen(tmp_path: Path, tiny_model: Path) -> None:
    broken = start_server(tmp_path, tiny_model, app="tests.e2e.broken_app:app")
    try:
        assert num_mixed_up(broken, 30) > 0
    finally:
        end_server(broken)
