"""Several models behind the routes: who answers, what probes and lists say, whatever is loaded."""

import asyncio
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from legato.api.asgi import app_for
from legato.api.service import ServiceState
from legato.api.several_models.service import OnDemandService, make_services
from legato.core.config import EngineConfig, ServerConfig
from legato.core.errors import ConfigError, ModelError
from legato.ipc.messages import EngineStats
from tests.api.asgi_call import AsgiCall
from tests.api.several_models.loading import PATIENCE_S, Loading, wait_for

COMPLETION = {"prompt": "hello"}
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def loading(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loading]:
    loading = Loading(monkeypatch)
    yield loading
    loading.close()


@pytest.fixture
def client(loading: Loading) -> TestClient:
    """Without a lifespan: nothing is loaded yet."""
    services = [OnDemandService(loading.loader, stay, (stay.name,)) for stay in loading.loader.stays]
    return TestClient(app_for(services[0], ServerConfig(), *services[1:]))


def statuses(client: TestClient) -> dict[str, str]:
    return {card["id"]: card["status"]["value"] for card in client.get("/v1/models").json()["data"]}


@pytest.mark.parametrize("model", [None, "a", "b"])
def test_every_route_asks_the_model_that_the_body_names(client: TestClient, model: str | None) -> None:
    named = {} if model is None else {"model": model}
    expected = model or "a"

    completion = client.post("/v1/completions", json=COMPLETION | named).json()
    chat = client.post("/v1/chat/completions", json=CHAT | named).json()
    response = client.post("/v1/responses", json={"input": "hi"} | named).json()
    message = client.post("/v1/messages", json=CHAT | {"max_tokens": 8, "model": expected}).json()

    assert (completion["choices"][0]["text"], completion["model"]) == (expected, expected)
    assert (chat["choices"][0]["message"]["content"], chat["model"]) == (expected, expected)
    assert (response["output"][0]["content"][0]["text"], response["model"]) == (expected, expected)
    assert (message["content"][0]["text"], message["model"]) == (expected, expected)
    assert client.post("/tokenize", json=COMPLETION | named).json()["count"] == 5
    assert client.post("/detokenize", json={"tokens": [104]} | named).json() == {"prompt": "h"}
    assert statuses(client)[expected] == "loaded"


def test_teaching_routes_use_the_first_model(client: TestClient) -> None:
    assert client.post("/v1/completions", json=COMPLETION | {"model": "b"}).status_code == 200
    assert client.post("/basic_generate", json={"prompt": "x"}).json() == {"generated_text": "xa"}


def test_unknown_model_is_404_in_each_dialect_and_names_those_that_are_served(client: TestClient) -> None:
    openai = client.post("/v1/completions", json=COMPLETION | {"model": "d"})
    anthropic = client.post("/v1/messages", json=CHAT | {"max_tokens": 8, "model": "d"})

    assert (openai.status_code, anthropic.status_code) == (404, 404)
    assert openai.json()["error"]["message"] == "model 'd' is not served here; served: a, b, c"
    assert anthropic.json()["error"]["type"] == "not_found_error"
    assert statuses(client) == dict.fromkeys("abc", "unloaded")


def test_who_waits_at_the_start_is_told_of_downloads(client: TestClient, loading: Loading) -> None:
    loading.has_files.clear()
    ticket = loading.ask(loading.a)
    wait_for(lambda: client.get("/ready").json()["reason"] == "downloading a")
    others = [each["stage"] for each in client.get("/ready").json()["models"][1:]]
    assert others == ["unloaded", "unloaded"]
    assert client.get("/health").status_code == 200
    loading.has_files.set()
    ticket.result(PATIENCE_S)
    assert client.get("/ready").status_code == 200


def test_call_holds_its_model_to_the_end_of_its_answer_and_no_longer(
    client: TestClient, loading: Loading
) -> None:
    with client.stream("POST", "/v1/completions", json=COMPLETION | {"model": "a", "stream": True}) as answer:
        answer.read()
    assert client.post("/v1/completions", json=COMPLETION | {"prompt": ""}).status_code == 400
    assert client.post("/v1/completions", json=COMPLETION | {"temperature": 99}).status_code == 400
    assert loading.a.num_users == 0


def test_model_list_shows_what_is_loaded(client: TestClient) -> None:
    for model, loaded in (("a", "a"), ("b", "b"), ("a", "a")):
        assert client.post("/v1/completions", json=COMPLETION | {"model": model}).status_code == 200
        assert statuses(client) == dict.fromkeys("abc", "unloaded") | {loaded: "loaded"}
    card = client.get("/v1/models/a").json()
    assert card["status"] == {"value": "loaded", "stage": "ready", "progress": 1.0}
    assert card["max_model_len"] == 1024
    assert client.get("/v1/models/b").json()["max_model_len"] == 1024  # known from its last stay


def test_length_of_context_is_known_after_a_stay_that_nobody_looked_at(client: TestClient) -> None:
    assert client.get("/v1/models/a").json()["max_model_len"] is None
    for model in ("a", "b"):
        assert client.post("/v1/completions", json=COMPLETION | {"model": model}).status_code == 200
    assert client.get("/v1/models/a").json()["status"]["value"] == "unloaded"
    assert client.get("/v1/models/a").json()["max_model_len"] == 1024


def test_made_up_weights_are_refused_where_memory_is_planned() -> None:
    with pytest.raises(ConfigError, match="no size to plan with"):
        make_services(EngineConfig(load_format="dummy"), ServerConfig(idle_unload_s=4), ["a"])


def test_server_is_ready_when_the_first_model_was_loaded_and_stays_so(
    client: TestClient, loading: Loading
) -> None:
    loading.engines.may_load.clear()
    services = client.app.state.models.unique()  # type: ignore[attr-defined]
    services[0].open()
    while (early := client.get("/ready")).json()["stage"] != "loading":
        pass
    loading.engines.may_load.set()
    assert client.post("/v1/completions", json=COMPLETION).status_code == 200
    first = client.get("/ready")
    assert client.post("/v1/completions", json=COMPLETION | {"model": "b"}).status_code == 200
    second = client.get("/ready")

    assert early.status_code == 503
    assert early.json()["progress"] == 0.3
    assert [each["stage"] for each in early.json()["models"]] == ["loading", "unloaded", "unloaded"]
    assert (first.status_code, second.status_code) == (200, 200)
    assert [each["stage"] for each in first.json()["models"]] == ["ready", "unloaded", "unloaded"]
    assert [each["stage"] for each in second.json()["models"]] == ["unloaded", "ready", "unloaded"]


def test_failed_load_is_503_with_the_reason_and_a_time_to_come_back(
    client: TestClient, loading: Loading
) -> None:
    loading.engines.errors.append(ModelError("the weights are gone"))

    refused = client.post("/v1/completions", json=COMPLETION | {"model": "b"})
    served = client.post("/v1/completions", json=COMPLETION)
    health, ready = client.get("/health"), client.get("/ready")

    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert refused.json()["error"]["code"] == "model_unavailable"
    assert refused.json()["error"]["message"] == "b cannot be served now: the weights are gone"
    assert served.status_code == 200
    assert (health.status_code, ready.status_code) == (200, 200)
    assert health.json() == {"status": "degraded", "reason": "the weights are gone"}
    status = client.get("/v1/models/b").json()["status"]
    assert (status["value"], status["failed"], status["reason"]) == ("unloaded", True, "the weights are gone")


def test_dead_model_ends_no_other_and_all_dead_end_the_server(client: TestClient, loading: Loading) -> None:
    for model, status in (("a", 200), ("b", 200), ("c", 503)):
        assert client.post("/v1/completions", json=COMPLETION | {"model": model}).status_code == 200
        stay = {"a": loading.a, "b": loading.b, "c": loading.c}[model]
        loading.service(stay).die(f"{model} is dead")
        assert client.get("/health").status_code == status
        assert client.get("/health?deep=1").status_code == status
    assert client.get("/health").json()["reason"] == "a is dead; b is dead; c is dead"
    assert client.get("/ready").status_code == 503


def test_deep_check_asks_no_model_that_is_not_loaded(client: TestClient, loading: Loading) -> None:
    assert client.post("/v1/completions", json=COMPLETION).status_code == 200
    assert client.get("/health?deep=1").status_code == 200
    assert loading.engines.loads == ["a"]


def test_call_whose_time_ends_while_its_model_is_loaded_is_503_and_waits_no_longer(
    client: TestClient, loading: Loading
) -> None:
    loading.engines.may_load.clear()
    answer = client.post("/v1/completions", json=COMPLETION, headers={"x-request-timeout": "0.01"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_timeout")
    assert loading.a.waiting == {}


def test_client_that_leaves_while_its_model_is_loaded_waits_no_longer(
    client: TestClient, loading: Loading
) -> None:
    loading.engines.may_load.clear()

    async def main() -> None:
        call = AsgiCall(client.app, "/v1/completions", COMPLETION | {"model": "b"})
        while not loading.b.waiting:
            await asyncio.sleep(0.001)
        call.leave()
        await call.task

    asyncio.run(main())
    assert loading.b.waiting == {}


@pytest.mark.parametrize("when", ["a makes room when it falls idle", "the engine of a is ended"])
def test_client_that_leaves_while_its_model_makes_room_waits_no_longer(
    client: TestClient, loading: Loading, when: str
) -> None:
    release = loading.enter(loading.a)
    loading.engines.may_end.clear()
    for_b = loading.ask(loading.b)
    if when == "the engine of a is ended":
        release()

    async def main() -> None:
        while not (loading.a.is_leaving or (loading.a.is_yielding and loading.a.num_users)):
            await asyncio.sleep(0.001)
        call = AsgiCall(client.app, "/v1/completions", COMPLETION | {"model": "a"})
        while not loading.a.waiting:
            await asyncio.sleep(0.001)
        call.leave()
        await call.task

    asyncio.run(main())
    assert loading.a.waiting == {}
    loading.engines.may_end.set()
    release()
    for_b.result(PATIENCE_S)()


def test_model_that_is_unloaded_is_alive_and_takes_calls(client: TestClient, loading: Loading) -> None:
    loading.enter(loading.a)()
    loading.engines.may_end.clear()
    for_b = loading.ask(loading.b)
    while not loading.a.is_leaving:
        pass

    health, deep, ready = (client.get(path) for path in ("/health", "/health?deep=1", "/ready"))
    listed = statuses(client)
    loading.engines.may_end.set()
    for_b.result(PATIENCE_S)()

    assert listed == {"a": "unloaded", "b": "loading", "c": "unloaded"}
    assert (health.status_code, health.json()) == (200, {"status": "ok"})
    assert (deep.status_code, ready.status_code) == (200, 200)
    assert [each["stage"] for each in ready.json()["models"]] == ["unloading", "waiting", "unloaded"]


def test_metrics_have_a_line_for_each_model_in_one_family(client: TestClient, loading: Loading) -> None:
    assert client.post("/v1/completions", json=COMPLETION).status_code == 200
    loading.service(loading.a).engine_stats = EngineStats(step=3, prefix_hits=2)
    assert client.post("/v1/completions", json=COMPLETION | {"model": "b"}).status_code == 200
    loading.service(loading.b).engine_stats = EngineStats(step=3, prefix_hits=9)
    assert client.get("/metrics").status_code == 200
    assert client.post("/v1/completions", json=COMPLETION).status_code == 200
    loading.service(loading.a).engine_stats = EngineStats(step=9, prefix_hits=5)

    lines = client.get("/metrics").text.splitlines()

    assert [line for line in lines if line.startswith("vllm:request_success_total") and "length" in line][
        :3
    ] == [f'vllm:request_success_total{{finished_reason="length",model_name="{name}"}} 0.0' for name in "abc"]
    hits = [line for line in lines if line.startswith("vllm:prefix_cache_hits_total")]
    assert hits == [
        f'vllm:prefix_cache_hits_total{{model_name="{name}"}} {number}'
        for name, number in zip("abc", ("7.0", "9.0", "0.0"), strict=True)
    ]
    families = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(families) == len(set(families))


def test_stats_of_a_model_that_is_not_loaded_are_503(client: TestClient) -> None:
    answer = client.get("/stats?model=b")
    assert answer.status_code == 503
    assert answer.json()["error"]["message"] == "b is not loaded"


def test_drained_server_takes_nothing_and_says_so(client: TestClient, loading: Loading) -> None:
    assert client.post("/v1/completions", json=COMPLETION).status_code == 200
    for service in client.app.state.models.unique():  # type: ignore[attr-defined]
        service.drain()
    loading.service(loading.a).current_state = ServiceState(stage="draining", is_ready=False, is_alive=True)
    answer = client.post("/v1/completions", json=COMPLETION | {"model": "b"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
    assert client.get("/ready").status_code == 503
    assert client.get("/health").status_code == 200


def test_only_the_first_model_is_loaded_at_the_start(client: TestClient, loading: Loading) -> None:
    with client:
        while client.get("/ready").status_code != 200:
            pass
    assert loading.engines.loads == ["a"]
    assert loading.engines.closed == ["a"]


@pytest.mark.parametrize(
    ("server", "is_on_demand"),
    [({}, False), ({"idle_unload_s": 9}, True), ({"max_models_memory_bytes": 2**30}, True)],
)
def test_one_model_needs_a_loader_only_for_a_limit(server: dict[str, int], is_on_demand: bool) -> None:
    [service] = make_services(
        EngineConfig(model="a", served_model_name=("x", "y")),
        ServerConfig(**server),
        ["a"],  # type: ignore[arg-type]
    )
    assert isinstance(service, OnDemandService) == is_on_demand
    assert service.names == ("x", "y")
