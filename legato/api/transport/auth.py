"""API keys: every route asks for one, by construction, but for two that probes call and an empty page."""

import hashlib
import hmac
import ipaddress
import logging
from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from legato.api.dialects import served_path
from legato.api.errors import ErrorAnswer

logger = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/docs", "/health", "/ready"})  # /docs asks for the key itself, to show anything
HOW_TO_SHOW_A_KEY = "send the header authorization: Bearer KEY, or x-api-key: KEY"
NO_KEY = (
    "this server has no API key, so it answers clients on its own machine alone;"
    " start it with --api-key KEY or set LEGATO_API_KEY to serve others"
)


class Authentication:
    """ASGI middleware that lets through whoever shows one of the keys; its state then has their `tenant`.

    Without keys only clients on this machine are served, so that an open address is never open by accident.
    """

    def __init__(self, app: ASGIApp, api_keys: Iterable[str]) -> None:
        self._app = app
        self._digests = [hashlib.sha256(key.encode()).digest() for key in api_keys]
        self._has_warned = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or served_path(scope) in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        fault = self._fault_of(scope)
        if fault is None:
            await self._app(scope, receive, send)
            return
        refusal = ErrorAnswer(
            status=401, message=fault, code="invalid_api_key", headers={"www-authenticate": "Bearer"}
        )
        await refusal.response(scope)(scope, receive, send)

    def _fault_of(self, scope: Scope) -> str | None:
        if not self._digests:
            if is_local(scope):
                return None
            if not self._has_warned:  # once: under uvicorn nothing says earlier that the address is open
                self._has_warned = True
                logger.warning(
                    "401 for the client %s: %s",
                    *(scope["client"][0], NO_KEY),
                    extra={"request_id": scope["state"]["request_id"]},
                )
            return NO_KEY
        shown = [header for header in scope["headers"] if header[0] in (b"authorization", b"x-api-key")]
        if not shown:
            return f"an API key is needed: {HOW_TO_SHOW_A_KEY}"
        is_twice = len(shown) > len(dict(shown))
        tenant = next(filter(None, (self._tenant_of(_key_in(*header)) for header in shown)), None)
        if is_twice or tenant is None:
            return f"the API key is not one of this server's; {HOW_TO_SHOW_A_KEY}, once"
        scope["state"]["tenant"] = tenant
        return None

    def _tenant_of(self, key: bytes) -> str | None:
        """A name for who has this key, which tells nothing of it; None when it is no key of ours.

        Compares digests, and with every key: the time taken tells nothing about any of them either.
        """
        digest = hashlib.sha256(key).digest()
        is_known = any([hmac.compare_digest(digest, known) for known in self._digests])  # noqa: C419 - all, not the first
        return hashlib.sha256(b"tenant" + digest).hexdigest()[:16] if is_known else None


def is_local(scope: Scope) -> bool:
    """Whether the client is on this machine: loopback, a unix socket, or a call without any socket."""
    host = scope["client"][0] if scope.get("client") else ""
    if host in ("", "testclient"):
        return True
    return is_loopback_address(host)


def is_loopback_address(host: str) -> bool:
    """Whether this is an address, not a name, of this machine to itself."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _key_in(name: bytes, value: bytes) -> bytes:
    """Anthropic's clients show the key by itself, in x-api-key."""
    if name == b"x-api-key":
        return value.strip()
    scheme, _, key = value.partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""
