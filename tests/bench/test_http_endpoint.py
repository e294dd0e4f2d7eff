"""Streamed answers: their times and lengths, however they are cut, and what is wrong with them."""

import asyncio
from itertools import count

import pytest

from legato.bench.endpoint import BenchError
from legato.bench.http_endpoint import open_endpoint, read_answer
from legato.bench.works import WorkRequest
from legato.core.errors import ConfigError
from tests.bench.fake_openai import FakeOpenAI, serving

TOKEN = b'data: {"choices": [{"text": "a", "finish_reason": null}]}\n\n'
LAST = b'data: {"choices": [{"text": "", "finish_reason": "length"}], "usage": {"completion_tokens": 2}}\n\n'
HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


def test_server_is_asked_for_its_first_model_and_for_token_ids() -> None:
    server = FakeOpenAI("fake", [])
    with serving(server):
        answer = asyncio.run(open_endpoint("fake", server.url).complete(WorkRequest([5, 6, 7], 4)))
    assert answer.num_tokens == len(answer.token_times_s) == 4
    assert answer.started_s <= answer.token_times_s[0] <= answer.token_times_s[-1] <= answer.ended_s
    assert server.bodies == [
        {
            "model": "fake-model",
            "prompt": [5, 6, 7],
            "max_tokens": 4,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_answer_is_read_however_it_is_cut(size: int, is_chunked: bool) -> None:
    events = [TOKEN, TOKEN, LAST, b"data: [DONE]\n\n"]
    whole = HEAD + b"".join(events)
    if is_chunked:
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n"
        whole = head + b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in [*events, b""])
    packets = zip(count(10.0), [whole[i : i + size] for i in range(0, len(whole), size)], strict=False)
    answer = read_answer(3.0, packets)
    assert (answer.started_s, answer.num_tokens, len(answer.token_times_s)) == (3.0, 2, 2)
    assert 10.0 <= answer.token_times_s[0] <= answer.token_times_s[1] <= answer.ended_s


def test_token_has_the_time_of_the_packet_that_completes_it() -> None:
    answer = read_answer(
        0.0, [(1.0, HEAD + TOKEN[:9]), (2.0, TOKEN[9:] + TOKEN[:5]), (3.0, TOKEN[5:]), (4.0, LAST)]
    )
    assert answer.token_times_s == [2.0, 3.0]
    assert answer.ended_s == 4.0


@pytest.mark.parametrize(
    ("received", "error"),
    [
        ([], "closed without an answer"),
        ([HEAD[:9]], "closed without an answer"),
        ([b"HTTP/1.1 404 Not Found\r\n\r\n{no ", b"such model}"], "404 Not Found {no such model}"),
        ([HEAD + TOKEN], "ended without `usage`"),
        ([HEAD + b'data: {"error": {"message": "out of memory"}}\n\n'], "out of memory"),
        ([HEAD + b"data: {\n\n"], "not a stream of events"),
    ],
)
def test_answer_that_is_none_is_told(received: list[bytes], error: str) -> None:
    with pytest.raises(BenchError, match=error):
        read_answer(0.0, enumerate(received))


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000", "https://127.0.0.1", "http://", "http://a:b", "http://a:99999", "http://["]
)
def test_url_of_another_kind_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="expected a URL like"):
        open_endpoint("other", url)


def test_server_that_is_not_there_is_named() -> None:
    server = FakeOpenAI("gone", [])
    with serving(server):
        endpoint = open_endpoint("gone", server.url)
    with pytest.raises(BenchError, match="the connection failed"):
        asyncio.run(endpoint.complete(WorkRequest([1], 1)))
    with pytest.raises(ConfigError, match=r"http://.*: nothing answers there \(connection refused\)"):
        open_endpoint("gone", server.url)
