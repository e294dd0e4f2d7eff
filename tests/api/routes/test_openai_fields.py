"""Names of models, and fields that are refused."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.api.openai_calls import USER, refused


def test_unknown_model_is_404_that_names_the_served_ones(client: TestClient) -> None:
    for name in ("gpt-4", "../../etc/passwd", "a\u0000"):
        response = client.post("/v1/completions", json={"prompt": "a", "model": name})
        error = response.json()["error"]
        assert response.status_code == 404
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "fake, fake-alias" in error["message"]


def test_models_are_listed_under_each_name(client: TestClient) -> None:
    listing = client.get("/v1/models").json()

    assert listing["object"] == "list"
    assert [card["id"] for card in listing["data"]] == ["fake", "fake-alias"]
    assert client.get("/v1/models/fake-alias").json() == listing["data"][1]
    assert listing["data"][0] == {
        "id": "fake",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "legato",
        "max_model_len": 1024,
    }
    for path in ("/v1/models/x", "/v1/models/..%2f..%2fetc", "/v1/models/org/name"):
        assert client.get(path).json()["error"]["code"] == "model_not_found"


def test_answer_carries_the_name_it_was_asked_by(client: TestClient) -> None:
    assert (
        client.post("/v1/completions", json={"prompt": "a", "model": "fake-alias"}).json()["model"]
        == "fake-alias"
    )
    assert client.post("/v1/completions", json={"prompt": "a"}).json()["model"] == "fake"


@pytest.mark.parametrize(
    ("field", "harmless", "asking"),
    [
        ("best_of", [None, 1], [2, 10**6]),
        ("chat_template", [None], ["{{ messages }}"]),
        ("bad_words", [[]], [["x"]]),
        ("allowed_token_ids", [None], [[1]]),
        ("logprob_token_ids", [None], [[1]]),
        ("prompt_embeds", [None], ["x"]),
        ("truncation_side", ["left"], ["right"]),
        ("suffix", [None, ""], ["x"]),
        ("functions", [[]], [[{}]]),
        ("modalities", [["text"]], [["text", "audio"]]),
        ("audio", [None], [{}]),
    ],
)
def test_what_is_not_done_yet_is_refused_not_ignored(
    client: TestClient, field: str, harmless: list[Any], asking: list[Any]
) -> None:
    for path, prompt in (
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [USER]}),
    ):
        for value in harmless:
            response = client.post(path, json={**prompt, field: value})
            assert response.status_code == 200
            assert "x-legato-ignored" not in response.headers
        for value in asking:
            error = refused(client, path, {**prompt, field: value})
            assert (error["param"], error["code"]) == (field, "unsupported")
