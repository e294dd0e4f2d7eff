"""Clients beside each other on the shipped scheduler, in modelled time: a step costs what its tokens cost."""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from legato.core.plan import StepOutput, StepPlan
from legato.core.request import Request
from legato.scheduler.events import NewToken
from legato.scheduler.scheduler import Scheduler
from tests.scheduler.driver import make_request

FIXED_COST, TOKEN_COST = 1.0, 1.0  # of a step; about the default model's proportion on a CPU, in 4 ms


@dataclass
class Client:
    """Keeps `num_open` requests open; asks the next one a while after one has ended."""

    tenant: str
    num_open: int
    prompt_len: int
    max_tokens: int
    pause: float = 0.0
    starts_at: float = 0.0
    ttfts: list[float] = field(default_factory=list)
    totals: list[float] = field(default_factory=list)


@dataclass
class Market:
    """One engine that plans a step while the one before it is computed, and clients who ask it."""

    scheduler: Scheduler
    clients: list[Client]
    now: float = 0.0
    num_tokens: int = 0
    _asks: list[tuple[float, int, Client]] = field(default_factory=list)
    _owner: dict[str, tuple[Client, float]] = field(default_factory=dict)
    _in_flight: deque[tuple[StepPlan, float]] = field(default_factory=deque)
    _numbers: Callable[[], int] = field(default_factory=lambda: count().__next__)

    def __post_init__(self) -> None:
        self._rng = random.Random(1)
        for client in self.clients:
            self._asks += [(client.starts_at, self._numbers(), client) for _ in range(client.num_open)]

    def run(self, until: float) -> None:
        while self.now < until:
            self._take_asks()
            plan = self.scheduler.plan()
            if plan.chunks:
                begins = max(self.now, self._in_flight[-1][1] if self._in_flight else 0.0)
                self._in_flight.append((plan, begins + FIXED_COST + TOKEN_COST * plan.num_tokens))
                self.scheduler.launched(plan)
                self.num_tokens += plan.num_tokens
            if self._in_flight and (len(self._in_flight) > 1 or not plan.chunks):
                self._finish(*self._in_flight.popleft())
            elif not plan.chunks:
                self.now = min(at for at, _, _ in self._asks)
            self.scheduler.check_integrity()

    def _take_asks(self) -> None:
        due = sorted(ask for ask in self._asks if ask[0] <= self.now)
        self._asks = [ask for ask in self._asks if ask[0] > self.now]
        for at, number, client in due:
            name = f"{client.tenant}{number}"
            prompt = [100 + self._rng.randrange(800) for _ in range(client.prompt_len)]
            self._owner[name] = client, at
            self.scheduler.add(make_request(name, prompt, client.max_tokens, tenant=client.tenant))

    def _finish(self, plan: StepPlan, at: float) -> None:
        self.now = at
        sampled = {chunk.request_id: 100 for chunk in plan.chunks if chunk.samples}
        for event in self.scheduler.update(StepOutput(plan.step, sampled)):
            assert isinstance(event, NewToken)
            self._note(event.request, event.index)

    def _note(self, request: Request, index: int) -> None:
        client, asked_at = self._owner[request.request_id]
        if index == 0:
            client.ttfts.append(self.now - asked_at)
        if request.finish_reason is not None:
            client.totals.append(self.now - asked_at)
            pause = client.pause * self._rng.uniform(0.5, 1.5)
            self._asks.append((self.now + pause, self._numbers(), client))
