"""Several models in one server: engines that come and go, and die, beside others that know nothing of it."""

import asyncio
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from legato.api.engine_service import EngineService
from legato.api.several_models.loader import ModelLoader
from legato.core.config import EngineConfig
from legato.core.sampling_params import SamplingParams
from tests.e2e.conftest import Server, end_server, start_server
from tests.tiny_model import write_tiny_model

MIB = 2**20
GREEDY = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("several")
    return [write_tiny_model(folder / name, seed=seed) for seed, name in enumerate(("one", "two"))]


def start(folder: Path, models: list[Path], limit_bytes: int) -> Server:
    """`legato serve` with both models; a K/V store of 8 MiB each."""
    return start_server(
        folder,
        Path(",".join(map(str, models))),
        app=None,
        kv_cache_memory_bytes=8 * MIB,
        max_models_memory_bytes=limit_bytes,
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, models: list[Path]) -> Iterator[Server]:
    """A server with room for both models."""
    server = start(tmp_path_factory.mktemp("server"), models, 1024 * MIB)
    yield server
    end_server(server)


@pytest.fixture(scope="module")
def undisturbed(server: Server) -> dict[str, list[int]]:
    """What each model answers to who is alone with it."""
    return {model: asyncio.run(streams(server, model))[model] for model in ("one", "two")}


def engine_pids(server: Server) -> list[int]:
    """Of all engines that were ever started, in order."""
    return [int(pid) for pid in re.findall(r"engine pid (\d+), by subprocess", server.log.read_text())]


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


async def streams(server: Server, *models: str, kill_after: int | None = None) -> dict[str, list[int]]:
    """Tokens of these models, streamed at once; the first engine is killed after so many of its tokens."""
    tokens: dict[str, list[int]] = {model: [] for model in models}

    async def one_stream(sdk: openai.AsyncOpenAI, model: str) -> None:
        nonlocal kill_after
        stream = await sdk.completions.create(
            model=model,
            prompt="the end",
            max_tokens=400,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )
        async for chunk in stream:
            for choice in chunk.choices:
                tokens[model] += choice.model_extra["token_ids"] or []  # type: ignore[index]
            if model == "one" and kill_after is not None and len(tokens[model]) >= kill_after:
                os.kill(engine_pids(server)[0], signal.SIGKILL)
                kill_after = None

    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as sdk:
        await asyncio.gather(*(one_stream(sdk, model) for model in models))
    return tokens


def test_killed_engine_disturbs_no_other_model(server: Server, undisturbed: dict[str, list[int]]) -> None:
    assert undisturbed["one"] != undisturbed["two"]
    assert asyncio.run(streams(server, "one", "two", kill_after=50)) == undisturbed
    assert is_gone(engine_pids(server)[0])
    assert len(engine_pids(server)) == 3  # one for each, and the one that took over
    assert not is_gone(engine_pids(server)[1])


def test_models_take_turns_where_one_fits(
    tmp_path: Path, models: list[Path], undisturbed: dict[str, list[int]]
) -> None:
    server = start(tmp_path, models, 128 * MIB)

    assert asyncio.run(streams(server, "one", "two")) == undisturbed  # asked for at the same moment
    first, second = engine_pids(server)
    assert is_gone(first)
    status, answer = server.get("/v1/models")
    values = {card["id"]: card["status"]["value"] for card in answer["data"]}
    assert (status, values) == (200, {"one": "unloaded", "two": "loaded"})

    end_server(server)
    assert is_gone(second)
    assert server.process.returncode == 0


def usage() -> tuple[int, int, int]:
    """Threads, descriptors and child processes of this one, zombies included."""
    pid = os.getpid()
    children = [stat for stat in Path("/proc").glob("[0-9]*/stat") if _parent_of(stat) == pid]
    return threading.active_count(), len(os.listdir("/proc/self/fd")), len(children)


def _parent_of(stat: Path) -> int:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


@pytest.mark.slow
def test_nothing_is_left_of_models_that_were_unloaded_thirty_times(models: list[Path]) -> None:
    """Nor of the helper process that looks at grammars."""
    loader = ModelLoader(
        [(each.name, EngineConfig(model=str(each), kv_cache_memory_bytes=8 * MIB)) for each in models],
        EngineService,
        limit_bytes=128 * MIB,
    )
    seen = []
    for _ in range(15):
        for stay in loader.stays:
            release = loader.enter(stay).result(60)
            assert isinstance(stay.service, EngineService)
            asyncio.run(_constrained(stay.service))
            seen.append(usage())
            release()
    first, later = ([max(column) for column in zip(*part, strict=True)] for part in (seen[:2], seen[2:]))
    assert all(now <= then for now, then in zip(later, first, strict=True))
    for stay in loader.stays:
        asyncio.run(loader.close(stay))


async def _constrained(service: EngineService) -> None:
    """An answer that is held to a grammar, and some to long prompts, whose text has a thread of its own."""
    grammar = SamplingParams(max_tokens=4, grammar='start: "a" | "b"')
    for prompts, params in ((["x"], grammar), (["x" * 4000] * 2, GREEDY)):
        stream = await service.generator.submit(prompts, params, truncate_prompt_tokens=8)
        async for _ in stream:
            pass
