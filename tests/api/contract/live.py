"""The whole server in one process: routes, tokenizer, scheduler and kernels over a small random model."""

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from legato.api.asgi import app_for
from legato.api.engine_service import EngineService
from legato.core.config import EngineConfig, ServerConfig
from legato.engine.assembly import load_engine
from legato.engine.inproc import InprocClient
from legato.frontend.open_llm import open_llm
from tests.api.openai_calls import USER
from tests.api.sse_events import events_of

ROUTES: Mapping[str, Mapping[str, Any]] = {
    "/v1/completions": {"prompt": "Hello"},
    "/v1/chat/completions": {"messages": [USER]},
}
ASCII = {str(byte): 100 for byte in range(0x20, 0x7F)}  # logit_bias under which every token is a character
END_ID = 272  # of <|end|>, the model's end of sequence; <tool 한> follows, which is not special


class Live:
    """A client of the server that wants answers."""

    def __init__(self, http: TestClient) -> None:
        self.http = http

    def plain(self, path: str, **fields: Any) -> dict[str, Any]:
        response = self.http.post(path, json={**ROUTES.get(path, {}), **fields})
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def streamed(self, path: str, **fields: Any) -> list[Any]:
        """The events, the last is "[DONE]"."""
        body = {**ROUTES.get(path, {}), "stream": True, **fields}
        response = self.http.post(path, json=body)
        assert response.status_code == 200, response.text
        return events_of(response.text)

    def text(self, path: str = "/v1/completions", **fields: Any) -> str:
        return text_of(self.plain(path, **fields)["choices"][0])

    @contextmanager
    def beside_a_stream(self, **fields: Any) -> Iterator[None]:
        """Stream one answer again and again meanwhile: not a character of it may change."""
        fields = {"prompt": "healthy", "temperature": 0, "max_tokens": 100, "ignore_eos": True, **fields}
        alone = self.text(**fields)
        texts, is_over = [], threading.Event()

        def stream() -> None:
            while not texts or not is_over.is_set():
                *chunks, _ = self.streamed("/v1/completions", **fields)
                texts.append("".join(text_of(chunk["choices"][0]) for chunk in chunks))

        with ThreadPoolExecutor(1) as pool:
            streaming = pool.submit(stream)
            try:
                yield
            finally:
                is_over.set()
                streaming.result()
        assert set(texts) == {alone}

    def pages(self) -> tuple[int, int]:
        """Held by requests, and free or cached; asked until nothing runs."""
        while (stats := self.http.get("/stats").json())["requests"]:
            pass
        return stats["pages_held"], stats["pages_free"] + stats["pages_cached"]

    def error(self, path: str, **fields: Any) -> dict[str, Any]:
        """The error of a request that must get 400, streamed or not."""
        body = {**ROUTES.get(path, {}), **fields}
        responses = [self.http.post(path, json=body | {"stream": stream}) for stream in (False, True)]
        assert [response.status_code for response in responses] == [400, 400], responses[0].text
        assert responses[0].json() == responses[1].json()
        error: dict[str, Any] = responses[0].json()["error"]
        return error


def text_of(choice: Mapping[str, Any]) -> str:
    """The text of a choice, in whichever route's shape, whole or a chunk."""
    part = choice.get("message") or choice.get("delta") or choice
    return part.get("content") or part.get("text") or ""


@contextmanager
def serve(folder: Path, server: ServerConfig | None = None, **settings: Any) -> Iterator[Live]:
    """A server of the model in `folder`; `settings` are the engine's."""
    config = EngineConfig(model=str(folder), **{"num_pages": 256, **settings})
    client = InprocClient(load_engine(config, lambda *_: None))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("legato.api.engine_service.open_llm", partial(open_llm, client=client))
        with TestClient(app_for(EngineService(config), server or ServerConfig())) as http:
            yield Live(http)
