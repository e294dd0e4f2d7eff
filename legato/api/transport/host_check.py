"""The Host header: a web page whose name was pointed at this machine (DNS rebinding) is not let in by it."""

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from legato.api.dialects import served_path
from legato.api.errors import MAX_NAME_CHARS, ErrorAnswer
from legato.api.transport.auth import OPEN_PATHS, is_loopback_address


class HostCheck:
    """ASGI middleware for servers without a key, which trust whoever is on this machine: so is its browser.

    Lets through what was sent to localhost, to a loopback address or to one of `names`. Calls that came by no
    network, through a unix socket or from this process, come from no browser and are not checked.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str]) -> None:
        self._app = app
        self._names = {_host_name(name) for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or served_path(scope) in OPEN_PATHS or not _came_by_network(scope):
            await self._app(scope, receive, send)
            return
        hosts = [str(value, "latin-1") for name, value in scope["headers"] if name == b"host"]
        strange = next((host for host in hosts if not self._is_ours(_host_name(host))), None)
        if strange is None:
            await self._app(scope, receive, send)
            return
        refusal = ErrorAnswer(
            status=403,
            message=f"the Host header names {strange[:MAX_NAME_CHARS]!r}, and without an API key only calls"
            " to localhost are answered, lest a web page calls in your name; call localhost, allow the name"
            " with --allowed-hosts NAME or LEGATO_ALLOWED_HOSTS, or set a key with --api-key",
            code="host_not_allowed",
        )
        await refusal.response(scope)(scope, receive, send)

    def _is_ours(self, name: str) -> bool:
        return (
            name in self._names
            or name == "localhost"
            or name.endswith(".localhost")  # no resolver may point it elsewhere
            or is_loopback_address(name)
        )


def _came_by_network(scope: Scope) -> bool:
    """By our own end of the connection: what is told of the client's may be a header's word."""
    try:
        ipaddress.ip_address(scope["server"][0] if scope.get("server") else "")
    except ValueError:
        return False
    return True


def _host_name(host: str) -> str:
    """What stands before the port, in small letters; "" for what is no host."""
    is_bare_ipv6 = host.count(":") > 1 and not host.startswith("[")
    try:
        name = urlsplit(f"//[{host}]" if is_bare_ipv6 else f"//{host}").hostname or ""
    except ValueError:
        return ""
    return name.removesuffix(".")
