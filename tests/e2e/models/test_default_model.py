"""The model that everyone starts with: what the README promises, and exactness in every mode."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from legato import LLM, SamplingParams
from legato.ipc.messages import AddRequest
from legato.modelfiles.catalog import resolve
from legato.modelfiles.model_config import read_model_config
from legato.models.registry import build_model
from legato.tokenization.tokenizer import load_tokenizer
from legato.weights.loader import load_weights
from tests.e2e.conftest import Server, end_server, start_server
from tests.engine.runs import Model, Run, build_engine, run, run_alone, same_bits
from tests.engine.test_exactness import MODES

pytestmark = pytest.mark.model

NAME = "smollm2-135m-instruct"
TEXTS = [
    "The capital of France is",
    "The capital of France is Paris. The capital of Italy is",
    "def fibonacci(n):\n    ",
    "안녕하세요, 저는",
    "1, 2, 3, 4,",
    "Once upon a time",
    "The capital of France is Paris. The capital of Italy is Rome, and",
    "🧑‍🚀",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = start_server(tmp_path_factory.mktemp("server"), Path(NAME))
    yield server
    end_server(server)


def test_readmes_first_question_is_answered(server: Server) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    status, answer = server.post("/v1/chat/completions", {"model": NAME, "messages": messages})
    assert status == 200
    assert "Paris" in answer["choices"][0]["message"]["content"]
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["prompt_tokens"] == 37


def test_no_marker_is_shown_to_the_user(server: Server) -> None:
    body = {"model": NAME, "messages": [{"role": "user", "content": "Say hi."}], "max_tokens": 24}
    content = server.post("/v1/chat/completions", body)[1]["choices"][0]["message"]["content"]
    assert "<|" not in content


def test_memory_is_weights_and_pool_and_250_mb_for_both_processes(tmp_path: Path) -> None:
    server = start_server(tmp_path, Path(NAME), num_pages=64)
    try:
        body = {"model": NAME, "prompt": [text * 8 for text in TEXTS], "max_tokens": 16, "ignore_eos": True}
        assert server.post("/v1/completions", body)[0] == 200
        [engine_pid] = re.findall(r"engine pid (\d+)", server.log.read_text())
        used_bytes = sum(resident_bytes(pid) for pid in (server.process.pid, int(engine_pid)))
    finally:
        end_server(server)
    weight_bytes = 2 * 134_515_008  # bfloat16
    pool_bytes = 64 * 16 * 30 * 2 * 3 * 64 * 2  # pages, tokens, layers, K and V, heads, head_dim, bytes
    assert weight_bytes < used_bytes <= weight_bytes + pool_bytes + 250_000_000


def resident_bytes(pid: int) -> int:
    [kib] = re.findall(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(kib) * 1024  # at most so far, the start included


def test_python_api_completes_texts_and_ids() -> None:
    with LLM(NAME) as llm:
        text, ids = llm.generate(
            ["Hello, I am", [19556, 28, 339, 744]], SamplingParams(max_tokens=4, temperature=0)
        )
    assert text == ids
    assert len(text.token_ids) == 4
    assert text.finish_reason == "length"


@pytest.fixture(scope="module")
def model() -> Model:
    path = resolve(NAME).path
    config = read_model_config(path)
    model = build_model(config)
    return config, load_weights(path, model.program, model.tensors)


@pytest.fixture(scope="module")
def requests() -> list[AddRequest]:
    tokenizer = load_tokenizer(resolve(NAME).path)
    assert tokenizer is not None
    return [
        AddRequest(
            request_id=f"r{number}",
            token_ids=tokenizer.encode(text),
            params=SamplingParams(max_tokens=10, temperature=0.8 if number % 2 else 0.0, ignore_eos=True),
            seed=number,
        )
        for number, text in enumerate(TEXTS)
    ]


@pytest.fixture(scope="module", params=["cpu", "reference"])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def alone(model: Model, requests: list[AddRequest], backend: str) -> Run:
    return run_alone(model, requests, backend=backend)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_eight_requests_have_the_bits_that_they_have_alone(
    model: Model, requests: list[AddRequest], alone: Run, backend: str, mode: str
) -> None:
    settings = MODES[mode] | (
        {"num_pages": 3 if "pages of 1" not in mode else 40} if "preempted" in mode else {}
    )
    found = run(build_engine(model, backend=backend, **settings), requests)
    same_bits(found, alone)
    assert (found.num_preemptions > 0) == ("preempted" in mode)
