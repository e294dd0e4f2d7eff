"""Nothing is ignored silently: what was not read, or not taken as given, is named or, if strict, refused."""

import re
from collections.abc import Iterable
from urllib.parse import quote

from fastapi import Request

from legato.api.bodies.generation import Body
from legato.api.explain.in_answer import HEADER, is_wanted
from legato.core.errors import RequestError

MAX_NAMED_FIELDS = 32
MAX_NAME_CHARS = 64


def contract_headers(request: Request, body: Body, *, explains: bool = False) -> dict[str, str]:
    """The headers that tell the client of fields that were ignored, and of those taken with another value.

    explains  the route honours the header x-legato-explain; else it is told like a field
    Every route with a body calls it before anything is queued. Raises RequestError when the server is strict
    and there is something to tell.
    """
    ignored, adjusted = [*body.ignored()], body.adjusted()
    if not explains and is_wanted(request):
        ignored.append(HEADER)
    if request.app.state.is_strict:
        for places, reason in ((ignored, "is not known here"), (adjusted, "cannot have this value here")):
            for place in places:
                name = place[: 2 * MAX_NAME_CHARS]
                raise RequestError(f"{name} {reason}; leave it out", param=name, code="unsupported")
    told = {"x-legato-ignored": _listed(ignored), "x-legato-adjusted": _listed(adjusted)}
    return {header: names for header, names in told.items() if names}


def _listed(places: Iterable[str]) -> str:
    """Names that fit a header, sorted; messages.0.x and messages.1.x share the name messages.x."""
    names = sorted({re.sub(r"\.\d+(?=\.)", "", place) for place in places})
    shown = [quote(name[:MAX_NAME_CHARS], safe="") for name in names[:MAX_NAMED_FIELDS]]
    return ",".join(shown if len(names) == len(shown) else [*shown, "..."])
