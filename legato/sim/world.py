"""A simulated server: clients, the bookkeeping of the API process, a core, and what happens to them."""

from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from legato.core.request import RequestState
from legato.core.request_limits import RequestLimits
from legato.engine.core import Core, CoreParts
from legato.executor.request_table import RequestTable
from legato.ipc.messages import Abort, Accepted, AddRequest, Rejected, TokenOutput
from legato.ipc.pending import MAX_STRIKES, PendingRequests
from legato.ipc.supervisor import Watchdog
from legato.kvcache.manager import KVCacheManager
from legato.scheduler.policy import make_policy
from legato.scheduler.scheduler import Scheduler
from legato.sim.client import Client
from legato.sim.fake_device import EngineCrash, FakeDevice
from legato.sim.fake_model import EOS, FIRST_ID, NUM_IDS
from legato.sim.queue_watch import QueueWatch
from legato.sim.scenario import Arrive, Cancel, Hang, Happening, Jump, Kill, Lag, Scenario, Setup

if TYPE_CHECKING:
    from legato.ipc.reply_router import Reply

STEP_S = 0.01
WATCHDOG_S = 30.0
MAX_IDLE_STEPS = 3  # in a row, of an engine that has work


class SimulationError(AssertionError):
    """The server did wrong; the text says what, and after how many steps."""


def simulate(scenario: Scenario) -> int:
    """Run to the end of all requests; the number of steps. Raises SimulationError."""
    world = World(scenario)
    try:
        for event in scenario.events:
            for _ in range(event.after_steps):
                world.step()
            world.happen(event.what)
        world.run_out()
    except Exception as error:
        raise SimulationError(f"step {world.num_steps}: {type(error).__name__}: {error}") from error
    return world.num_steps


class World:
    """Both processes, with queues in place of the socket and a clock that moves a step at a time."""

    def __init__(self, scenario: Scenario) -> None:
        self.num_steps = 0
        self._setup = scenario.setup
        self._clients: dict[str, Client] = {}
        self._poison_ids = [
            ask.request_id
            for event in scenario.events
            if isinstance(event.what, Arrive)
            for ask in event.what.requests
            if ask.is_poison
        ]
        self._now = 0.0
        self._pending = PendingRequests(lambda: self._now)
        self._num_deaths: Counter[str] = Counter()  # of engines in a request's steps, since its last token
        self._start_engine()

    def happen(self, what: Happening) -> None:
        match what:
            case Arrive(requests=asks):
                for ask in asks:
                    client = self._clients[ask.request_id] = Client(ask, self._now)
                    self._pending.add([client.message()], client.sink)
                self._send_unsent()
            case Cancel(request_id=request_id):
                leaving = self._clients.get(request_id)
                if leaving is not None and leaving.end is None:
                    leaving.has_left = True
                    known = self._pending.forget([request_id])
                    self._to_engine.extend(Abort(request_id=each) for each in known)
            case Kill():
                self._engine_dies()
            case Hang():
                self._is_hung = True
            case Lag(num_steps=num_steps):
                self._lag = num_steps
            case Jump(seconds=seconds):
                self._now += seconds

    def step(self) -> None:
        """Messages, a step of the engine, messages back; all must add up after it."""
        self.num_steps += 1
        self._now += STEP_S
        if self._is_hung:
            self._wait_for_watchdog()
            return
        self._ticks += 1
        self._watchdog.stillness_s(self._ticks, has_work=len(self._pending) > 0)
        self._take_messages()
        if self._core.has_work:
            queue = QueueWatch(self._core.scheduler)
            try:
                self._from_engine.extend(self._core.step())
            except EngineCrash:
                self._engine_dies()
                return
            self._check_progress()
            queue.check()
        self._core.check_integrity()
        if self._lag:
            self._lag -= 1
        else:
            self._read_answers()

    def run_out(self) -> None:
        """Steps until every request has ended; there is a bound to how many that can take."""
        asks = [client.ask for client in self._clients.values()]
        work = sum(len(ask.prompt) + ask.max_tokens for ask in asks)
        bound = 200 + 4 * work * (2 + self._setup.max_preemptions) + 20 * len(asks)
        while any(not client.has_left and client.end is None for client in self._clients.values()):
            assert bound > 0, f"requests never end: {self._open_ids()}"
            bound -= 1
            self.step()
        while self._core.has_work or self._to_engine or self._is_hung:  # what nobody waits for ends too
            assert bound > 0, "the engine works for nobody"
            bound -= 1
            self.step()
        self._lag = 0
        self._read_answers()
        self._core.check_integrity()
        assert len(self._pending) == 0
        for client in self._clients.values():
            client.check_ended()

    # The API process

    def _send_unsent(self) -> None:
        self._to_engine.extend(self._pending.take_unsent())

    def _read_answers(self) -> None:
        while self._from_engine:
            self._deliver(self._pending.record(self._from_engine.popleft()))

    def _deliver(self, delivery: "tuple[Callable[[Reply], None], Reply] | None") -> None:
        if delivery is None:
            return
        sink, news = delivery
        sink(news)
        if isinstance(news, TokenOutput):
            self._num_deaths[news.request_id] = 0

    def _engine_dies(self) -> None:
        running_ids = self._device.running_ids
        self._num_deaths.update(running_ids)
        for sink, failed in self._pending.engine_died(running_ids, "it died"):
            num_deaths = self._num_deaths[failed.request_id]
            assert num_deaths > MAX_STRIKES, f"{failed.request_id} is given up after {num_deaths} deaths"
            sink(failed)
        self._start_engine()
        self._send_unsent()

    def _wait_for_watchdog(self) -> None:
        """Time passes; an engine that hangs at work is ended, and one without work hangs unseen."""
        self._now += WATCHDOG_S / 2
        has_work = len(self._pending) > 0
        if self._watchdog.stillness_s(self._ticks, has_work=has_work) > WATCHDOG_S or not has_work:
            self._engine_dies()

    # The engine process

    def _start_engine(self) -> None:
        self._device = FakeDevice(self._setup.scheduling(), self._setup.page_size, self._poison_ids)
        self._core = _make_core(self._setup, self._device, lambda: self._now)
        self._to_engine: deque[AddRequest | Abort] = deque()
        self._from_engine: deque[Reply] = deque()
        self._watchdog = Watchdog(lambda: self._now)
        self._ticks = self._lag = self._num_idle_steps = 0
        self._is_hung = False
        self._decoding: set[str] = set()  # after the step before
        self._num_turns = 0  # steps in which somebody decoded
        self._tried: set[str] = set()  # those that this engine has computed alone
        self._due: dict[str, int] = {}  # request id -> turn by which it moves again, if it decodes

    def _take_messages(self) -> None:
        while self._to_engine:
            message = self._to_engine.popleft()
            if isinstance(message, Abort):
                self._core.abort(message.request_id)
            else:
                reply: Accepted | Rejected = self._core.add(message)
                self._from_engine.append(reply)
        for request in self._core.scheduler.requests:
            client = self._clients[request.request_id]
            assert not client.has_left, f"{request.request_id} is computed, and nobody waits for it"

    def _check_progress(self) -> None:
        """Somebody moves in every step or so, and everybody who runs does in some."""
        scheduler = self._core.scheduler
        moved = self._device.running_ids if self._device.take_has_launched() else ()
        self._check_trials(moved)
        self._num_idle_steps = 0 if moved else self._num_idle_steps + 1
        assert self._num_idle_steps <= MAX_IDLE_STEPS, "nobody moves, though there is work"
        running = scheduler.running
        decoding = {each for each in running if running[each].state is RequestState.DECODING}
        self._num_turns += not self._decoding.isdisjoint(moved)  # the end of a prompt is no turn
        self._decoding = decoding
        # One for each who may be before it; a heavy tenant has a token of a step at least.
        turns = 2 + -(-len(decoding) // (1 if scheduler.tenants.have_names else self._setup.max_step_tokens))
        due = self._num_turns + turns
        self._due = {each: due if each in moved else self._due.get(each, due) for each in running}
        for request_id in decoding:
            assert self._num_turns <= self._due[request_id], f"{request_id} decodes, and is passed by"

    def _check_trials(self, moved: tuple[str, ...]) -> None:
        """A suspect is computed alone before it has others beside it."""
        if len(moved) == 1:
            self._tried.update(moved)
        untried = [each for each in moved if each not in self._tried]
        suspects = [each for each in untried if self._num_deaths[each] >= MAX_STRIKES]
        assert not suspects, f"{suspects} have been in deadly steps, and {moved} are computed together"

    def _open_ids(self) -> list[str]:
        return [name for name, client in self._clients.items() if not client.has_left and client.end is None]


def _make_core(setup: Setup, device: FakeDevice, clock: Callable[[], float]) -> Core:
    scheduler = Scheduler(
        setup.scheduling(),
        make_policy(setup.batching, clock),
        KVCacheManager(setup.cache()),
        RequestTable(setup.max_num_seqs),
    )
    limits = RequestLimits(max_model_len=1 << 16, pool_len=setup.capacity, vocab_size=FIRST_ID + NUM_IDS)
    return Core(
        CoreParts(
            scheduler=scheduler,
            executor=device,
            limits=limits,
            eos_ids=frozenset({EOS}),
            lookahead=setup.lookahead,
        ),
        clock,
    )
