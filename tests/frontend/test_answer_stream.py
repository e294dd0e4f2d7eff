"""Replies in one event loop: accepted or refused as a whole, aborted once, told of an engine's death."""

import asyncio
from collections.abc import Iterable, Sequence

import pytest

import legato.frontend.answer_stream as answer_stream
from legato.core.errors import (
    ClosedError,
    EngineDiedError,
    LegatoError,
    NonFiniteLogitsError,
    NotReadyError,
    OverloadedError,
    PoisonedRequestError,
    QueueTimeoutError,
    RequestError,
    SlowReaderError,
)
from legato.core.sampling_params import FinishReason, SamplingParams
from legato.frontend.answer import Answer
from legato.frontend.answer_stream import AnswerStream
from legato.frontend.generator import Usage
from legato.ipc.engine_client import EngineStage, EngineStatus
from legato.ipc.messages import Accepted, Failed, Rejected, TokenOutput
from legato.ipc.reply_router import Reply
from tests.frontend.answers import gather
from tests.tokenization.tiny_tokenizers import byte_level_tokenizer


class FakeClient:
    """Stands in for EngineClient: remembers what was aborted."""

    def __init__(self, stage: EngineStage = EngineStage.READY) -> None:
        self.status = EngineStatus(stage)
        self.aborted: list[str] = []

    def abort(self, request_ids: Iterable[str], last_word: object = None) -> None:
        self.aborted += request_ids

    def retry_after_s(self) -> float:
        return 2.5


def open_stream(client: FakeClient, *request_ids: str, stop: tuple[str, ...] = ()) -> AnswerStream:
    params, tokenizer = SamplingParams(stop=stop), byte_level_tokenizer()
    answers = {each: Answer(index, [97], params, tokenizer) for index, each in enumerate(request_ids)}
    return AnswerStream(client, answers, [])  # type: ignore[arg-type]


def tokens(request_id: str, text: str, finish_reason: FinishReason | None = None) -> TokenOutput:
    return TokenOutput(
        request_id=request_id, index=0, token_ids=list(text.encode()), finish_reason=finish_reason
    )


async def accept(client: FakeClient, replies: Sequence[Reply]) -> None:
    stream = open_stream(client, "a", "b")
    for reply in replies:
        stream.sink(reply)
    await stream.accepted()


@pytest.mark.parametrize(
    ("reply", "kind", "attributes"),
    [
        (
            Rejected(request_id="b", code="context_length_exceeded", message="too long", param="prompt"),
            RequestError,
            {"code": "context_length_exceeded", "param": "prompt"},
        ),
        (
            Rejected(request_id="b", code="queue_full", message="2048 wait"),
            OverloadedError,
            {"retry_after_s": 2.5},
        ),
        (Failed(request_id="b", error="killed by SIGKILL"), EngineDiedError, {}),
        (Failed(request_id="b", error="NaN", code="non_finite_logits"), NonFiniteLogitsError, {}),
        (Failed(request_id="b", error="deadly", code="engine_poisoned"), PoisonedRequestError, {}),
    ],
)
def test_refusal_of_one_aborts_all(
    reply: Reply, kind: type[LegatoError], attributes: dict[str, object]
) -> None:
    client = FakeClient()
    with pytest.raises(kind) as refusal:
        asyncio.run(accept(client, [Accepted(request_id="a"), reply]))
    assert {name: getattr(refusal.value, name) for name in attributes} == attributes
    assert client.aborted == ["a", "b"]


def test_engine_that_says_nothing_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_stream, "ACCEPT_TIMEOUT_S", 0.01)
    client = FakeClient()
    with pytest.raises(NotReadyError, match="did not accept the request within"):
        asyncio.run(accept(client, [Accepted(request_id="a")]))
    assert client.aborted == ["a", "b"]


def test_waiting_for_acceptance_that_is_cancelled_aborts() -> None:
    client = FakeClient()

    async def cancel() -> None:
        task = asyncio.create_task(accept(client, []))
        await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel())
    assert client.aborted == ["a", "b"]


def test_stream_ends_with_its_last_answer_and_aborts_nothing() -> None:
    async def main() -> list[str]:
        stream = open_stream(client, "a", "b")
        for reply in [
            tokens("b", "x"),
            tokens("a", "1", FinishReason.LENGTH),
            tokens("b", "y", FinishReason.LENGTH),
        ]:
            stream.sink(reply)
        answers = await gather(stream, 2)
        await stream.aclose()
        return [answer.text for answer in answers]

    client = FakeClient()
    assert asyncio.run(main()) == ["1", "xy"]
    assert client.aborted == []


def test_stop_text_aborts_its_request_and_later_tokens_are_dropped() -> None:
    async def main() -> list[str]:
        stream = open_stream(client, "a", "b", stop=("END",))
        for reply in [
            tokens("a", "xEND"),
            tokens("a", "more"),
            tokens("a", "!", FinishReason.LENGTH),
            tokens("b", "y", FinishReason.LENGTH),
        ]:
            stream.sink(reply)
        return [answer.text for answer in await gather(stream, 2)]

    client = FakeClient()
    assert asyncio.run(main()) == ["x", "y"]
    assert client.aborted == ["a"]


def test_leaving_in_the_middle_aborts_what_still_runs() -> None:
    async def main() -> None:
        stream = open_stream(client, "a", "b")
        stream.sink(tokens("a", "x", FinishReason.LENGTH))
        stream.sink(tokens("b", "y"))
        deltas = aiter(stream)
        await anext(deltas)
        await anext(deltas)
        await deltas.aclose()  # type: ignore[attr-defined]
        await stream.aclose()

    client = FakeClient()
    asyncio.run(main())
    assert client.aborted == ["b"]


def test_failure_of_one_ends_the_stream_and_aborts_the_others() -> None:
    async def main() -> None:
        stream = open_stream(client, "a", "b")
        stream.sink(tokens("a", "x"))
        stream.sink(Failed(request_id="b", error="the engine process has ended (killed by SIGKILL)"))
        await gather(stream, 2)

    client = FakeClient()
    with pytest.raises(EngineDiedError, match="SIGKILL"):
        asyncio.run(main())
    assert "a" in client.aborted


def test_failure_by_an_engine_that_was_closed_is_told_from_a_death() -> None:
    async def main() -> None:
        stream = open_stream(client, "a")
        stream.sink(Failed(request_id="a", error="the server is shutting down"))
        await gather(stream)

    client = FakeClient(EngineStage.CLOSED)
    with pytest.raises(ClosedError, match="the server is shutting down"):
        asyncio.run(main())


def test_closing_ends_the_iteration_of_another_task() -> None:
    async def main() -> list[str]:
        stream = open_stream(client, "a", "b")
        reader = asyncio.create_task(gather(stream, 2))
        stream.sink(tokens("a", "x"))
        await asyncio.sleep(0)  # the reader waits
        await asyncio.sleep(0)
        await stream.aclose()
        return [answer.text for answer in await reader]

    client = FakeClient()
    assert asyncio.run(main()) == ["x", ""]
    assert client.aborted == ["a", "b"]


def test_what_had_arrived_when_the_stream_was_closed_is_dropped() -> None:
    async def main() -> list[str]:
        stream = open_stream(client, "a")
        reader = asyncio.create_task(gather(stream))
        await asyncio.sleep(0)
        stream.sink(Failed(request_id="a", error="too late"))
        await stream.aclose()
        return [answer.text for answer in await reader]

    client = FakeClient()
    assert asyncio.run(main()) == [""]


def test_replies_after_the_loop_was_closed_abort_the_request() -> None:
    async def open_only() -> AnswerStream:
        return open_stream(client, "a")

    client = FakeClient()
    stream = asyncio.run(open_only())
    stream.sink(tokens("a", "x"))
    assert client.aborted == ["a"]


def test_abort_gives_each_answer_that_runs_a_last_delta_after_what_has_arrived() -> None:
    async def main() -> list[tuple[int, str, FinishReason | None]]:
        stream = open_stream(client, "a", "b", "c", stop=("END",))
        for reply in [
            tokens("a", "done", FinishReason.LENGTH),
            tokens("b", "xEN"),
            TokenOutput(request_id="c", index=0, token_ids=[121], cached_len=7),
        ]:
            stream.sink(reply)
        stream.abort()
        await asyncio.sleep(0)  # abort() may come from any thread: it is heard in a turn of its own
        stream.sink(tokens("b", "D"))
        deltas = [delta async for delta in stream]
        assert deltas[-1].usage == Usage(1, 1, cached_tokens=7)
        assert [delta.token_ids for delta in deltas[3:]] == [(), ()]
        return [(delta.index, delta.text, delta.finish_reason) for delta in deltas]

    client = FakeClient()
    assert asyncio.run(main()) == [
        (0, "done", FinishReason.LENGTH),
        (1, "x", None),
        (2, "y", None),
        (1, "EN", FinishReason.ABORT),
        (2, "", FinishReason.ABORT),
    ]
    assert client.aborted == ["b", "c"]


def test_timeout_ends_answers_that_have_tokens_and_is_an_error_before_any() -> None:
    async def main(replies: list[Reply]) -> list[tuple[int, FinishReason | None]]:
        stream = open_stream(client, "a", "b")
        for reply in replies:
            stream.sink(reply)
        stream.abort(FinishReason.TIMEOUT)
        return [(delta.index, delta.finish_reason) async for delta in stream]

    client = FakeClient()
    ends = asyncio.run(main([tokens("a", "x")]))
    assert ends == [(0, None), (0, FinishReason.TIMEOUT), (1, FinishReason.TIMEOUT)]
    assert client.aborted == ["a", "b"]
    with pytest.raises(QueueTimeoutError, match="before its first token"):
        asyncio.run(main([]))
    assert client.aborted == ["a", "b"] * 2


def test_abort_after_the_loop_was_closed_is_harmless() -> None:
    async def main() -> AnswerStream:
        return open_stream(FakeClient(), "a")

    asyncio.run(main()).abort()


def test_answer_that_nobody_reads_is_aborted_before_it_fills_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answer_stream, "MAX_UNREAD", 4)
    monkeypatch.setattr(answer_stream, "MAX_UNREAD_PER_ANSWER", 1)
    client = FakeClient()

    async def main() -> None:
        stream = open_stream(client, "a")
        deltas = aiter(stream)
        for text in "abcde":
            stream.sink(tokens("a", text))
        assert (await anext(deltas)).text == "a"
        assert client.aborted == []
        for text in "fg":
            stream.sink(tokens("a", text))
        await asyncio.sleep(0)
        assert client.aborted == ["a"]
        with pytest.raises(SlowReaderError, match="5 tokens waited for the client"):
            await anext(deltas)

    asyncio.run(main())
