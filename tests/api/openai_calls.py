"""What the tests of the OpenAI routes send again and again."""

from typing import Any

from fastapi.testclient import TestClient

USER = {"role": "user", "content": "hi"}


def refused(client: TestClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The error of a request that must get 400."""
    response = client.post(path, json=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error
