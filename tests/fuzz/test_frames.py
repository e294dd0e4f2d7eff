"""Junk between the two processes: the channel closes with a reason, and nothing else happens."""

import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from legato.core.config import EngineConfig, SchedulerConfig
from legato.core.plan import TokenLogprobs
from legato.core.sampling_params import FinishReason, SamplingParams
from legato.ipc.channel import Channel, ChannelClosedError, client_end, encode_frame, engine_end
from legato.ipc.messages import (
    Abort,
    AddRequest,
    EngineStats,
    Failed,
    Message,
    Ready,
    RequestStats,
    Start,
    TokenOutput,
)
from tests.fuzz.examples import counts, damaged, memory_below, mutated, run_examples

MAX_MEMORY_BYTES = 8 * 2**20  # of which the channel's own buffer takes 1
LENGTH = struct.Struct("<I")

TO_ENGINE: list[Message] = [
    Start(config=EngineConfig()),
    AddRequest(
        request_id="a",
        token_ids=[1, 2, 3],
        params=SamplingParams(stop=("\n",), logit_bias={5: -1.5}, seed=2**63),
        seed=2**64 - 1,
    ),
    Abort(request_id="a"),
]
LEDGER = RequestStats(
    request_id="a", state="decoding", row=0, prompt_len=3, cached_len=0, device_len=3, max_device_len=9,
    extend_len=1, remain_len=6, pages=[0, 1], num_preemptions=0,
)  # fmt: skip
SCHEDULER = SchedulerConfig(
    max_num_seqs=4, max_step_tokens=64, mixed_prefill_tokens=16, long_prefill_tokens=None, max_model_len=64
)
FROM_ENGINE: list[Message] = [
    Ready(
        max_model_len=64,
        vocab_size=16,
        eos_ids=[2],
        num_pages=4,
        page_size=16,
        numeric_mode="f32",
        scheduler=SCHEDULER,
    ),
    TokenOutput(
        request_id="a",
        index=0,
        token_ids=[7],
        finish_reason=FinishReason.STOP,
        logprobs=[TokenLogprobs(-0.7, (7, 3), (-0.7, -1.25))],
    ),
    Failed(request_id="a", error="…"),
    EngineStats(requests=[LEDGER]),
]
ENDS: list[tuple[Callable[[socket.socket], Channel[Any]], list[Message]]] = [
    (engine_end, TO_ENGINE),
    (client_end, FROM_ENGINE),
]
each_end = pytest.mark.parametrize(("end", "messages"), ENDS, ids=["engine", "client"])


def receive_all(end: Callable[[socket.socket], Channel[Any]], data: bytes) -> list[Any]:
    """What a channel gives out of these bytes, until it closes."""
    ours, theirs = socket.socketpair()
    channel, received = end(theirs), []
    sender = threading.Thread(target=send_and_close, args=(ours, data))
    sender.start()
    with memory_below(MAX_MEMORY_BYTES + 40 * len(data)):
        try:
            while True:
                received += channel.receive(timeout_s=10)
        except ChannelClosedError:
            pass
    channel.close()
    sender.join()
    return received


def send_and_close(sock: socket.socket, data: bytes) -> None:
    with sock:
        try:
            sock.sendall(data)
        except OSError:
            return  # the reader has closed it first


@each_end
def test_whole_messages_arrive(end: Callable[..., Any], messages: list[Message]) -> None:
    assert receive_all(end, encode_frame(messages) + encode_frame(messages)) == messages * 2


@counts(30, 5_000)
@each_end
def test_damaged_frames(num_examples: int, end: Callable[..., Any], messages: list[Message]) -> None:
    whole = encode_frame(messages)

    def check(data: bytes) -> None:
        for received in receive_all(end, data):
            assert isinstance(received, Message)

    run_examples(num_examples, check, damaged(whole, len(whole)) | st.binary(max_size=64))


@counts(25, 5_000)
@each_end
def test_frames_of_odd_values(num_examples: int, end: Callable[..., Any], messages: list[Message]) -> None:
    def check(value: Any) -> None:
        try:
            payload = msgspec.msgpack.encode(value)
        except (OverflowError, RecursionError):  # what no msgpack can hold
            return
        for received in receive_all(end, LENGTH.pack(len(payload)) + payload):
            assert isinstance(received, Message)

    run_examples(num_examples, check, mutated(msgspec.to_builtins(messages)))


@each_end
@pytest.mark.parametrize(
    "data",
    [
        LENGTH.pack(2**32 - 1),
        LENGTH.pack(256 * 2**20 + 1) + b"\x90",
        LENGTH.pack(256 * 2**20) + b"\xdd\xff\xff\xff\xff",  # a length that is allowed, and never comes
        LENGTH.pack(5) + b"\xdd\xff\xff\xff\xff",  # a list of 2**32 messages
        LENGTH.pack(6) + b"\x91\xc6\xff\xff\xff\xff",  # a message of 4 GiB
        LENGTH.pack(100_000) + b"\x91" * 100_000,
        LENGTH.pack(3),
        b"\x01",
        b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ],
)
def test_junk_gives_no_message_and_takes_no_memory(
    end: Callable[..., Any], messages: list[Message], data: bytes
) -> None:
    assert receive_all(end, data) == []


def test_request_whose_settings_no_request_may_have_closes_the_channel() -> None:
    value = msgspec.to_builtins(TO_ENGINE[1])
    value["params"]["temperature"] = -5.0
    payload = msgspec.msgpack.encode([value])
    ours, theirs = socket.socketpair()
    channel = engine_end(theirs)
    with ours:
        ours.sendall(LENGTH.pack(len(payload)) + payload)
        with pytest.raises(ChannelClosedError, match="temperature must be"):
            channel.receive()
    channel.close()
