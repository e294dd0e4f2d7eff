"""Bodies that are not what RFC 8259 calls a JSON object."""

import json

import pytest
from fastapi.testclient import TestClient

from legato.api.transport.json_body import parse_strictly


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_body"),
        (b"[]", "invalid_body"),
        (b"null", "invalid_body"),
        (b"123", "invalid_body"),
        (b'"text"', "invalid_body"),
        (b"{", "invalid_json"),
        (b"prompt=a", "invalid_json"),
        (b'{"prompt": "a", "temperature": NaN}', "invalid_json"),
        (b'{"prompt": "a", "temperature": -Infinity}', "invalid_json"),
        (b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}", "invalid_json"),
        (b'{"prompt": "\\ud800"}', "invalid_json"),
        (b'{"prompt": "\xed\xa0\x80"}', "invalid_json"),
        (b'{"prompt": "\xff"}', "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize"])
def test_faulty_bodies_are_400_in_openais_shape(
    client: TestClient, path: str, body: bytes, code: str
) -> None:
    response = client.post(path, content=body, headers={"content-type": "application/json"})

    error = response.json()["error"]
    assert response.status_code == 400
    assert error["code"] == code
    assert response.headers["content-type"] == "application/json"


def test_body_without_a_content_type_is_read_as_json(client: TestClient) -> None:
    response = client.post("/v1/completions", content=b'{"prompt": "a"}')
    assert "content-type" not in response.request.headers
    assert response.status_code == 200


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded"])
def test_other_content_types_are_400_that_names_the_right_one(client: TestClient, content_type: str) -> None:
    headers = {"content-type": content_type}
    response = client.post("/v1/completions", content=b'{"prompt": "a"}', headers=headers)

    assert response.status_code == 400
    assert "application/json" in response.json()["error"]["message"]


def test_escaped_characters_beyond_the_basic_plane_are_read() -> None:
    assert parse_strictly(b'{"a": "\\ud83d\\ude80", "b": "\\\\ud800"}') == {"a": "🚀", "b": "\\ud800"}
    with pytest.raises(json.JSONDecodeError, match="not Unicode"):
        parse_strictly(b'"\\uDFFF"')
