"""The course of a request over engines that die, and of one that nobody waits for any more."""

from legato.core.sampling_params import SamplingParams
from legato.core.timing import Part, Stretch
from legato.ipc.messages import Aborted, Accepted, AddRequest, TokenOutput
from legato.ipc.pending import PendingRequests
from legato.ipc.reply_router import Reply


class Process:
    """PendingRequests on a clock of its own, with one request "a" that was sent at 10 s and accepted."""

    def __init__(self) -> None:
        self.now = 10.0
        self.heard: list[Reply] = []
        self.pending = PendingRequests(lambda: self.now)
        request = AddRequest(request_id="a", token_ids=[1], params=SamplingParams(), seed=0)
        self.pending.add([request], self.heard.append)
        self.accept()

    def accept(self) -> None:
        self.pending.take_unsent()
        self.say(Accepted(request_id="a"))

    def say(self, message: Reply) -> None:
        if delivery := self.pending.record(message):
            sink, news = delivery
            sink(news)

    def token(self, index: int, start: float, end: float) -> None:
        course = Stretch(start, end, (Part("decode", end - start),))
        self.say(TokenOutput(request_id="a", index=index, token_ids=[5], course=course))


def test_time_in_engines_that_died_is_lost_and_the_way_to_the_next_a_restart() -> None:
    process = Process()
    process.token(0, 10.0, 11.0)
    for died_at in (13.0, 14.0):
        process.now = died_at
        process.pending.engine_died(["a"], "killed")
        process.accept()
    process.token(1, 16.0, 17.0)
    process.token(2, 17.0, 18.0)
    _, _, after, last = process.heard
    assert isinstance(after, TokenOutput)
    assert after.course == Stretch(11.0, 17.0, (Part("lost", 2.0), Part("restart", 3.0), Part("decode", 1.0)))
    assert isinstance(last, TokenOutput)
    assert last.course == Stretch(17.0, 18.0, (Part("decode", 1.0),))


def test_request_that_is_given_up_is_told_to_its_end_once_and_to_whom_asked() -> None:
    process, words = Process(), list[Reply]()
    process.token(0, 10.0, 11.0)
    assert process.pending.forget(["a"], words.append) == ["a"]
    process.token(1, 11.0, 12.0)  # under way when it was given up
    process.say(Aborted(request_id="a", course=Stretch(12.0, 12.5, (Part("decode", 0.5),))))
    process.say(Aborted(request_id="a"))
    assert words == [Aborted(request_id="a", course=Stretch(11.0, 12.5, (Part("decode", 1.5),)))]
    assert len(process.heard) == 2


def test_engine_that_dies_before_takes_the_last_word_with_it() -> None:
    process, words = Process(), list[Reply]()
    process.pending.forget(["a"], words.append)
    process.pending.engine_died(["a"], "killed")
    process.say(Aborted(request_id="a"))
    assert words == []
