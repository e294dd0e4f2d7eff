"""A request whose first token is predicted to come too late is refused before it is queued."""

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Any

import pytest

from legato.core.errors import SlowFirstTokenError
from legato.core.sampling_params import SamplingParams
from legato.frontend.async_llm import AsyncLLM
from legato.ipc.engine_client import EngineClient
from legato.ipc.prediction.first_token import FirstToken


class PredictingClient:
    """A client whose first tokens are predicted to come in 8 s, 2 s of which are the prompt's own.

    Who comes in twice the limit is told not to wait longer than that.
    """

    def __init__(self, client: EngineClient, wait_s: float = 8.0) -> None:
        self._client = client
        self._wait_s = wait_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def first_token(
        self, token_ids: Sequence[int], cache_salt: str, tenant: str, limit_s: float
    ) -> FirstToken:
        return FirstToken(wait_s=self._wait_s, alone_s=2.0, retry_s=2 * limit_s)


def test_first_token_that_is_predicted_too_late_is_refused_with_when_it_would_not_be(llm: AsyncLLM) -> None:
    llm.client = PredictingClient(llm.client)  # type: ignore[assignment]
    before = time.perf_counter()
    with pytest.raises(SlowFirstTokenError) as caught:
        asyncio.run(llm.submit(["hi"], SamplingParams(), first_token_by=before + 5))
    assert 9.0 < caught.value.retry_after_s <= 10.0
    assert caught.value.first_token_at >= before + 8
    assert llm.client.num_pending == 0


def test_prompt_that_waits_for_nobody_is_never_refused(llm: AsyncLLM) -> None:
    client = PredictingClient(llm.client, wait_s=2.0)
    llm.client = client  # type: ignore[assignment]

    async def main() -> None:
        stream = await llm.submit(["hi"], SamplingParams(max_tokens=1), first_token_by=time.perf_counter())
        await stream.aclose()

    asyncio.run(main())


def test_stream_tells_when_its_first_token_is_predicted(llm: AsyncLLM) -> None:
    llm.client = PredictingClient(llm.client)  # type: ignore[assignment]

    async def main() -> float | None:
        stream = await llm.submit(["hi"], SamplingParams(max_tokens=1), first_token_by=sys.maxsize)
        await stream.aclose()
        return stream.first_token_at

    before = time.perf_counter()
    first_token_at = asyncio.run(main())
    assert first_token_at is not None
    assert first_token_at >= before + 8
