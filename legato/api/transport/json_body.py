"""Strict JSON for every body: what RFC 8259 does not know is refused, not guessed."""

import json
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from fastapi import Request, Response
from fastapi.routing import APIRoute


class StrictJsonRoute(APIRoute):
    """A route whose bodies must be valid JSON: no NaN or Infinity, no numbers or nesting without end."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(_StrictJsonRequest(request.scope, request.receive))

        return handle_strictly


class _StrictJsonRequest(Request):
    async def json(self) -> Any:
        """The body's value. Raises json.JSONDecodeError, which FastAPI answers as a fault of the body."""
        return parse_strictly(await self.body())


def parse_strictly(body: bytes) -> Any:
    """The value of UTF-8 JSON. Raises json.JSONDecodeError, and nothing else."""
    try:
        text = body.decode("utf-8-sig")
        value = json.loads(text, parse_constant=_refuse_constant)
        if "\\ud" in text.lower():  # half a surrogate pair, escaped, is no character: nothing could encode it
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise json.JSONDecodeError("nested too deeply", "", 0) from None
    except UnicodeError:
        raise json.JSONDecodeError("its text is not Unicode", "", 0) from None
    except ValueError:
        raise json.JSONDecodeError("a number has too many digits", "", 0) from None
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise json.JSONDecodeError(f"{name} is not a JSON number", "", 0)
