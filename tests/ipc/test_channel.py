"""Frames over a socket pair: whole, together, bounded."""

import os
import resource
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from legato.core.plan import TokenLogprobs
from legato.core.sampling_params import FinishReason, SamplingParams
from legato.ipc.channel import Channel, ChannelClosedError, client_end, engine_end
from legato.ipc.messages import Abort, AddRequest, FromEngine, Shutdown, ToEngine, TokenOutput

Ends = tuple[Channel[FromEngine], Channel[ToEngine]]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = socket.socketpair()
    client, engine = client_end(ours), engine_end(theirs)
    yield client, engine
    client.close()
    engine.close()


def request(request_id: str, prompt_len: int = 3) -> AddRequest:
    params = SamplingParams(max_tokens=None, stop=("\n",), logit_bias={5: -1.5}, seed=2**63)
    return AddRequest(request_id=request_id, token_ids=list(range(prompt_len)), params=params, seed=2**64 - 1)


def test_messages_arrive_as_they_were_sent(ends: Ends) -> None:
    client, engine = ends
    client.send([request("a"), Abort(request_id="b")])
    assert engine.receive() == [request("a"), Abort(request_id="b")]
    logprobs = TokenLogprobs(-0.7, (7, 3), (-0.7, -1.25))
    output = TokenOutput(request_id="a", index=0, token_ids=[7], finish_reason=FinishReason.STOP)
    reported = TokenOutput(request_id="b", index=0, token_ids=[7], logprobs=[logprobs])
    engine.send([output, reported])
    assert client.receive() == [output, reported]


def test_requests_sent_together_are_received_together(ends: Ends) -> None:
    client, engine = ends
    requests = [request(f"r{number}", prompt_len=4000) for number in range(100)]
    sender = threading.Thread(target=client.send, args=(requests,))
    sender.start()
    assert engine.receive() == requests
    sender.join()


def test_frames_that_wait_are_taken_in_one_call(ends: Ends) -> None:
    client, engine = ends
    client.send([Abort(request_id="a")])
    client.send([Abort(request_id="b")])
    assert engine.receive() == [Abort(request_id="a"), Abort(request_id="b")]


def test_receive_does_not_wait_when_told_not_to(ends: Ends) -> None:
    assert ends[1].receive(timeout_s=0) == []


def test_messages_before_the_end_are_not_lost(ends: Ends) -> None:
    client, engine = ends
    client.send([Shutdown()])
    client.close()
    assert engine.receive() == [Shutdown()]
    with pytest.raises(ChannelClosedError):
        engine.receive()


def test_sending_to_nobody_says_so(ends: Ends) -> None:
    client, engine = ends
    engine.close()
    with pytest.raises(ChannelClosedError):
        client.send([Shutdown()])


@pytest.mark.parametrize("junk", [struct.pack("<I", 2**31) + b"x", struct.pack("<I", 3) + b"abc"])
def test_junk_closes_the_channel(junk: bytes) -> None:
    ours, theirs = socket.socketpair()
    channel = engine_end(theirs)
    with ours:
        ours.sendall(junk)
        with pytest.raises(ChannelClosedError, match="protocol"):
            channel.receive()
    channel.close()


def test_descriptor_above_1023_is_read() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1501), hard))
    ours, theirs = socket.socketpair()
    high = os.dup2(theirs.fileno(), 1500)
    theirs.close()
    engine = engine_end(socket.socket(fileno=high))
    client_end(ours).send([Abort(request_id="a")])
    assert engine.receive(timeout_s=5) == [Abort(request_id="a")]
    engine.close()
    ours.close()
