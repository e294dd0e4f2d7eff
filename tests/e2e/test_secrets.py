"""A server's log, whatever happens to it: no key, no prompt, no line that a client wrote."""

import http.client
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Server, end_server, start_server, wait_until
from tests.e2e.test_server import engine_pid

KEYS = ("sk-first-key-8f21", "sk-second-key-77ab")
WRONG_KEY = "sk-wrong-key-90cd"
PROMPT = "Prompt-of-a-client-5e3a"
SECRETS = (*KEYS, WRONG_KEY, PROMPT, PROMPT.encode().hex(), ", ".join(map(str, PROMPT.encode()[:8])))
USER = {"role": "user", "content": PROMPT}


@pytest.fixture(params=["text", "json"])
def server(tmp_path: Path, tiny_model: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    server = start_server(
        tmp_path,
        tiny_model,
        api_key=",".join(KEYS),
        log_level="debug",
        log_format=request.param,
        enable_log_requests="true",
    )
    yield server
    end_server(server)


def call(server: Server, path: str, body: Any, key: str = KEYS[0], **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"content-type": "application/json", "authorization": f"Bearer {key}", **headers}
    connection.request("POST", path, data, sent)
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status


def test_no_key_no_prompt_and_no_forged_line_is_in_the_log(server: Server) -> None:
    plain: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 4}
    chat: dict[str, Any] = {"messages": [USER], "max_tokens": 4}
    assert call(server, "/v1/completions", plain) == 200
    assert call(server, "/v1/completions", plain | {"stream": True}, key=KEYS[1]) == 200
    assert call(server, "/v1/chat/completions", chat) == 200
    assert call(server, "/v1/responses", {"input": PROMPT, "max_output_tokens": 4}) == 200
    assert call(server, "/v1/messages", chat | {"model": "x"}) in (200, 404)
    assert call(server, "/generate", {"prompts": [PROMPT]}) == 200
    assert call(server, "/tokenize", {"prompt": PROMPT}) == 200
    assert call(server, "/v1/completions", plain, key=WRONG_KEY) == 401
    assert call(server, "/v1/completions", plain | {"prompt": PROMPT * 100}) == 400
    assert call(server, "/v1/completions", plain | {PROMPT: PROMPT}) == 200
    assert call(server, "/v1/completions", plain | {"temperature": PROMPT}) == 400
    assert call(server, "/v1/completions", plain | {"model": PROMPT}) == 404
    assert call(server, "/v1/completions", plain | {"guided_regex": PROMPT + "("}) == 400
    assert call(server, "/v1/completions", b'{"prompt": "' + PROMPT.encode()) == 400
    assert call(server, "/v1/requests/x/abort", {PROMPT: PROMPT}) == 404
    assert call(server, "/v1/completions", plain, **{"x-request-id": "\x1b[31mred"}) == 200
    assert call(server, "/a%0A2026-01-01%20forged%1B[31m", {}) == 404
    die_and_leave(server)
    end_server(server)
    log = server.log.read_text()
    assert "has ended" in log
    assert "401" in log  # of the requests, which are logged
    assert [secret for secret in SECRETS if secret in log] == []
    assert "\x1b" not in log
    assert not [line for line in log.splitlines() if line.startswith("2026-01-01 forged")]


def die_and_leave(server: Server) -> None:
    """The engine dies under a stream; then the client leaves it."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    body = {"prompt": PROMPT, "max_tokens": 450, "ignore_eos": True, "stream": True}
    headers = {"content-type": "application/json", "authorization": f"Bearer {KEYS[0]}"}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    response = connection.getresponse()
    response.readline()
    os.kill(engine_pid(server), signal.SIGKILL)
    wait_until(lambda: "has ended" in server.log.read_text())
    while response.readline():
        pass
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    connection.getresponse().readline()
    connection.close()
