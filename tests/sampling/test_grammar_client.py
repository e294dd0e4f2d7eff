"""The grammar worker as the engine sees it: masks by row, none for slow ones, a new worker after a death."""

import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from legato.sampling.grammar_client import GrammarClient, NoMaskError, WorkerGoneError
from legato.sampling.grammar_messages import Mask, NoMask, Prepared
from legato.tokenization.grammar_text import regex_grammar
from tests.tokenization.tiny_tokenizers import byte_level_backend

EOS_ID = 272
DIGITS = regex_grammar("[0-9]{2}x?")
WAIT_S = 60


@pytest.fixture
def client(tmp_path: Path) -> GrammarClient:
    byte_level_backend().save(str(tmp_path / "tokenizer.json"))
    return GrammarClient(tmp_path / "tokenizer.json", [EOS_ID])


def allowed(bits: bytes) -> list[int]:
    return [place for place in range(len(bits) * 8) if bits[place // 8] >> place % 8 & 1]


def test_rows_with_one_grammar_go_ways_of_their_own(client: GrammarClient) -> None:
    client.prepare(DIGITS).result(WAIT_S)
    first, second = client.begin(0, DIGITS, []), client.begin(1, DIGITS, [ord("1"), ord("2")])
    assert allowed(first.result(WAIT_S)) == list(range(ord("0"), ord("9") + 1))
    assert allowed(second.result(WAIT_S)) == [ord("x"), EOS_ID]
    first, second = client.advance([(0, ord("7")), (1, ord("x"))])
    assert allowed(first.result(WAIT_S)) == list(range(ord("0"), ord("9") + 1))
    assert allowed(second.result(WAIT_S)) == [EOS_ID]
    assert len(first.result()) % 4 == 0


def test_row_may_change_hands_before_its_mask_is_fetched(client: GrammarClient) -> None:
    client.begin(0, DIGITS, [])
    assert allowed(client.begin(0, regex_grammar("[ab]"), []).result(WAIT_S)) == [ord("a"), ord("b")]


def test_row_whose_mask_takes_too_long_gets_none_and_the_others_get_theirs(client: GrammarClient) -> None:
    slow = client.begin(0, regex_grammar("a{300000}"), [])
    others = [client.begin(row, DIGITS, []) for row in range(1, 9)]
    assert all(len(allowed(each.result(WAIT_S))) == 10 for each in others)
    with pytest.raises(NoMaskError, match=r"takes too long .* shorter"):
        slow.result(WAIT_S)


def test_bad_grammar_is_prepared_and_has_no_mask(client: GrammarClient) -> None:
    client.prepare("start: other").result(WAIT_S)
    with pytest.raises(NoMaskError, match="unknown name"):
        client.begin(0, "start: other", []).result(WAIT_S)


def test_after_a_death_rows_must_begin_again_with_another_worker(client: GrammarClient) -> None:
    before = client.begin(0, DIGITS, []).result(WAIT_S)
    assert client._worker is not None
    first_pid = client.pid
    client._worker.process.kill()
    client._worker.process.wait()
    client._worker._reader.join(WAIT_S)
    [advanced] = client.advance([(0, ord("1"))])
    with pytest.raises(WorkerGoneError):
        advanced.result(WAIT_S)
    assert client.begin(0, DIGITS, []).result(WAIT_S) == before
    assert client.pid != first_pid


def test_those_who_wait_hear_of_a_death(client: GrammarClient) -> None:
    waiting = client.begin(0, DIGITS, []), client.prepare(DIGITS)
    assert client._worker is not None
    client._worker.process.kill()
    with pytest.raises(WorkerGoneError):
        waiting[0].result(WAIT_S)
    waiting[1].result(WAIT_S)


def test_slow_mask_is_given_up_by_a_worker_that_is_told_nothing_else_meanwhile(
    client: GrammarClient,
) -> None:
    for character in "abcd":
        slow = regex_grammar(character + "{300000}")
        client.prepare(slow).result(WAIT_S)
        client.begin(0, DIGITS, []).result(WAIT_S)  # its thread takes up the next one, as the worker sleeps
        with pytest.raises(NoMaskError, match="takes too long"):
            client.begin(1, slow, []).result(WAIT_S)


def test_dead_workers_leave_no_descriptors(client: GrammarClient) -> None:
    channels = []
    for _ in range(2):
        client.begin(0, DIGITS, []).result(WAIT_S)
        assert client._worker is not None
        channels.append(client._worker._channel)
        client._worker.process.kill()
        client._worker._reader.join(WAIT_S)
    client.begin(0, DIGITS, []).result(WAIT_S)
    assert [channel._socket.fileno() for channel in channels] == [-1, -1]


def stop(client: GrammarClient) -> int:
    """Have the worker run, but answer nothing."""
    client.begin(0, DIGITS, []).result(WAIT_S)
    assert client.pid is not None
    os.kill(client.pid, signal.SIGSTOP)
    return client.pid


def test_a_worker_that_is_busy_holds_up_nobody_who_asks(client: GrammarClient) -> None:
    pid = stop(client)
    long = DIGITS + " " * 2**16
    asked = []
    # far more than a socket holds
    asker = threading.Thread(
        target=lambda: asked.extend(client.begin(row, long, []) for row in range(32)), daemon=True
    )
    asker.start()
    asker.join(WAIT_S)
    is_held_up = asker.is_alive()
    os.kill(pid, signal.SIGCONT)
    assert not is_held_up
    assert all(len(allowed(each.result(WAIT_S))) == 10 for each in asked)


def test_a_death_says_whether_the_worker_had_anything_else_to_do(client: GrammarClient) -> None:
    for num_asked in (1, 2):
        pid = stop(client)
        masks = [client.begin(row, DIGITS, []) for row in range(num_asked)]
        os.kill(pid, signal.SIGKILL)
        for mask in masks:
            with pytest.raises(WorkerGoneError) as error:
                mask.result(WAIT_S)
            assert error.value.was_alone == (num_asked == 1)


def no_process(*args: object, **settings: object) -> None:
    raise OSError(12, "Cannot allocate memory")


def no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize(
    ("owner", "name", "fault"),
    [
        (subprocess, "Popen", no_process),
        (threading.Thread, "start", no_thread),
    ],
)
def test_a_worker_that_cannot_be_started_is_told_to_each_row_and_tried_again(
    client: GrammarClient, owner: object, name: str, fault: object
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, fault)
        assert client.prepare(DIGITS).done()
        mask = client.begin(0, DIGITS, [])
        with pytest.raises(NoMaskError, match=r"cannot be started .*: try again later"):
            mask.result(0)
    assert len(allowed(client.begin(0, DIGITS, []).result(WAIT_S))) == 10


def test_a_second_answer_to_one_question_is_no_news(client: GrammarClient) -> None:
    client.begin(0, DIGITS, []).result(WAIT_S)
    assert client._worker is not None
    for late in (Mask(ticket=0, bits=b""), NoMask(ticket=0, reason="late"), Prepared(grammar=DIGITS)):
        client._worker._take(late)
    client._worker.end()


def test_those_who_wait_hear_of_a_fault_of_the_reader(
    client: GrammarClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("legato.sampling.grammar_client._RunningWorker._take", lambda *_: 1 // 0)
        with pytest.raises(WorkerGoneError):
            client.begin(0, DIGITS, []).result(WAIT_S)
    assert "cannot be read" in caplog.text
    assert len(allowed(client.begin(0, DIGITS, []).result(WAIT_S))) == 10
