"""The fields that say how many answers there are and what they tell beside their text."""

from abc import abstractmethod
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from legato.api.answers.report import Report
from legato.api.bodies.generation import Body, optional
from legato.api.limits import LIMITS, check_limit
from legato.core.errors import RequestError

Count = Annotated[int, Field(ge=0, lt=2**63)]


class StreamOptions(BaseModel):
    """What a stream tells beside the text."""

    model_config = ConfigDict(extra="allow", strict=True)

    include_usage: bool = Field(default=False, description="a last chunk with the usage of the whole call")
    continuous_usage_stats: bool = Field(default=False, description="the usage so far in every chunk")


class ReportFields(Body):
    """What both OpenAI routes have; each adds `logprobs` of its own kind."""

    stream: bool | None = optional("send the answer as it comes", False)
    stream_options: StreamOptions | None = optional("what a stream tells beside the text")
    n: Annotated[int, Field(ge=1, lt=2**63)] | None = optional(
        "answers to each prompt", 1, maximum=LIMITS["n"].maximum
    )
    best_of: Annotated[int, Field(ge=1, lt=2**63)] | None = optional("served when it equals n")
    prompt_logprobs: Count | None = optional(
        "logarithms of the probability of each token of the prompt, and of so many of the most probable ones",
        maximum=LIMITS["logprobs"].maximum,
    )
    return_token_ids: bool | None = optional("ids of the tokens of prompt and answer", False)
    return_tokens_as_token_ids: bool | None = optional("logprobs name tokens token_id:17", False)

    return_timings: bool | None = optional("tell where the answer's time went, as its `timings`", False)
    timings_per_token: bool | None = optional("the same, in every chunk of a stream", False)

    @property
    def num_answers(self) -> int:
        return 1 if self.n is None else self.n

    @property
    @abstractmethod
    def num_top_logprobs(self) -> int | None:
        """How many of the most probable tokens stand beside each token of the answer; None = no logprobs.

        Raises RequestError when fields contradict each other.
        """

    def report(self, **more: Any) -> Report:
        """What the answer is to tell; `more` are further arguments of Report. Raises RequestError."""
        check_limit("n", self.num_answers, param="n")
        if self.best_of is not None and self.best_of != self.num_answers:
            raise RequestError(
                f"best_of must equal n, which is {self.num_answers}: all answers are given",
                param="best_of",
                code="unsupported",
            )
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options needs stream: true", param="stream_options")
        if self.prompt_logprobs is not None and self.stream:
            raise RequestError("prompt_logprobs is not given in a stream", param="prompt_logprobs")
        check_limit("logprobs", self.prompt_logprobs or 0, param="prompt_logprobs")
        options = self.stream_options or StreamOptions()
        return Report(
            n=self.num_answers,
            logprobs=self.num_top_logprobs,
            prompt_logprobs=self.prompt_logprobs,
            token_ids=self.return_token_ids is True,
            tokens_as_ids=self.return_tokens_as_token_ids is True,
            include_usage=options.include_usage,
            continuous_usage=options.continuous_usage_stats,
            timings=self.return_timings is True or self.timings_per_token is True,
            timings_per_token=self.timings_per_token is True,
            **more,
        )
