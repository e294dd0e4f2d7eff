"""The whole path through real sockets: the official SDK, streams, leaving clients, a dying engine."""

import asyncio
import http.client
import json
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from tests.e2e.conftest import Server, end_server, start_server, wait_until

GREEDY = {"model": "tiny", "temperature": 0}


@pytest.fixture(scope="module")
def sdk(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def test_sdk_completes_plain_and_streamed_alike(sdk: openai.OpenAI) -> None:
    plain = sdk.completions.create(prompt="Hello", max_tokens=40, **GREEDY)
    chunks = list(
        sdk.completions.create(
            prompt="Hello", max_tokens=40, stream=True, stream_options={"include_usage": True}, **GREEDY
        )
    )
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == plain.choices[0].text
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == plain.choices[0].finish_reason
    assert chunks[-1].choices == []
    assert plain.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == plain.usage.completion_tokens == 40


def test_sdk_chats_plain_and_streamed_alike(sdk: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "안녕 🧑‍🚀"}]
    plain = sdk.chat.completions.create(messages=messages, max_completion_tokens=30, **GREEDY)
    stream = sdk.chat.completions.create(messages=messages, max_completion_tokens=30, stream=True, **GREEDY)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == plain.choices[0].message.content
    assert plain.usage is not None
    assert plain.usage.completion_tokens == 30


def test_sdk_sees_refusals_as_its_own_errors(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="served: tiny, alias"):
        sdk.completions.create(model="other", prompt="a")
    with pytest.raises(openai.BadRequestError, match="context of 512") as refusal:
        sdk.completions.create(prompt="a" * 600, max_tokens=5, **GREEDY)
    assert refusal.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="vocabulary"):
        sdk.completions.create(prompt=[[-1]], **GREEDY)


def test_models_are_listed(sdk: openai.OpenAI) -> None:
    assert [model.id for model in sdk.models.list()] == ["tiny", "alias"]


def test_many_at_once_get_the_answers_that_they_get_alone(server: Server) -> None:
    def answer(number: int) -> str:
        body = {"prompt": f"prompt {number}", "max_tokens": 20, **GREEDY}
        return server.post("/v1/completions", body)[1]["choices"][0]["text"]

    alone = [answer(number) for number in range(24)]
    with ThreadPoolExecutor(24) as pool:
        assert list(pool.map(answer, range(24))) == alone


def test_lesson_routes_answer_in_order(server: Server) -> None:
    prompts = ["one", "a second, longer one", "3"]
    texts = server.post("/generate", {"prompts": prompts})[1]["generated_texts"]
    single = [server.post("/basic_generate", {"prompt": prompt})[1]["generated_text"] for prompt in prompts]
    assert texts == single
    assert all(text.startswith(prompt) for text, prompt in zip(texts, prompts, strict=True))
    assert server.post("/generate", {"prompts": []}) == (200, {"generated_texts": []})
    status, error = server.post("/generate_vllm", {"prompts": ["a"]})
    assert status == 503
    assert "--vllm-url" in json.dumps(error)


def test_a_client_that_leaves_is_noticed_streaming_or_not(server: Server) -> None:
    for stream in (True, False):
        body = json.dumps({"prompt": "x", "max_tokens": 500, "ignore_eos": True, "stream": stream, **GREEDY})
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}"
            connection.sendall(f"{head}\r\ncontent-type: application/json\r\n\r\n{body}".encode())
            wait_until(lambda: server.get("/stats")[1]["running"] == 1)
        wait_until(lambda: server.get("/stats")[1]["running"] == 0)
        stats = server.get("/stats")[1]
        assert stats["pages_held"] == 0
        assert stats["requests"] == []


def test_a_request_is_ended_by_its_id(server: Server, sdk: openai.OpenAI) -> None:
    stream = sdk.chat.completions.create(
        messages=[{"role": "user", "content": "x"}],
        max_tokens=480,
        stream=True,
        extra_body={"ignore_eos": True},
        **GREEDY,
    )
    first = next(iter(stream))
    assert server.post(f"/v1/requests/{first.id}/abort", {}) == (200, {"id": first.id, "aborted": True})
    reasons = [chunk.choices[0].finish_reason for chunk in stream]
    assert reasons[-1] == "abort"
    assert set(reasons[:-1]) <= {None}
    wait_until(lambda: server.get("/stats")[1]["running"] == 0)
    assert server.get("/stats")[1]["pages_held"] == 0
    assert server.post(f"/v1/requests/{first.id}/abort", {})[0] == 404


def test_tokenizer_is_described(server: Server) -> None:
    info = server.get("/tokenizer_info")[1]
    [eos_id] = server.post("/tokenize", {"prompt": "<|end|>", "add_special_tokens": False})[1]["tokens"]
    assert server.post("/detokenize", {"tokens": [eos_id]})[1] == {"prompt": "<|end|>"}
    assert "message['role']" in info["chat_template"]
    assert info["model_max_length"] == 512


def test_statistics_show_a_running_request(server: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    body = json.dumps({"prompt": "abc", "max_tokens": 500, "ignore_eos": True, "stream": True, **GREEDY})
    connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
    response = connection.getresponse()
    response.readline()
    (ledger,) = server.get("/stats")[1]["requests"]
    assert ledger["state"] == "decoding"
    assert ledger["row"] == 0
    assert ledger["prompt_len"] == 3
    assert ledger["pages"]
    assert ledger["cached_len"] + ledger["extend_len"] == ledger["device_len"]
    connection.close()
    wait_until(lambda: server.get("/stats")[1]["running"] == 0)


def test_prefix_hit_is_told_in_the_usage(server: Server) -> None:
    body = {"prompt": "a prefix that is longer than two pages of tokens", "max_tokens": 2, **GREEDY}
    first, second = (server.post("/v1/completions", body)[1] for _ in range(2))
    assert first["choices"][0]["text"] == second["choices"][0]["text"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 32


def test_metrics_count_what_was_done(server: Server) -> None:
    def values() -> dict[str, float]:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}

    before = values()
    for _ in range(3):
        server.post("/v1/completions", {"prompt": "count me", "max_tokens": 7, "ignore_eos": True, **GREEDY})
    after = values()
    for name, expected in {
        "vllm:generation_tokens_total": 21,
        "legato_generation_tokens_total": 21,
        "legato_prompt_tokens_total": 24,
        "legato_time_to_first_token_seconds_count": 3,
        "legato_inter_token_latency_seconds_count": 18,
    }.items():
        key = f'{name}{{model_name="tiny"}}'
        assert after[key] - before[key] == expected, name
    assert after['vllm:num_requests_running{model_name="tiny"}'] == 0


def test_two_streams_at_once_on_an_app_without_a_lifespan(tiny_model: Path) -> None:
    """The lesson's tests: a TestClient without `with`, which brings a new event loop for every request."""
    from fastapi.testclient import TestClient

    from legato.api.asgi import app_from_environment

    app = app_from_environment({"LEGATO_MODEL": str(tiny_model)})
    client = TestClient(app)
    body = {"prompt": "abc", "max_tokens": 12, "temperature": 0}
    plain = [client.post("/basic_generate", json=body).json()["generated_text"] for _ in range(3)]
    assert len(set(plain)) == 1

    def stream(_: int) -> str:
        lines = client.post("/generate_stream", json=body).text.splitlines()
        return "".join(json.loads(line[5:])["token"] for line in lines if line.startswith("data:"))

    with ThreadPoolExecutor(2) as pool:
        texts = list(pool.map(stream, range(2)))
    assert texts == [plain[0].removeprefix("abc")] * 2
    asyncio.run(app.state.models.unique()[0].close())


def test_stream_outlives_its_engine(tmp_path: Path, tiny_model: Path) -> None:
    server = start_server(tmp_path, tiny_model)
    body = {"prompt": "abc", "max_tokens": 400, "ignore_eos": True, "temperature": 1, "seed": 3}
    undisturbed = server.post("/v1/completions", body)[1]["choices"][0]["text"]
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    headers = {"content-type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(body | {"stream": True}), headers)
    response = connection.getresponse()
    first = response.readline()
    os.kill(engine_pid(server), signal.SIGKILL)
    wait_until(lambda: server.get("/ready")[0] == 503)
    assert server.get("/health")[0] == 200
    events = [line[6:] for line in [first, *response] if line.startswith(b"data: {")]
    connection.close()
    choices = [json.loads(event)["choices"][0] for event in events]
    assert "".join(choice["text"] for choice in choices) == undisturbed
    assert choices[-1]["finish_reason"] == "length"
    assert server.get("/ready")[0] == 200
    end_server(server)


def engine_pid(server: Server) -> int:
    words = server.log.read_text().split()
    return int(words[words.index("engine", words.index("parent")) + 2].rstrip(","))


def listening(pid: int) -> list[str]:
    """Where a process listens: its sockets that are in the system's tables of TCP, UDP and unix listeners."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        target = os.readlink(link)
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = []
    for table, place, state in (("tcp", 9, "0A"), ("tcp6", 9, "0A"), ("udp", 9, ""), ("udp6", 9, "")):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[place] in inodes and fields[3].endswith(state):
                found.append(f"{table} {fields[1]}")
    for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        accepts = int(fields[3], 16) & 0x10000
        if fields[6] in inodes and (accepts or len(fields) > 7):
            found.append(f"unix {fields[7:]}")
    return found


def test_only_the_port_of_http_listens(server: Server) -> None:
    assert listening(server.process.pid) == [f"tcp 0100007F:{server.port:04X}"]
    assert listening(engine_pid(server)) == []


def test_log_tells_the_start_in_order(server: Server) -> None:
    log = server.log.read_text()
    stages = ["parent pid", "imports", "config", "weights", "pool", "warm", "waiting for work"]
    places = [log.index(f"start: {stage}") for stage in stages]
    assert places == sorted(places)
    assert "start: tokenizer" in log


def test_static_server_gives_the_same_answers_in_rounds(
    tmp_path: Path, tiny_model: Path, server: Server
) -> None:
    static = start_server(tmp_path, tiny_model, batching="static")
    prompts = [f"prompt {number}" for number in range(6)]
    assert static.post("/generate", {"prompts": prompts}) == server.post("/generate", {"prompts": prompts})
    assert static.get("/stats")[1]["rounds"] == 2
    log = static.log.read_text()
    assert "round 1: 4 requests, longest 8, shape [4, 8], padding 0 (not computed)" in log
    assert "round 2: 2 requests" in log
    end_server(static)
