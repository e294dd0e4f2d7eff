"""The ledger of one request: what is computed, what is granted, what is left."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from legato.core.plan import NO_POSITIONS, TokenLogprobs
from legato.core.sampling_params import FinishReason, SamplingParams


class RequestState(StrEnum):
    """Where a request is; `docs/request_states.md` draws the moves between them."""

    WAITING = "waiting"  # holds no row and no page
    PREFILLING = "prefilling"  # admitted; part of its known tokens is still to be granted
    DECODING = "decoding"  # every known token is granted: each step grants one more
    FINISHED = "finished"  # gave row and pages back


class LedgerError(AssertionError):
    """A move broke the ledger's invariant: a fault of ours, never of a client."""


@dataclass(slots=True, kw_only=True)
class Request:
    """Ledger of one request; every length counts tokens from position 0.

    [0, cached_len)               K/V written, in pages this request holds
    [cached_len, device_len)      ids on the device; the next forward computes their K/V
    [device_len, max_device_len)  still to be granted or sampled

    A request with params.prompt_logprobs is scored: the logits of each of its prompt's positions but the last
    are computed for it, so that K/V of others cannot stand in for them. A preemption does not undo that.

    Invariant: 0 <= cached_len <= device_len <= max_device_len. Source: the `Req` of mini-sglang.
    """

    request_id: str
    token_ids: list[int]  # known to the host; one behind the device while a step is in flight
    prompt_len: int
    max_device_len: int
    params: SamplingParams
    seed: int = 0
    priority: int = 0  # lower runs earlier
    arrival: int = 0  # rank of arrival; breaks ties of priority
    cache_salt: str = ""
    tenant: str = ""  # whose it is, where the engine is shared fairly
    ending_ids: frozenset[int] = frozenset()  # end-of-sequence and stop token ids that end this request
    is_suspect: bool = False  # it may end the engine: its steps are its own until it has sampled

    cached_len: int = 0
    device_len: int = 0
    row: int | None = None
    state: RequestState = RequestState.WAITING
    finish_reason: FinishReason | None = None
    hit_len: int = 0  # prompt tokens that it need not compute, since the prefix cache had them
    num_preemptions: int = 0
    num_yields: int = 0  # of these, those in favour of a tenant that has been served less
    last_turn: int = -1  # rank of its last turn among all that the scheduler has given
    pages_written: int = field(default=0, repr=False)  # pages that the executor's table knows already
    score_end: int = field(init=False)  # positions that are scored: all of the prompt's but the last, or none
    scored_len: int = 0  # of these, those that launched forwards have computed
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list, repr=False)  # until the first output

    def __post_init__(self) -> None:
        self.score_end = self.prompt_len - 1 if self.is_scored else 0

    @property
    def extend_len(self) -> int:
        """Tokens that the next forward computes: many in prefill, one in decode."""
        return self.device_len - self.cached_len

    @property
    def remain_len(self) -> int:
        """Tokens still to be granted or sampled."""
        return self.max_device_len - self.device_len

    @property
    def output_len(self) -> int:
        """Output tokens known to the host."""
        return len(self.token_ids) - self.prompt_len

    @property
    def is_admitted(self) -> bool:
        return self.row is not None

    @property
    def is_scored(self) -> bool:
        """Whether logprobs of its prompt are asked for."""
        return self.params.prompt_logprobs is not None

    @property
    def is_scoring(self) -> bool:
        """Whether logits of its prompt are still to be computed for them."""
        return self.scored_len < self.score_end

    @property
    def scored(self) -> range:
        """Positions of the next forward whose logits give the logprobs of the prompt tokens after them."""
        if not self.is_scoring:
            return NO_POSITIONS
        return range(max(self.cached_len, self.scored_len), min(self.device_len, self.score_end))

    @property
    def hit_end(self) -> int:
        """Tokens whose K/V it may take from others: the logits of all that follow are its own to compute."""
        return self.scored_len if self.is_scoring else len(self.token_ids) - 1

    @property
    def can_decode(self) -> bool:
        return self.is_admitted and self.device_len >= len(self.token_ids) and self.remain_len > 0

    @property
    def age_key(self) -> tuple[int, int]:
        """Orders requests from the first to be served to the first to be preempted."""
        return (self.priority, self.arrival)

    def start(self, row: int, hit_len: int) -> None:
        """Admit: take a row, and the K/V of `hit_len` tokens that the prefix cache already has."""
        self._expect(RequestState.WAITING)
        if self.is_scoring and hit_len > self.hit_end:
            raise LedgerError(f"{self.request_id}: hit of {hit_len} tokens, may be {self.hit_end}")
        self.row = row
        self.cached_len = self.device_len = hit_len
        self.state = RequestState.PREFILLING
        self._check()

    def grant_prefill(self, num_tokens: int) -> None:
        """Let the next forward compute `num_tokens` more of the known tokens."""
        self._expect(RequestState.PREFILLING)
        self.device_len += num_tokens
        if self.device_len > len(self.token_ids):
            raise LedgerError(
                f"{self.request_id}: {self.device_len} tokens granted, {len(self.token_ids)} known"
            )
        self._check()

    def skip_cached(self, num_tokens: int) -> None:
        """Pass over the next known tokens: the K/V of others' is taken in their place, up to hit_end."""
        self._expect(RequestState.PREFILLING)
        if self.extend_len or self.device_len + num_tokens > self.hit_end:
            raise LedgerError(
                f"{self.request_id}: {num_tokens} tokens to skip after {self.cached_len} of"
                f" {len(self.token_ids)} known, {self.extend_len} granted"
            )
        self.device_len += num_tokens
        self.cached_len = self.device_len

    def complete_chunk(self) -> None:
        """Count a launched forward that ended inside the known tokens: nothing was sampled."""
        self._expect(RequestState.PREFILLING)
        if self.is_scoring:
            self._count_scored()
        self.cached_len = self.device_len
        self._check()

    def complete_prompt(self) -> None:
        """Count a launched forward that ended the prompt of a request that wants no token: its last one."""
        self._expect(RequestState.PREFILLING)
        if self.remain_len > 0:
            raise LedgerError(f"{self.request_id}: {self.remain_len} tokens are still to be computed")
        if self.is_scoring:
            self._count_scored()
        self.cached_len = self.device_len
        self.state = RequestState.DECODING

    def complete_one(self) -> None:
        """Count a launched forward that sampled: its token's place is opened before its value is known."""
        self._expect(RequestState.PREFILLING, RequestState.DECODING)
        if self.is_scoring:
            self._count_scored()
        self.cached_len = self.device_len
        self.device_len += 1
        self.state = RequestState.DECODING
        self._check()

    def append_host(self, token_id: int) -> None:
        """Record the value of a sampled token, once it has arrived; the request may be preempted by then."""
        self._expect(RequestState.WAITING, RequestState.DECODING)
        self.token_ids.append(token_id)
        if len(self.token_ids) > self.max_device_len:
            raise LedgerError(
                f"{self.request_id}: {len(self.token_ids)} tokens, room for {self.max_device_len}"
            )

    def append_logprobs(self, logprobs: Sequence[TokenLogprobs]) -> None:
        """Record those of its next prompt tokens, once they have arrived; it may be preempted by then."""
        self._expect(RequestState.WAITING, RequestState.PREFILLING, RequestState.DECODING)
        self.prompt_logprobs += logprobs
        if len(self.prompt_logprobs) > self.scored_len:
            raise LedgerError(
                f"{self.request_id}: logprobs of {len(self.prompt_logprobs)} prompt tokens,"
                f" computed for {self.scored_len}"
            )

    def preempt(self) -> None:
        """Go back to waiting: the tokens and their logprobs stay, their K/V will be computed again."""
        self._expect(RequestState.PREFILLING, RequestState.DECODING)
        self.row = None
        self.cached_len = self.device_len = self.pages_written = 0
        self.num_preemptions += 1
        self.state = RequestState.WAITING
        self._check()

    def finish(self, reason: FinishReason) -> None:
        """End, once and for all."""
        self._expect(RequestState.WAITING, RequestState.PREFILLING, RequestState.DECODING)
        self.row = None
        self.finish_reason = reason
        self.state = RequestState.FINISHED

    def _count_scored(self) -> None:
        self.scored_len = max(self.scored_len, self.scored.stop)

    def _expect(self, *states: RequestState) -> None:
        if self.state not in states:
            raise LedgerError(f"{self.request_id} is {self.state}, expected {' or '.join(states)}")

    def _check(self) -> None:
        if not 0 <= self.cached_len <= self.device_len <= self.max_device_len:
            raise LedgerError(
                f"{self.request_id}: 0 <= cached {self.cached_len} <= device {self.device_len}"
                f" <= max {self.max_device_len} does not hold"
            )
