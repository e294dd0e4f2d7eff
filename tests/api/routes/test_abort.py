"""Ending a call by its id: its client gets what there is so far, and the reason."""

import asyncio
import json
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from tests.api.asgi_call import AsgiCall
from tests.api.openai_calls import USER, refused
from tests.api.sse_events import events_of
from tests.fakes import FakeGenerator

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


async def end(app: FastAPI, call: AsgiCall) -> tuple[int, dict[str, str], str]:
    """Status, headers and what is left of the body."""
    await call.task
    start = await call.message()
    body = "".join([await call.text() for _ in range(call.num_unread)])
    return (
        start["status"],
        {str(name, "ascii"): str(value, "ascii") for name, value in start["headers"]},
        body,
    )


async def post(app: FastAPI, path: str, body: Any = None) -> tuple[int, Any]:
    status, _, text = await end(app, AsgiCall(app, path, body))
    return status, json.loads(text)


async def until_running(app: FastAPI, generator: FakeGenerator) -> None:
    while not generator.submissions:
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_plain_answer_holds_the_text_so_far(app: FastAPI, generator: FakeGenerator, path: str) -> None:
    async def main() -> None:
        generator.output, generator.pause_after = "abcdef", 3
        body = {"prompt": "x", "messages": [USER], "request_id": "mine"}
        call = AsgiCall(
            app,
            path,
            {
                key: body[key]
                for key in body
                if (key == "prompt") == (path == COMPLETIONS) or key == "request_id"
            },
        )
        await until_running(app, generator)

        assert await post(app, "/v1/requests/mine/abort") == (200, {"id": "mine", "aborted": True})
        status, headers, text = await end(app, call)

        [choice] = json.loads(text)["choices"]
        assert status == 200
        assert "x-legato-ignored" not in headers
        assert choice["finish_reason"] == "abort"
        assert choice.get("text", choice.get("message", {}).get("content")) == "abc"
        assert (await post(app, "/v1/requests/mine/abort"))[0] == 404

    asyncio.run(main())


@pytest.mark.parametrize("named_by", ["object", "header"])
def test_stream_ends_with_a_last_chunk_and_done(
    app: FastAPI, generator: FakeGenerator, named_by: str
) -> None:
    async def main() -> None:
        generator.output, generator.pause_after = "abcdef", 2
        call = AsgiCall(app, CHAT, {"messages": [USER], "stream": True})
        start = await call.message()
        request_id = dict(start["headers"])[b"x-request-id"].decode()
        text = await call.text() + await call.text()
        name = events_of(text)[0]["id"] if named_by == "object" else request_id

        assert (await post(app, f"/v1/requests/{name}/abort"))[0] == 200
        await call.task
        text += "".join([await call.text() for _ in range(call.num_unread)])

        *chunks, done = events_of(text)
        assert done == "[DONE]"
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "abort"]
        assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "ab"

    asyncio.run(main())


def test_one_abort_ends_every_answer_of_a_call(app: FastAPI, generator: FakeGenerator) -> None:
    async def main() -> None:
        generator.pause_after = 3
        call = AsgiCall(app, COMPLETIONS, {"prompt": ["abcd", "efgh"], "request_id": "both"})
        await until_running(app, generator)
        await post(app, "/v1/requests/both/abort")
        choices = json.loads((await end(app, call))[2])["choices"]
        assert [choice["finish_reason"] for choice in choices] == ["abort", "abort"]
        assert [choice["text"] for choice in choices] == ["a", "ef"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/abort_request", {"rid": "mine"}),
        ("/abort_request", {"rid": "mine", "abort_all": False}),
        ("/abort_requests", {"request_ids": ["gone", "mine"]}),
    ],
)
def test_spellings_of_other_servers_end_it_too(
    app: FastAPI, generator: FakeGenerator, path: str, body: dict[str, Any]
) -> None:
    async def main() -> None:
        generator.pause_after = 1
        call = AsgiCall(app, "/generate", {"prompts": ["abcd"], "rid": "mine"})
        await until_running(app, generator)
        assert await post(app, path, body) == (200, {"aborted": ["mine"]})
        assert json.loads((await end(app, call))[2]) == {"generated_texts": ["abcda"]}
        assert await post(app, path, body) == (200, {"aborted": []})

    asyncio.run(main())


def test_ids_that_nobody_has_are_404_and_a_finished_call_is_one(client: TestClient) -> None:
    answer = client.post(COMPLETIONS, json={"prompt": "a"})
    for name in ("x", "a/b", "..%2fetc", answer.json()["id"], answer.headers["x-request-id"]):
        response = client.post(f"/v1/requests/{name}/abort")
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "request_not_found"


def test_all_at_once_is_refused_and_ids_have_limits(client: TestClient) -> None:
    assert refused(client, "/abort_request", {"rid": "", "abort_all": True})["param"] == "abort_all"
    assert refused(client, COMPLETIONS, {"prompt": "a", "request_id": "x" * 129})["param"] == "request_id"
    assert refused(client, COMPLETIONS, {"prompt": "a", "rid": "x" * 129})["param"] == "rid"


def test_a_name_that_two_calls_share_ends_both(app: FastAPI, generator: FakeGenerator) -> None:
    async def main() -> None:
        generator.pause_after = 1
        calls = [AsgiCall(app, COMPLETIONS, {"prompt": "abcd", "request_id": "r"}) for _ in range(2)]
        while len(generator.submissions) < 2:
            await asyncio.sleep(0)
        await until_running(app, generator)
        assert (await post(app, "/v1/requests/r/abort"))[0] == 200
        for call in calls:
            assert json.loads((await end(app, call))[2])["choices"][0]["finish_reason"] == "abort"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("/v1/responses", {"input": "hi"}, '"status":"incomplete"'),
        ("/v1/messages", {"messages": [USER], "max_tokens": 9}, '"stop_reason":"abort"'),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_other_shapes_of_a_chat_can_be_ended_too(
    app: FastAPI, generator: FakeGenerator, path: str, body: dict[str, Any], told: str, stream: bool
) -> None:
    async def main() -> None:
        generator.output, generator.pause_after = "abcXYZ", 3
        call = AsgiCall(app, path, {**body, "request_id": "mine", "stream": stream})
        await until_running(app, generator)
        assert (await post(app, "/v1/requests/mine/abort"))[0] == 200
        status, _, text = await end(app, call)
        assert status == 200
        assert told in text
        for letter in "XYZ":
            assert f'{letter}"' not in text

    asyncio.run(main())
