"""Simulated clients: each knows what it must be told, and asserts that it is told just that, once."""

from dataclasses import dataclass, field
from math import isclose

from legato.core.sampling_params import FinishReason, SamplingParams
from legato.core.timing import UNEXPLAINED, Course
from legato.ipc.messages import Accepted, AddRequest, Failed, Rejected, TokenOutput
from legato.ipc.reply_router import Reply
from legato.sim.fake_model import EOS, expected_output, expected_scores
from legato.sim.scenario import Ask


@dataclass(slots=True)
class Client:
    """Waits for one answer; `sink` is what PendingRequests hands its news to."""

    ask: Ask
    sent_at: float
    output_ids: list[int] = field(default_factory=list)
    is_accepted: bool = False
    has_left: bool = False
    end: str | None = None  # how the request ended
    course: Course = field(init=False)

    def __post_init__(self) -> None:
        self.course = Course(self.sent_at)

    def message(self) -> AddRequest:
        params = SamplingParams(
            max_tokens=self.ask.max_tokens,
            seed=self.ask.seed,
            prompt_logprobs=0 if self.ask.is_scored else None,
        )
        return AddRequest(
            request_id=self.ask.request_id,
            token_ids=list(self.ask.prompt),
            params=params,
            seed=self.ask.seed,
            priority=self.ask.priority,
            cache_salt=self.ask.cache_salt,
            tenant=self.ask.tenant,
        )

    def sink(self, reply: Reply) -> None:
        assert reply.request_id == self.ask.request_id, f"{self.ask.request_id} is told {reply}"
        assert not self.has_left, f"{self.ask.request_id} has left and is told {reply}"
        assert self.end is None, f"{self.ask.request_id} has ended ({self.end}) and is told {reply}"
        match reply:
            case Accepted():
                assert not self.is_accepted, f"{self.ask.request_id} is accepted twice"
                self.is_accepted = True
            case Rejected():
                assert not self.is_accepted, f"{self.ask.request_id} is accepted, then {reply}"
                assert reply.code == "queue_full", f"{self.ask.request_id}: {reply}"
                self.end = reply.code
            case Failed():
                assert reply.code == "engine_poisoned", f"{self.ask.request_id}: {reply}"
                self.end = reply.code
            case TokenOutput():
                self._take(reply)

    def check_ended(self) -> None:
        """Assert that the answer is whole."""
        assert self.has_left or self.end is not None, f"{self.ask.request_id} never ends"
        if self.ask.is_poison and not self.has_left:
            assert self.end in ("engine_poisoned", "queue_full"), f"{self.ask.request_id} ends: {self.end}"

    def _explain(self, output: TokenOutput) -> None:
        """Assert that every moment of the request is accounted for, up to this output."""
        assert output.course is not None
        self.course.go_on(output.course)
        causes = [part.cause for part in self.course.parts]
        assert UNEXPLAINED not in causes, f"{self.ask.request_id}: {self.course.parts}"
        seconds = sum(part.seconds for part in self.course.parts)
        elapsed_s = self.course.until - self.sent_at
        assert isclose(seconds, elapsed_s, rel_tol=1e-9, abs_tol=1e-6), f"{seconds} s of {elapsed_s} s"

    def _take(self, output: TokenOutput) -> None:
        name = self.ask.request_id
        assert self.is_accepted, f"{name} gets tokens before it is accepted"
        assert output.index == len(self.output_ids), f"{name}: token {output.index} after {self.output_ids}"
        if output.prompt_logprobs or (self.ask.is_scored and output.index == 0):
            scores = [each.logprob for each in output.prompt_logprobs]
            assert scores == expected_scores(self.ask.prompt), f"{name}: scores {scores}"
        self._explain(output)
        self.output_ids += output.token_ids
        expected = expected_output(self.ask.prompt, self.ask.max_tokens, self.ask.seed)
        known_len = len(self.output_ids)
        assert self.output_ids == expected[:known_len], f"{name}: {self.output_ids}, expected {expected}"
        if output.finish_reason is None:
            assert known_len < len(expected), f"{name} has all its tokens and no end"
            return
        assert known_len == len(expected), f"{name} ends after {known_len} of {len(expected)} tokens"
        is_stopped = bool(expected) and expected[-1] == EOS
        right = FinishReason.STOP if is_stopped else FinishReason.LENGTH
        assert output.finish_reason is right, f"{name} ends by {output.finish_reason}"
        self.end = right.value
