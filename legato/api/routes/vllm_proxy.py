"""/generate_vllm by way of any OpenAI server: plain HTTP from the standard library, in threads."""

import asyncio
import json
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from legato.core.background import in_own_thread
from legato.core.errors import NotReadyError, OverloadedError, RequestError
from legato.core.sampling_params import SamplingParams

# What an OpenAI server knows under the same name; the rest is sent only when it was set, for vLLM knows it.
STANDARD_FIELDS = ("max_tokens", "temperature", "top_p", "presence_penalty", "frequency_penalty")
VLLM_FIELDS = (
    "top_k",
    "min_p",
    "seed",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "min_tokens",
    "ignore_eos",
    "repetition_penalty",
    "logit_bias",
    "skip_special_tokens",
)
MAX_ANSWER_BYTES = 64 * 2**20
MAX_CALLS = 4  # at once, each in a thread
FULL_RETRY_S = 1.0


class VllmProxy:
    """Client of one OpenAI server.

    base_url   with or without /v1 at the end; None where no server is configured
    timeout_s  for each wait on the socket
    """

    def __init__(self, base_url: str | None, timeout_s: float = 300.0) -> None:
        self._base_url = base_url.rstrip("/").removesuffix("/v1") if base_url else None
        self._timeout_s = timeout_s
        self._places = threading.BoundedSemaphore(MAX_CALLS)

    async def complete(self, prompts: Sequence[str], params: SamplingParams) -> list[str]:
        """The continuations, in the order of the prompts.

        Raises NotReadyError when the server is not there or fails, RequestError when it refuses the request,
        OverloadedError when there is no place for one more call. Cancelling it gives its place back.
        """
        if self._base_url is None:
            raise NotReadyError(
                "no vLLM engine is configured; start vLLM and legato with --vllm-url http://HOST:PORT"
                " (or LEGATO_VLLM_URL)",
                retry_after_s=60,
            )
        server = _Server(self._base_url, self._timeout_s)
        if not self._places.acquire(blocking=False):
            raise OverloadedError(
                f"{MAX_CALLS} calls of the vLLM engine are under way; try again soon",
                retry_after_s=FULL_RETRY_S,
            )
        call = in_own_thread("vllm-call", partial(_complete, server, list(prompts), params))
        call.add_done_callback(lambda _: self._places.release())
        try:
            return await asyncio.wrap_future(call)
        finally:
            server.hang_up()


class _Server:
    """One call's connections to the server, one after the other; another thread may end them."""

    def __init__(self, base_url: str, timeout_s: float) -> None:
        address = urlsplit(base_url)
        kind = HTTPSConnection if address.scheme == "https" else HTTPConnection
        # straight there: a server of one's own is not asked by way of a web proxy
        self._connection = kind(address.netloc, timeout=timeout_s)
        self._path = address.path
        self._has_hung_up = False

    def hang_up(self) -> None:
        """Wake up the thread that waits for an answer; harmless when none does."""
        self._has_hung_up = True
        sock = self._connection.sock
        if sock is not None:
            with suppress(OSError):  # it is closed already
                sock.shutdown(socket.SHUT_RDWR)

    def fetch(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """The value that it answers with. Raises RequestError or NotReadyError."""
        data = json.dumps(body).encode() if body is not None else None
        connection = self._connection
        try:
            connection.connect()
            if self._has_hung_up:
                raise ConnectionAbortedError("the caller has left")
            connection.request(method, self._path + path, data, {"content-type": "application/json"})
            response = connection.getresponse()
            answer = response.read(MAX_ANSWER_BYTES)
        except (OSError, HTTPException) as error:
            raise NotReadyError(
                f"the vLLM engine at --vllm-url cannot be reached ({error}); see that it runs"
            ) from error
        finally:
            connection.close()
        if response.status == 200:
            return json.loads(answer)
        reason = answer[:2000].decode(errors="replace")
        if response.status in (400, 422):
            raise RequestError(f"the vLLM engine refuses the request: {reason}")
        raise NotReadyError(f"the vLLM engine answers with status {response.status}: {reason}")


def _complete(server: _Server, prompts: list[str], params: SamplingParams) -> list[str]:
    try:
        model = server.fetch("GET", "/v1/models")["data"][0]["id"]
        body = {"model": model, "prompt": prompts, **_fields(params)}
        answer = server.fetch("POST", "/v1/completions", body)
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        texts = [str(choice["text"]) for choice in choices]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise NotReadyError(f"the server at --vllm-url does not answer like OpenAI's ({error!r})") from error
    if len(texts) != len(prompts):
        raise NotReadyError(f"the server at --vllm-url gave {len(texts)} answers to {len(prompts)} prompts")
    return texts


def _fields(params: SamplingParams) -> dict[str, Any]:
    plain = SamplingParams()
    changed = [name for name in VLLM_FIELDS if getattr(params, name) != getattr(plain, name)]
    return {name: getattr(params, name) for name in (*STANDARD_FIELDS, *changed)}
