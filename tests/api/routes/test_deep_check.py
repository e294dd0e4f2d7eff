"""/health?deep=1: an engine that computes is well, one that is stuck is not, and probes cost little."""

import asyncio
from dataclasses import replace

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from legato.api.app import create_app
from legato.api.routes.deep_check import DeepCheck
from legato.api.service import ServiceState
from legato.core.config import ServerConfig
from legato.core.errors import ClosedError, EngineDiedError
from legato.ipc.messages import EngineStats
from tests.api.fake_service import FakeService
from tests.fakes import FakeGenerator


class Clock:
    """Moves by `step_s` at each look."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.now = 0.0
        self.step_s = step_s

    def __call__(self) -> float:
        self.now += self.step_s
        return self.now


class SteppingService(FakeService):
    """Has work, and an engine whose step counter moves at each look."""

    def __init__(self) -> None:
        super().__init__()
        self.num_pending = 1
        self._num_looks = 0

    def latest_stats(self) -> EngineStats:
        self._num_looks += 1
        return EngineStats(step=self._num_looks)


def test_idle_engine_is_asked_for_one_token(client: TestClient, generator: FakeGenerator) -> None:
    answer = client.get("/health?deep=1")

    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    [submission] = generator.submissions
    assert submission["params"].max_tokens == 1


def test_plain_probe_asks_for_nothing(client: TestClient, generator: FakeGenerator) -> None:
    assert client.get("/health").status_code == 200
    assert generator.submissions == []


def test_probe_within_a_second_of_the_last_token_asks_for_no_other(service: FakeService) -> None:
    clock = Clock()
    check = DeepCheck(clock=clock)

    async def main() -> None:
        for now in (0.0, 0.9, 1.1):
            clock.now = now
            assert await check.fault(service) is None

    asyncio.run(main())
    assert len(service.generator.submissions) == 2


def test_probes_at_once_share_one_token(service: FakeService) -> None:
    async def main() -> list[str | None]:
        check = DeepCheck(clock=Clock())
        return await asyncio.gather(*(check.fault(service) for _ in range(50)))

    assert asyncio.run(main()) == [None] * 50
    assert len(service.generator.submissions) == 1


def test_probe_that_leaves_ends_nobody_elses(service: FakeService) -> None:
    async def main() -> str | None:
        check = DeepCheck(clock=Clock())
        leaver = asyncio.create_task(check.fault(service))
        await asyncio.sleep(0)
        stayer = asyncio.create_task(check.fault(service))
        leaver.cancel()
        return await stayer

    assert asyncio.run(main()) is None


def test_engine_that_is_seen_to_step_is_asked_for_nothing() -> None:
    service = SteppingService()
    assert asyncio.run(DeepCheck().fault(service)) is None
    assert service.generator.submissions == []


@pytest.mark.parametrize("num_pending", [0, 1])
def test_engine_that_stands_still_is_stuck_when_the_budget_is_over(num_pending: int) -> None:
    service = FakeService()
    service.num_pending = num_pending
    service.generator.is_queue_stuck = True

    fault = asyncio.run(DeepCheck(budget_s=5, clock=Clock(step_s=1)).fault(service))

    assert fault is not None
    assert "no step in 5 s" in fault


@pytest.mark.parametrize("error", [ClosedError("it ends"), EngineDiedError("it died")])
def test_token_that_is_refused_is_told_with_its_reason(
    client: TestClient, generator: FakeGenerator, error: Exception
) -> None:
    generator.refusal = error
    answer = client.get("/health?deep=1")
    assert answer.status_code == 503
    assert answer.json() == {"status": "stuck", "reason": str(error)}


@pytest.mark.parametrize("stage", ["loading", "respawning", "draining"])
def test_engine_that_takes_no_requests_fails_at_once(
    client: TestClient, service: FakeService, stage: str
) -> None:
    service.current_state = ServiceState(stage=stage, is_ready=False, is_alive=True, reason=f"it is {stage}")

    assert client.get("/health").status_code == 200
    assert client.get("/health?deep=1").json()["reason"] == f"it is {stage}"
    assert client.head("/health?deep=1").status_code == 503
    assert service.generator.submissions == []


def test_overloaded_engine_that_steps_is_well() -> None:
    service = SteppingService()
    service.current_state = replace(service.current_state, stage="overloaded", is_ready=False)
    assert asyncio.run(DeepCheck().fault(service)) is None


def test_probe_needs_no_key_and_counts_for_nobody(service: FakeService) -> None:
    app: FastAPI = create_app(
        {"fake": service}, ServerConfig(api_key=("k",), max_requests_per_key=1, requests_per_minute_per_key=1)
    )
    client = TestClient(app)
    assert client.get("/health?deep=1").status_code == 200

    answer = client.post("/v1/completions", json={"prompt": "a"}, headers={"x-api-key": "k"})

    assert answer.status_code == 200
    shown = client.get("/metrics", headers={"x-api-key": "k"}).text
    assert 'legato_requests_accepted_total{model_name="fake"} 1.0' in shown


def test_value_that_is_no_yes_or_no_is_refused(client: TestClient) -> None:
    answer = client.get("/health?deep=perhaps")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "deep"
