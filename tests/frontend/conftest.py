"""Engines for the small model, in threads of this process."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from legato.core.config import EngineConfig
from legato.engine.assembly import load_engine
from legato.engine.inproc import InprocClient
from legato.frontend.async_llm import AsyncLLM
from legato.tokenization.chat_template import load_chat_template
from legato.tokenization.tokenizer import load_tokenizer

OpenModel = Callable[..., AsyncLLM]


@pytest.fixture
def open_model() -> Iterator[OpenModel]:
    """Opens a folder's model; further arguments are settings. Its engine ends with the test."""
    clients: list[InprocClient] = []

    def open_(folder: Path, **settings: object) -> AsyncLLM:
        config = EngineConfig(model=str(folder), **{"num_pages": 128, **settings})
        client = InprocClient(load_engine(config, lambda *_: None))
        client.start()
        clients.append(client)
        return AsyncLLM(client, load_tokenizer(folder), load_chat_template(folder), seed=config.seed)

    yield open_
    for client in clients:
        client.close()


@pytest.fixture
def llm(open_model: OpenModel, tiny_model: Path) -> AsyncLLM:
    return open_model(tiny_model)
