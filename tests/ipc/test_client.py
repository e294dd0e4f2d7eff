"""The client over real engine processes: answers by id, deaths heard at once, the next engine, clean ends."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from legato.core.config import EngineConfig
from legato.core.errors import ClosedError, NotReadyError, RequestError
from legato.core.sampling_params import FinishReason, SamplingParams
from legato.ipc.client import ProcessClient
from legato.ipc.engine_client import EngineStage
from legato.ipc.messages import Accepted, AddRequest, EngineStats, Failed, Rejected, TokenOutput
from legato.ipc.reply_router import Reply
from legato.ipc.supervisor import EngineProcess, RestartBudget, start_engine

Replies = SimpleQueue[Reply]


class Engines:
    """Starts engines and remembers them, so that a test can kill the one that runs."""

    def __init__(self, module: str = "legato.engine") -> None:
        self.started: list[EngineProcess] = []
        self._module = module

    def __call__(self) -> EngineProcess:
        self.started.append(start_engine(self._module))
        return self.started[-1]


@pytest.fixture
def engines() -> Engines:
    return Engines()


@pytest.fixture
def client(tiny_model: Path, engines: Engines) -> Iterator[ProcessClient]:
    client = ProcessClient(EngineConfig(model=str(tiny_model)), spawn=engines)
    client.start()
    client.wait_ready(30)
    yield client
    client.close()


def request(request_id: str, *, first_id: int = 1, max_tokens: int = 5) -> AddRequest:
    params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
    return AddRequest(request_id=request_id, token_ids=[first_id, 2, 3], params=params, seed=0)


def tokens_of(replies: Replies, timeout_s: float = 20) -> list[int]:
    """The tokens of one request, up to its end."""
    tokens: list[int] = []
    while True:
        reply = replies.get(timeout=timeout_s)
        if isinstance(reply, TokenOutput):
            tokens += reply.token_ids
            if reply.finish_reason:
                return tokens
        else:
            assert isinstance(reply, Accepted)


def wait_until(condition: Callable[[], bool], timeout_s: float = 20) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def test_answers_go_to_who_asked_in_order(client: ProcessClient) -> None:
    sinks: dict[str, Replies] = {f"r{i}": SimpleQueue() for i in range(8)}
    for number, (request_id, replies) in enumerate(sinks.items()):
        client.submit([request(request_id, first_id=number)], replies.put)
    together = [tokens_of(replies) for replies in sinks.values()]
    alone: Replies = SimpleQueue()
    client.submit([request("again", first_id=3)], alone.put)
    assert tokens_of(alone) == together[3]
    assert len({tuple(tokens) for tokens in together}) == 8


@pytest.mark.parametrize(
    ("ids", "max_tokens", "code"),
    [
        ([1] * 600, 5, "context_length_exceeded"),
        ([1], 600, "context_length_exceeded"),
        ([99999], 5, "invalid_token_id"),
    ],
)
def test_request_that_can_never_be_served_is_rejected(
    client: ProcessClient, ids: list[int], max_tokens: int, code: str
) -> None:
    replies: Replies = SimpleQueue()
    params = SamplingParams(max_tokens=max_tokens)
    client.submit([AddRequest(request_id="bad", token_ids=ids, params=params, seed=0)], replies.put)
    reply = replies.get(timeout=20)
    assert isinstance(reply, Rejected)
    assert reply.code == code
    assert reply.param == "prompt"


def test_request_that_cannot_be_sent_is_its_callers_fault_alone(client: ProcessClient) -> None:
    broken = AddRequest(request_id="x", token_ids=[1], params=SamplingParams(), seed=0, cache_salt="\ud800")
    with pytest.raises(RequestError, match="cannot be sent"):
        client.submit([broken], lambda _: None)
    replies: Replies = SimpleQueue()
    client.submit([request("fine")], replies.put)
    assert len(tokens_of(replies)) == 5


def test_statistics_hold_the_ledger_of_each_request(client: ProcessClient) -> None:
    replies: Replies = SimpleQueue()
    client.submit([request("long", max_tokens=500)], replies.put)
    assert isinstance(replies.get(timeout=20), Accepted)
    answers: SimpleQueue[EngineStats] = SimpleQueue()
    client.query_stats(answers.put)
    (ledger,) = answers.get(timeout=20).requests
    assert ledger.request_id == "long"
    assert (ledger.prompt_len, ledger.max_device_len) == (3, 503)
    assert ledger.extend_len == ledger.device_len - ledger.cached_len
    assert ledger.remain_len == 503 - ledger.device_len


def test_abort_ends_the_request_and_frees_its_pages(client: ProcessClient) -> None:
    replies: Replies = SimpleQueue()
    client.submit([request("gone", max_tokens=500)], replies.put)
    assert isinstance(replies.get(timeout=20), Accepted)
    client.abort(["gone"])
    wait_until(lambda: client.latest_stats.running == 0 and client.latest_stats.pages_held == 0)
    assert client.latest_stats.step < 500


def test_killed_engine_is_replaced_and_its_requests_go_on(client: ProcessClient, engines: Engines) -> None:
    calm: Replies = SimpleQueue()
    client.submit([request("calm", max_tokens=200)], calm.put)
    undisturbed = tokens_of(calm)
    replies: Replies = SimpleQueue()
    client.submit([request("disturbed", max_tokens=200)], replies.put)
    assert isinstance(replies.get(timeout=20), Accepted)
    first = replies.get(timeout=20)
    assert isinstance(first, TokenOutput)
    engines.started[0].process.send_signal(signal.SIGKILL)
    assert first.token_ids + tokens_of(replies) == undisturbed
    assert len(engines.started) == 2
    wait_until(lambda: client.latest_stats.deaths == 1)


def test_request_sent_while_the_next_engine_loads_is_answered(
    client: ProcessClient, engines: Engines
) -> None:
    engines.started[0].process.kill()
    wait_until(lambda: client.status.stage is EngineStage.LOADING)
    replies: Replies = SimpleQueue()
    client.submit([request("patient")], replies.put)
    assert len(tokens_of(replies)) == 5


def test_request_between_two_engines_waits_for_the_second(tiny_model: Path) -> None:
    """Also before the first: nothing is sent to an engine that is gone, or not there yet."""
    may_start = threading.Semaphore(0)
    engines = Engines()

    def spawn() -> EngineProcess:
        assert may_start.acquire(timeout=20)
        return engines()

    client = ProcessClient(EngineConfig(model=str(tiny_model)), spawn=spawn)
    client.start()
    for number in range(2):
        replies: Replies = SimpleQueue()
        client.submit([request(f"early {number}")], replies.put)
        may_start.release()
        assert len(tokens_of(replies)) == 5
        engines.started[number].process.kill()
        wait_until(lambda: client.status.stage is EngineStage.LOADING)
    may_start.release()
    client.close()


def test_engine_that_hangs_at_work_is_replaced(tiny_model: Path, engines: Engines) -> None:
    config = EngineConfig(model=str(tiny_model), watchdog_s=1)
    client = ProcessClient(config, spawn=engines)
    client.start()
    client.wait_ready(30)
    engines.started[0].process.send_signal(signal.SIGSTOP)
    replies: Replies = SimpleQueue()
    client.submit([request("stopped")], replies.put)
    assert len(tokens_of(replies)) == 5
    assert engines.started[0].process.returncode == -signal.SIGKILL
    client.close()


def test_engine_that_hangs_while_it_loads_is_replaced(
    tiny_model: Path, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legato.ipc.client.LOADING_LIMIT_S", 4)
    config = EngineConfig(model=str(tiny_model), watchdog_s=1)
    client = ProcessClient(config, spawn=engines)
    client.start()
    wait_until(lambda: len(engines.started) == 1)
    engines.started[0].process.send_signal(signal.SIGSTOP)
    client.wait_ready(30)
    assert engines.started[0].process.returncode == -signal.SIGKILL
    client.close()


def test_who_waits_is_told_of_the_engine_that_works_and_of_none_that_dies_before(
    tiny_model: Path, engines: Engines
) -> None:
    may_start = threading.Semaphore(1)

    def spawn() -> EngineProcess:
        may_start.acquire(timeout=20)
        return engines()

    budget = RestartBudget(delays_s=[0.0] * 5)
    client = ProcessClient(EngineConfig(model=str(tiny_model)), spawn=spawn, budget=budget)
    client.start()
    client.wait_ready(30)
    engines.started[0].process.kill()
    wait_until(lambda: client.status.stage is EngineStage.LOADING)
    waiting = client.when_ready()
    may_start.release()
    wait_until(lambda: len(engines.started) == 2)
    engines.started[1].process.kill()  # while it loads
    may_start.release()
    ready = waiting.result(timeout=30)
    assert len(engines.started) == 3
    engines.started[2].process.kill()
    wait_until(lambda: client.ready is None)
    assert ready.vocab_size > 0  # also a moment later: what the next engine takes is the same
    may_start.release()
    client.close()


def test_engine_that_keeps_dying_is_given_up(tiny_model: Path, engines: Engines) -> None:
    budget = RestartBudget(delays_s=[0.0])
    client = ProcessClient(EngineConfig(model=str(tiny_model)), spawn=engines, budget=budget)
    client.start()
    for number in range(2):
        wait_until(lambda number=number: len(engines.started) == number + 1)
        engines.started[number].process.kill()
    wait_until(lambda: client.status.stage is EngineStage.FAILED)
    with pytest.raises(NotReadyError, match="SIGKILL"):
        client.submit([request("late")], lambda _: None)
    with pytest.raises(NotReadyError, match=r"^the engine process has ended .*SIGKILL") as gone:
        client.wait_ready(1)
    assert gone.value.retry_after_s is None
    client.close()


def test_query_in_an_engine_that_dies_is_answered_by_its_death(
    client: ProcessClient, engines: Engines
) -> None:
    engines.started[0].process.send_signal(signal.SIGSTOP)  # it hears the query no more
    answers: SimpleQueue[EngineStats | Failed] = SimpleQueue()
    client.query_stats(answers.put)
    engines.started[0].process.kill()
    answer = answers.get(timeout=20)
    assert isinstance(answer, Failed)
    assert "SIGKILL" in answer.error


def test_fault_of_the_client_itself_ends_the_start(
    tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def spawn() -> EngineProcess:
        raise ZeroDivisionError("a planted fault")

    client = ProcessClient(EngineConfig(model=str(tiny_model)), spawn=spawn)
    client.start()
    with pytest.raises(NotReadyError, match="a planted fault"):
        client.when_ready().result(timeout=20)
    assert client.status.stage is EngineStage.FAILED
    with pytest.raises(NotReadyError, match="a planted fault"):
        client.wait_ready(0)
    assert "Traceback" in caplog.text
    client.close()


def test_fault_at_a_message_ends_the_engine_and_whoever_waits(
    client: ProcessClient, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(message: object) -> None:
        raise ZeroDivisionError("a planted fault")

    monkeypatch.setattr(client._router, "route", break_down)
    replies: Replies = SimpleQueue()
    client.submit([request("lost", max_tokens=500)], replies.put)
    last = replies.get(timeout=20)
    assert isinstance(last, Failed)
    assert "a planted fault" in last.error
    assert client.status.stage is EngineStage.FAILED
    assert engines.started[0].process.returncode is not None


def test_who_waits_for_the_start_is_told_of_its_end_and_may_leave(tiny_model: Path) -> None:
    may_spawn = threading.Event()

    def spawn() -> EngineProcess:
        may_spawn.wait(20)
        return start_engine()

    client = ProcessClient(EngineConfig(model=str(tiny_model)), spawn=spawn)
    assert isinstance(client.when_ready().exception(0), NotReadyError)  # nothing is on its way
    client.start()
    waiting, left = client.when_ready(), client.when_ready()
    assert left.cancel()
    assert client._awaited == {waiting}
    may_spawn.set()
    assert waiting.result(timeout=30).vocab_size > 0
    client.close()
    assert isinstance(client.when_ready().exception(0), ClosedError)
    with pytest.raises(ClosedError):
        client.query_stats(lambda _: None)


@pytest.mark.parametrize(
    ("fault", "reason", "num_engines"),
    [
        ("TypeError", r"tiny: the model could not be loaded \(TypeError: a planted fault\); see the log", 1),
        ("MemoryError", r"the engine process has ended \(exit code 1\)", 2),
    ],
)
def test_of_faults_while_a_model_loads_want_of_memory_alone_is_tried_again(
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    fault: str,
    reason: str,
    num_engines: int,
) -> None:
    monkeypatch.setenv("LEGATO_TEST_FAULT", fault)
    engines = Engines("tests.ipc.faulty_loading")
    budget = RestartBudget(delays_s=[0.0])
    client = ProcessClient(EngineConfig(model=str(tiny_model)), spawn=engines, budget=budget)
    client.start()
    with pytest.raises(NotReadyError, match=reason):
        client.wait_ready(30)
    assert client.status.stage is EngineStage.FAILED
    assert len(engines.started) == num_engines
    assert capfd.readouterr().err.count("Traceback") == num_engines
    client.close()


def test_model_that_cannot_be_loaded_fails_the_start_with_its_reason(tmp_path: Path) -> None:
    client = ProcessClient(EngineConfig(model=str(tmp_path)))
    client.start()
    with pytest.raises(NotReadyError, match=r"config\.json"):
        client.wait_ready(20)
    assert client.status.stage is EngineStage.FAILED
    client.close()


def test_close_ends_the_process_and_fails_who_waits(client: ProcessClient, engines: Engines) -> None:
    replies: Replies = SimpleQueue()
    client.submit([request("cut", max_tokens=500)], replies.put)
    assert isinstance(replies.get(timeout=20), Accepted)
    client.close()
    assert engines.started[0].process.returncode == 0
    last = replies.get(timeout=20)
    while isinstance(last, TokenOutput):
        last = replies.get(timeout=20)
    assert isinstance(last, Failed) or (
        isinstance(last, TokenOutput) and last.finish_reason is FinishReason.LENGTH
    )


def test_engine_ends_when_its_parent_is_killed(tiny_model: Path) -> None:
    script = (
        "import sys, time\n"
        "from legato.ipc.client import ProcessClient\n"
        "from legato.core.config import EngineConfig\n"
        "from legato.ipc.supervisor import start_engine\n"
        "def spawn():\n    process = start_engine(); print(process.pid, flush=True); return process\n"
        "client = ProcessClient(EngineConfig(model=sys.argv[1]), spawn=spawn)\n"
        "client.start(); client.wait_ready(30); print('ready', flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(tiny_model)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    engine_pid = int(parent.stdout.readline())
    assert parent.stdout.readline() == "ready\n"
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not is_running(engine_pid))


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_is_running_knows_this_process() -> None:
    assert is_running(os.getpid())
