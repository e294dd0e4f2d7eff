"""/generate_vllm by way of any OpenAI server: plain HTTP from the standard library, in a thread."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from typing import Any

from legato.core.errors import NotReadyError, RequestError
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


class VllmProxy:
    """Client of one OpenAI server.

    base_url   with or without /v1 at the end; None where no server is configured
    timeout_s  for each wait on the socket
    """

    def __init__(self, base_url: str | None, timeout_s: float = 300.0) -> None:
        self._base_url = base_url.rstrip("/").removesuffix("/v1") if base_url else None
        self._timeout_s = timeout_s
        # a server of one's own is not asked by way of the web proxy that the environment may name
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    async def complete(self, prompts: Sequence[str], params: SamplingParams) -> list[str]:
        """The continuations, in the order of the prompts.

        Raises NotReadyError when the server is not there or fails, RequestError when it refuses the request.
        """
        if self._base_url is None:
            raise NotReadyError(
                "no vLLM engine is configured; start vLLM and legato with --vllm-url http://HOST:PORT"
                " (or LEGATO_VLLM_URL)",
                retry_after_s=60,
            )
        return await asyncio.to_thread(self._complete, list(prompts), params)

    def _complete(self, prompts: list[str], params: SamplingParams) -> list[str]:
        try:
            model = self._fetch("/v1/models")["data"][0]["id"]
            answer = self._fetch("/v1/completions", {"model": model, "prompt": prompts, **_fields(params)})
            choices = sorted(answer["choices"], key=lambda choice: choice["index"])
            texts = [str(choice["text"]) for choice in choices]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise NotReadyError(
                f"the server at --vllm-url does not answer like OpenAI's ({error!r})"
            ) from error
        if len(texts) != len(prompts):
            raise NotReadyError(
                f"the server at --vllm-url gave {len(texts)} answers to {len(prompts)} prompts"
            )
        return texts

    def _fetch(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(
            f"{self._base_url}{path}", data, {"content-type": "application/json"}
        )
        try:
            with self._opener.open(request, timeout=self._timeout_s) as response:
                return json.loads(response.read(MAX_ANSWER_BYTES))
        except urllib.error.HTTPError as error:
            with error:
                reason = error.read(2000).decode(errors="replace")
            if error.code in (400, 422):
                raise RequestError(f"the vLLM engine refuses the request: {reason}") from error
            raise NotReadyError(f"the vLLM engine answers with status {error.code}: {reason}") from error
        except (OSError, HTTPException) as error:
            raise NotReadyError(
                f"the vLLM engine at --vllm-url cannot be reached ({error}); see that it runs"
            ) from error


def _fields(params: SamplingParams) -> dict[str, Any]:
    plain = SamplingParams()
    changed = [name for name in VLLM_FIELDS if getattr(params, name) != getattr(plain, name)]
    return {name: getattr(params, name) for name in (*STANDARD_FIELDS, *changed)}
