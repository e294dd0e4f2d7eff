"""Everything that crosses the process boundary; all about one request carries its request_id."""

import msgspec

from legato.core.config import EngineConfig, SchedulerConfig
from legato.core.plan import TokenLogprobs
from legato.core.sampling_params import FinishReason, SamplingParams
from legato.core.timing import Stretch, Timing


class Message(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Base of all messages; the tag is the class name."""


# API process -> engine process


class Start(Message, frozen=True):
    """First message: load this model. `config.model` is a local path by now.

    is_second  another engine has worked before this one
    """

    config: EngineConfig
    is_second: bool = False


class AddRequest(Message, frozen=True):
    """Compute an answer. The seed is drawn by the sender, so that the request can be repeated exactly.

    tenant      whose it is: the engine is shared fairly between them
    is_resumed  another engine had accepted it and is gone; it does not queue up again
    output_ids  tokens which that engine had given: the answer goes on after them
    is_suspect  engines have died in its steps: nobody is computed beside it until it has a token of this one
    """

    request_id: str
    token_ids: list[int]
    params: SamplingParams
    seed: int
    priority: int = 0
    cache_salt: str = ""
    tenant: str = ""
    is_resumed: bool = False
    output_ids: list[int] = []
    is_suspect: bool = False


class Abort(Message, frozen=True):
    """Nobody waits for this request any more; it is not answered."""

    request_id: str


class StatsQuery(Message, frozen=True):
    """Ask for EngineStats with the ledger of each request."""

    query_id: str


class Shutdown(Message, frozen=True):
    """End now; whatever still runs is dropped."""


# engine process -> API process


class Progress(Message, frozen=True):
    """A stage of the start is done, after so many seconds."""

    stage: str
    detail: str
    seconds: float


class Ready(Message, frozen=True):
    """The engine waits for work.

    scheduler  its bounds on requests, steps and the queue, as they were resolved
    """

    max_model_len: int
    vocab_size: int
    eos_ids: list[int]
    num_pages: int
    page_size: int
    numeric_mode: str
    scheduler: SchedulerConfig


class StartFailed(Message, frozen=True):
    """The model could not be loaded; the engine ends."""

    error: str


class Accepted(Message, frozen=True):
    """Validated and queued: from here on the request ends exactly once."""

    request_id: str


class Rejected(Message, frozen=True):
    """Never queued, by a fault of the request or because the queue is full.

    code   context_length_exceeded, kv_pool_exceeded, invalid_token_id, duplicate_request_id or queue_full
    param  the field at fault, if one is
    """

    request_id: str
    code: str
    message: str
    param: str | None = None


class Aborted(Message, frozen=True):
    """The answer to Abort; `course` is what it went through since its last message, if it still ran."""

    request_id: str
    course: Stretch | None = None


class TokenOutput(Message, frozen=True):
    """New tokens of a request.

    index          of the first of these tokens among the request's output
    finish_reason  set in the last message about the request
    cached_len     prompt tokens that came from the prefix cache, or from others that arrived with the request
    logprobs       of each of these tokens, if the request asks for them
    prompt_logprobs  of each token of the prompt but its first, if the request asks for them: with index 0
    timing         of the request, up to these tokens
    course         what the request went through since its last message
    """

    request_id: str
    index: int
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    cached_len: int = 0
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[TokenLogprobs] = []
    timing: Timing = Timing()
    course: Stretch | None = None


class Failed(Message, frozen=True):
    """The request ended by a fault that is not its own.

    code  engine_died; or of this one request: engine_poisoned, engines died of it; non_finite_logits, the
          model gave no usable numbers; or grammar_failed, its grammar could not be kept to the end
    """

    request_id: str
    error: str
    code: str = "engine_died"
    course: Stretch | None = None


class RequestStats(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger of one request, as `GET /stats` shows it."""

    request_id: str
    state: str
    row: int | None
    prompt_len: int
    cached_len: int
    device_len: int
    max_device_len: int
    extend_len: int
    remain_len: int
    pages: list[int]
    num_preemptions: int


class EngineStats(Message, frozen=True):
    """The engine's gauges and counters; sent after each step, and with `requests` when asked.

    Pages: held by requests + cached without a holder + free = all. Prefix counters are in tokens.

    waiting_tokens    of the prompts of those that wait
    prefilled_tokens  computed for prompts whose first token has not come
    tokens, busy_s    of all steps that are over: what they computed, and how long something was computed
    deaths            of engines before this one, as the API process has counted them
    """

    query_id: str = ""
    step: int = 0
    running: int = 0
    waiting: int = 0
    waiting_tokens: int = 0
    pages_held: int = 0
    pages_cached: int = 0
    pages_free: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    prefilled_tokens: int = 0
    tokens: int = 0
    busy_s: float = 0.0
    deaths: int = 0
    rounds: int = 0
    requests: list[RequestStats] = []
    courses: dict[str, Stretch] = {}

    def after(self, past: "EngineStats") -> "EngineStats":
        """The same, with counters that go on from those of engines that are gone."""
        sums = {name: getattr(past, name) + getattr(self, name) for name in _COUNTERS}
        return msgspec.structs.replace(self, **sums)


_COUNTERS = ("step", "prefix_queries", "prefix_hits", "preemptions", "deaths")

ToEngine = Start | AddRequest | Abort | StatsQuery | Shutdown
FromEngine = (
    Progress | Ready | StartFailed | Accepted | Rejected | Aborted | TokenOutput | Failed | EngineStats
)
