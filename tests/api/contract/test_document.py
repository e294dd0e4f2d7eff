"""Every route, asked for what its document allows and for what it does not: honoured, refused, or listed."""

import json
import random
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

from legato.api.app import create_app
from legato.api.bodies.foreign_fields import ADJUSTED, NOTES, UNSUPPORTED, is_harmless
from legato.core.config import ServerConfig
from tests.api.bodies.test_contract import example_of
from tests.api.fake_service import FakeService

LESSON = ("/basic_generate", "/generate", "/generate_stream", "/generate_vllm")
# a fault without a field of its own
WHOLE_BODY = {"invalid_json", "invalid_body", "limit_exceeded", "request_not_found", "not_found"}
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, -(2**70), 0.5, -0.0, 1e308,
    "", "x", "\u0000", "ключ", "1" * 300,
    [], [None], [[]], ["a"], [0, -1], [{}], {}, {"x": None}, {"type": "x"}, {"1": {"2": {"3": []}}},
)  # fmt: skip

APP = create_app({"fake": FakeService()}, ServerConfig())
DOCUMENT = APP.openapi()
SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", APP)
OPERATIONS = {operation.ok().label: operation.ok() for operation in SCHEMA.get_all_operations()}
PATHS = [path for path, methods in DOCUMENT["paths"].items() if "requestBody" in methods.get("post", {})]
GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", *LESSON)


@pytest.fixture(scope="module")
def http() -> TestClient:
    return TestClient(APP)


def fields_of(path: str) -> dict[str, Any]:
    """The schemas of a body's fields."""
    reference = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    fields: dict[str, Any] = DOCUMENT["components"]["schemas"][reference["$ref"].rpartition("/")[2]][
        "properties"
    ]
    return fields


def check(path: str, status: int, headers: dict[str, str], text: str, body: Any) -> None:
    """The rule of the whole API, for one answer."""
    if status == 503:
        assert path == "/generate_vllm"  # no engine of vLLM is there
    elif status == 422:
        assert path in LESSON
        assert all(fault["loc"] for fault in json.loads(text)["detail"])
    elif status >= 400:
        error = json.loads(text)["error"]
        assert status < 500, text
        if path.startswith("/v1/messages"):  # Anthropic's shape: the message names the field
            assert set(error) == {"type", "message"}
            return
        assert set(error) == {"message", "type", "param", "code"}
        assert error["param"] is not None or error["code"] in WHOLE_BODY, text
    elif isinstance(body, dict):
        check_unread(path, headers.get("x-legato-ignored", "").split(","), body)


def check_unread(path: str, listed: list[str], body: dict[str, Any]) -> None:
    known = fields_of(path).keys() | NOTES | ADJUSTED.keys()
    for name, value in body.items():
        is_refusable = name in UNSUPPORTED and path in GENERATING
        if name in known or value is None or (is_refusable and is_harmless(value, UNSUPPORTED[name])):
            continue
        assert quote(name[:64], safe="") in listed or "..." in listed, (name, listed)


def mutations(path: str, num_values: int, seed: int) -> Iterator[dict[str, Any]]:
    """The route's example with one field after the other at some odd values; unknown fields too."""
    draw = random.Random(seed)
    example = example_of(DOCUMENT, path)
    for name in [*fields_of(path), *UNSUPPORTED, *ADJUSTED, "zeta", ""]:
        for value in draw.sample(ODD_VALUES, num_values):
            yield {**example, "stream": draw.choice([True, False]), name: value}


def mutate(http: TestClient, path: str, num_values: int, seed: int) -> None:
    for body in mutations(path, num_values, seed):
        response = http.post(path, json=body)
        check(path, response.status_code, dict(response.headers), response.text, body)


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/generate"]
)
def test_odd_values_are_served_refused_by_name_or_listed(http: TestClient, path: str) -> None:
    mutate(http, path, num_values=2, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_all_odd_values_are_served_refused_by_name_or_listed(http: TestClient, path: str) -> None:
    mutate(http, path, num_values=len(ODD_VALUES), seed=2)


def explore(label: str, mode: GenerationMode, num_examples: int) -> None:
    """Let schemathesis draw requests to one operation from its schema, or just beside it."""

    @settings(
        max_examples=num_examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=OPERATIONS[label].as_strategy(generation_mode=mode))
    def run(case: schemathesis.Case) -> None:
        response = case.call()
        headers = {name: values[0] for name, values in response.headers.items()}
        check(case.operation.path, response.status_code, headers, response.text, case.body)

    run()


@pytest.mark.parametrize("label", OPERATIONS)
def test_every_request_that_the_document_allows_is_served_or_refused_by_name(label: str) -> None:
    explore(label, GenerationMode.POSITIVE, num_examples=4)


@pytest.mark.parametrize("label", [label for label in OPERATIONS if label.startswith("POST /v1/c")])
def test_requests_beside_the_document_are_refused_by_name(label: str) -> None:
    explore(label, GenerationMode.NEGATIVE, num_examples=5)


@pytest.mark.slow
@pytest.mark.parametrize("label", [f"POST {path}" for path in PATHS])
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_hundreds_of_requests_in_and_beside_the_document(label: str, mode: GenerationMode) -> None:
    explore(label, mode, num_examples=300)


def bounds() -> list[tuple[str, str, Any, Any]]:
    """(field, which bound, the last value that is served, the next one)."""
    found = []
    for name, schema in fields_of("/v1/completions").items():
        number = int if "integer" in str(schema) else float  # the document writes 16.0 for 16
        for key, step in {"minimum": -1, "maximum": 1}.items():
            if key in schema:
                found.append((name, key, number(schema[key]), number(schema[key] + step)))
    return found


@pytest.mark.parametrize(("name", "bound", "last", "beyond"), bounds())
def test_bounds_in_the_document_are_those_of_the_server(
    http: TestClient, name: str, bound: str, last: Any, beyond: Any
) -> None:
    needed = {"best_of": {"n": last}}.get(name, {})
    if name in ("max_tokens", "max_completion_tokens"):
        needed = {"echo": True}  # only then an answer of no tokens is worth asking for
    served = http.post("/v1/completions", json={"prompt": "a", name: last, **needed})
    refused = http.post("/v1/completions", json={"prompt": "a", name: beyond, **needed})
    assert served.status_code == 200, served.text
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == name


def test_every_field_of_a_body_says_what_it_is() -> None:
    for path in PATHS:
        silent = [name for name, schema in fields_of(path).items() if "description" not in schema]
        assert silent == [], path


def test_every_route_has_a_summary_and_tells_its_errors() -> None:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"], path
            assert method != "post" or operation["responses"].keys() & {"4XX", "422"}, path
