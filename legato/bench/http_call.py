"""One call to a server, JSON in and out."""

import http.client
import json
from collections.abc import Mapping
from typing import Any

from legato.bench.endpoint import BenchError


def call(
    name: str, address: tuple[str, int], method: str, path: str, body: Mapping[str, Any] | None = None
) -> Any:
    """The JSON of the answer. Raises BenchError, naming the server, when it is no success."""
    connection = http.client.HTTPConnection(*address)
    data = None if body is None else json.dumps(body).encode()
    try:
        connection.request(method, path, data, {"content-type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise BenchError(f"the {name} server broke off {method} {path}: {error}") from error
    finally:
        connection.close()
    if response.status != http.HTTPStatus.OK:
        raise BenchError(f"the {name} server answered {method} {path} with {response.status}: {answer!r}")
    return json.loads(answer)
