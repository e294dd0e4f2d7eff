"""What happens to a simulated server: plain data, made from a seed, so that it can be shrunk and kept."""

import random
from typing import Literal, NamedTuple

import msgspec

from legato.core.config import CacheConfig, SchedulerConfig

Batching = Literal["continuous", "prefill-first", "static"]


class Arrive(msgspec.Struct, frozen=True, tag="arrive"):
    """Clients hand over requests together."""

    requests: tuple["Ask", ...]


class Ask(msgspec.Struct, frozen=True):
    """One request; `is_poison`: each step with it crashes the engine."""

    request_id: str
    prompt: tuple[int, ...]
    max_tokens: int
    seed: int = 0
    priority: int = 0
    cache_salt: str = ""
    tenant: str = ""
    is_scored: bool = False
    is_poison: bool = False


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Nobody waits for this request any more."""

    request_id: str


class Kill(msgspec.Struct, frozen=True, tag="kill"):
    """The engine dies between two steps; what it has said and nobody has read is lost."""


class Hang(msgspec.Struct, frozen=True, tag="hang"):
    """The engine computes no more, until the watchdog ends it."""


class Lag(msgspec.Struct, frozen=True, tag="lag"):
    """Nobody reads what the engine says for so many steps."""

    num_steps: int


class Jump(msgspec.Struct, frozen=True, tag="jump"):
    """The clock jumps."""

    seconds: float


Happening = Arrive | Cancel | Kill | Hang | Lag | Jump


class Event(msgspec.Struct, frozen=True):
    """After so many more steps, this happens."""

    after_steps: int
    what: Happening


class Setup(msgspec.Struct, frozen=True):
    """The engine's settings."""

    max_num_seqs: int
    max_step_tokens: int
    mixed_prefill_tokens: int
    long_prefill_tokens: int | None
    max_step_scores: int
    max_preemptions: int
    max_queued: int
    num_pages: int
    page_size: int
    enable_prefix_caching: bool
    batching: Batching
    lookahead: int
    is_fair: bool = True
    fair_step_tokens: int = 4

    @property
    def capacity(self) -> int:
        """Tokens in the K/V pool."""
        return self.num_pages * self.page_size

    def scheduling(self) -> SchedulerConfig:
        return SchedulerConfig(
            max_num_seqs=self.max_num_seqs,
            max_step_tokens=self.max_step_tokens,
            mixed_prefill_tokens=self.mixed_prefill_tokens,
            long_prefill_tokens=self.long_prefill_tokens,
            max_model_len=1 << 16,
            max_queued=self.max_queued,
            max_preemptions=self.max_preemptions,
            max_step_scores=self.max_step_scores,
            is_fair=self.is_fair and self.batching == "continuous",
            fair_step_tokens=self.fair_step_tokens,
        )

    def cache(self) -> CacheConfig:
        return CacheConfig(
            num_pages=self.num_pages,
            page_size=self.page_size,
            enable_prefix_caching=self.enable_prefix_caching,
        )


class Scenario(msgspec.Struct, frozen=True):
    """A whole run: a pure function of it decides whether the server does right."""

    setup: Setup
    events: tuple[Event, ...]


class Crowd(NamedTuple):
    """How requests begin, and whose they are."""

    prefixes: list[tuple[int, ...]]
    tenants: tuple[str, ...]


def random_scenario(seed: int, max_events: int = 24) -> Scenario:
    """The scenario of a seed: tiny pools, budgets down to one token, prompts that begin alike."""
    rng = random.Random(seed)
    setup = _random_setup(rng)
    prefixes = [tuple(100 + rng.randrange(4) for _ in range(rng.randint(0, 12))) for _ in range(3)]
    crowd = Crowd(prefixes, rng.choice((("",), ("a", "b"), ("a", "a", "a", "b", "c"))))
    events: list[Event] = []
    known: list[str] = []
    death_rate = rng.choice((0.0, 0.06, 0.3))
    for _ in range(rng.randint(1, max_events)):
        what = _random_happening(rng, setup, crowd, known, death_rate)
        if isinstance(what, Arrive):
            known += [ask.request_id for ask in what.requests]
        events.append(Event(rng.choice((0, 0, 1, 2, 5)), what))
    return Scenario(setup, tuple(events))


def _random_setup(rng: random.Random) -> Setup:
    max_step_tokens = rng.choice((1, 2, 5, 16, 64))
    return Setup(
        max_num_seqs=rng.randint(1, 6),
        max_step_tokens=max_step_tokens,
        mixed_prefill_tokens=rng.choice((1, 4, max_step_tokens, max_step_tokens)),
        long_prefill_tokens=rng.choice((None, 1, 3)),
        max_step_scores=rng.choice((1, 2, 7, 64)),
        max_preemptions=rng.randint(0, 3),
        max_queued=rng.choice((2, 8, 2048)),
        num_pages=rng.randint(4, 40),
        page_size=rng.choice((1, 2, 4)),
        enable_prefix_caching=rng.random() < 0.75,
        batching=rng.choice(("continuous", "continuous", "prefill-first", "static")),
        lookahead=rng.randint(0, 1),
        is_fair=rng.random() < 0.9,
        fair_step_tokens=rng.choice((1, 4, 16)),
    )


def _random_happening(
    rng: random.Random, setup: Setup, crowd: Crowd, known: list[str], death_rate: float
) -> Happening:
    if known and rng.random() < death_rate:
        return rng.choice((Kill(), Kill(), Hang()))
    draw = rng.random()
    if not known or draw < 0.76:
        num_requests = rng.choice((1, 1, 1, 2, 4))
        asks = [_random_ask(rng, setup, crowd, f"r{len(known) + i}") for i in range(num_requests)]
        return Arrive(tuple(asks))
    if draw < 0.92:
        return Cancel(rng.choice(known))
    return Lag(rng.randint(1, 6)) if draw < 0.97 else Jump(rng.choice((0.001, 3600.0, 1e9)))


def _random_ask(rng: random.Random, setup: Setup, crowd: Crowd, request_id: str) -> Ask:
    own = tuple(100 + rng.randrange(3) for _ in range(rng.randint(1, 8)))
    prompt = (rng.choice(crowd.prefixes) + own)[-setup.capacity :]
    return Ask(
        request_id=request_id,
        prompt=prompt,
        max_tokens=rng.randint(0, max(1, min(12, setup.capacity + 1 - len(prompt)))),
        seed=rng.randrange(3),
        priority=rng.choice((0, 0, 0, 1, -1)),
        cache_salt=rng.choice(("", "", "", "salt")),
        tenant=rng.choice(crowd.tenants),
        is_scored=rng.random() < 0.2,
        is_poison=rng.random() < 0.03,
    )
