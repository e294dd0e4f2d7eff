"""A batch over the server's own app: rows, failures, second tries, and an engine that is gone for good."""

import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from legato.api.app import create_app
from legato.cli.batch.lines import Line, read_lines
from legato.cli.batch.output import open_output
from legato.cli.batch.runner import BatchRun
from legato.cli.batch.tally import Tally
from legato.core.config import ServerConfig
from legato.core.errors import EngineDiedError, NotReadyError, OverloadedError
from legato.core.sampling_params import SamplingParams
from tests.api.fake_service import FakeService
from tests.fakes import FakeGenerator, FakeTextStream

Json = dict[str, Any]


def completion(custom_id: str, prompt: str = "abc", **fields: Any) -> Json:
    body = {"model": "fake", "prompt": prompt, **fields}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}


def chat(custom_id: str, text: str) -> Json:
    body = {"messages": [{"role": "user", "content": text}]}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


class Batch:
    """Runs lines through an app over `generator`, into a file; `told` is what the user was told."""

    def __init__(self, path: Path, generator: FakeGenerator | None = None) -> None:
        self.path = path
        self.service = FakeService(generator)
        self.app = create_app({"fake": self.service}, ServerConfig())
        self.told: list[str] = []
        self.tally = Tally(None)

    def run(self, *lines: Json | str, num_workers: int = 4) -> dict[str, Json]:
        """The rows of the file afterwards, by custom_id."""
        text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)

        async def run() -> None:
            with open_output(self.path) as output:
                read = read_lines(io.BytesIO(text.encode()), output.answered)
                batch = BatchRun(self.app, self.service, read, output, self.tally, self.told.append)
                async with asyncio.timeout(60):
                    await batch.run(num_workers)

        asyncio.run(run())
        rows = [json.loads(row) for row in self.path.read_text().splitlines()]
        assert len({row["id"] for row in rows}) == len(rows)
        return {row["custom_id"]: row for row in rows}


def response(custom_id: str, text: str) -> Json:
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/responses", "body": {"input": text}}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


class Scripted(FakeGenerator):
    """Raises the next of `refusals` at each submission, None for none; records how many run at once.

    num_together  the first submissions wait until there are so many
    """

    def __init__(self, *refusals: Exception | None, num_together: int = 1) -> None:
        super().__init__()
        self._refusals: Iterator[Exception | None] = iter(refusals)
        self._num_together = num_together
        self.num_running = self.max_running = 0

    async def submit(self, prompts: Any, params: SamplingParams, **options: Any) -> FakeTextStream:
        self.num_running += 1
        self.max_running = max(self.max_running, self.num_running)
        while self.max_running < self._num_together:
            await asyncio.sleep(0)
        self.num_running -= 1
        self.refusal = next(self._refusals, None)
        return await super().submit(prompts, params, **options)


def test_rows_hold_what_the_routes_answer(out: Path) -> None:
    rows = Batch(out).run(
        completion("one", "hello", max_tokens=9), chat("two", "안녕"), response("three", "hi")
    )
    assert rows["one"]["error"] is None
    assert rows["one"]["response"]["status_code"] == 200
    assert rows["one"]["response"]["request_id"]
    body = rows["one"]["response"]["body"]
    assert (body["object"], body["choices"][0]["text"]) == ("text_completion", "hello")
    assert body["usage"]["completion_tokens"] == 5
    assert rows["two"]["response"]["body"]["choices"][0]["message"]["content"] == "<user>안녕<assistant>"
    assert rows["three"]["response"]["body"]["object"] == "response"


def test_many_lines_are_in_flight_and_no_more_than_allowed(out: Path) -> None:
    generator = Scripted(num_together=8)
    rows = Batch(out, generator).run(*(completion(str(number)) for number in range(40)), num_workers=8)
    assert len(rows) == 40
    assert generator.max_running == 8


def test_bad_lines_spoil_only_themselves_and_are_told_by_number(out: Path) -> None:
    batch = Batch(out)
    rows = batch.run(completion("a"), "{", completion("b", temperature=9), completion("c", model="other"))
    statuses = {name: row["response"] and row["response"]["status_code"] for name, row in rows.items()}
    assert statuses == {"a": 200, None: None, "b": 400, "c": 404}
    assert rows[None]["error"]["line"] == 2
    assert rows["b"]["error"] is None
    assert rows["b"]["response"]["body"]["error"]["param"] == "temperature"
    assert sorted(told.partition(":")[0] for told in batch.told) == ["line 2", "line 3 (b)", "line 4 (c)"]
    assert (batch.tally.num_answered, batch.tally.num_failed) == (1, 3)


def test_fields_that_nobody_reads_are_told(out: Path) -> None:
    batch = Batch(out)
    batch.run({**completion("a", wish="x"), "Priority": 1})
    assert batch.told == ["line 1 (a): ignored: Priority; ignored: wish"]


def test_second_run_asks_only_for_what_is_missing(out: Path) -> None:
    lines = [completion("a"), completion("b", temperature=9), "{", completion("c"), completion("a")]
    first = Batch(out).run(*lines[:3])
    batch = Batch(out)
    rows = batch.run(*lines)
    assert {name: rows[name] for name in ("b", None)} == {name: first[name] for name in ("b", None)}
    assert len(batch.service.generator.submissions) == 1
    assert len(out.read_text().splitlines()) == 5  # the second "a" is refused, and the first one stays
    assert (batch.tally.num_known, batch.tally.num_known_failed) == (3, 2)
    before = out.read_bytes()
    Batch(out).run(*lines)
    assert out.read_bytes() == before


@pytest.mark.parametrize(
    "refusal", [OverloadedError("full", retry_after_s=1), EngineDiedError("the engine has ended")]
)
def test_what_fails_beside_others_is_tried_again_alone(out: Path, refusal: Exception) -> None:
    generator = Scripted(refusal, refusal, None, refusal, num_together=4)
    batch = Batch(out, generator)
    rows = batch.run(*(completion(str(number)) for number in range(6)))
    assert {row["response"]["status_code"] for row in rows.values()} == {200}
    assert batch.told == []
    assert len(generator.submissions) == 6


def test_what_fails_alone_too_is_a_failure_and_the_others_are_answered(out: Path) -> None:
    generator = Scripted(*[EngineDiedError("the engine has ended")] * 2)
    rows = Batch(out, generator).run(*(completion(str(number)) for number in range(4)), num_workers=1)
    assert [row["response"]["status_code"] for row in rows.values()] == [503, 200, 200, 200]


def test_engine_that_is_gone_for_good_ends_the_batch_and_leaves_the_rest_to_the_next_run(out: Path) -> None:
    batch = Batch(out)
    batch.run(completion("a"))
    gone = Batch(out)
    gone.service.start_error = NotReadyError("the engine has ended", retry_after_s=None)
    with pytest.raises(NotReadyError):
        gone.run(completion("a"), completion("b"), completion("c"))
    rows = Batch(out).run(completion("a"), completion("b"), completion("c"))
    assert list(rows) == ["a", "b", "c"]


def test_cancelled_batch_ends_its_requests_and_keeps_what_was_answered(out: Path) -> None:
    generator = FakeGenerator()
    generator.pause_after = 2
    service, told = FakeService(generator), list[str]()
    app = create_app({"fake": service}, ServerConfig())
    lines = iter([Line(1, 9, "a", "/v1/completions", b'{"prompt":"hello"}')])

    async def run() -> None:
        with open_output(out) as output:
            batch = BatchRun(app, service, lines, output, Tally(None), told.append)
            running = asyncio.create_task(batch.run(2))
            while not generator.submissions:
                await asyncio.sleep(0)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

    asyncio.run(run())
    assert generator.num_aborted == 1
    assert out.read_bytes() == b""


def test_output_cut_anywhere_is_completed_to_the_same_answers(out: Path) -> None:
    """As after a kill at any moment: a cut every 61 bytes, and at each end of a row."""
    lines = [completion(name, f"prompt {name}") for name in "abc"] + ["{"]

    def bodies() -> dict[str, Any]:
        rows = [json.loads(row) for row in out.read_text().splitlines()]
        assert len(rows) == 4
        return {row["custom_id"]: row["response"] and row["response"]["body"]["choices"] for row in rows}

    batch = Batch(out)
    batch.run(*lines)
    undisturbed, written = bodies(), out.read_bytes()
    ends = {index + 1 for index, byte in enumerate(written) if byte == ord("\n")}
    for cut in sorted({*range(0, len(written), 61), *ends}):
        out.write_bytes(written[:cut])
        batch.run(*lines)
        assert bodies() == undisturbed
