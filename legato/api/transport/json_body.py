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
        body = await self.body()
        try:
            return json.loads(body, parse_constant=_refuse_constant)
        except json.JSONDecodeError:
            raise
        except RecursionError:
            raise json.JSONDecodeError("nested too deeply", "", 0) from None
        except ValueError as error:  # bytes that are no text, an integer of thousands of digits
            raise json.JSONDecodeError(str(error), "", 0) from None


def _refuse_constant(name: str) -> NoReturn:
    raise json.JSONDecodeError(f"{name} is not a JSON number", "", 0)
