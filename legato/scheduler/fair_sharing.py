"""What each tenant has been served, and what follows for a step when one asks for more than others.

Source of the counters: the Virtual Token Counter of Sheng et al., "Fairness in Serving Large Language
Models", OSDI 2024. docs/decisions/fair_sharing.md says what was added to them.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from legato.core.config import SchedulerConfig
from legato.core.plan import ScheduledChunk
from legato.core.request import Request
from legato.scheduler.step_draft import StepDraft
from legato.scheduler.waiting_queue import WaitingQueue

EXPECTED_CREDITS = 4  # that others are served while one is away, until it is not expected any more


class TenantAccounts:
    """Service of each tenant: a token for each that was computed, and one more for each that was sampled.

    As long as one tenant is known, nothing is counted. When all requests have ended, all is forgotten.
    The tenant without a name is everybody where nothing tells them apart: then there is nobody else.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.service: dict[str, int] = {}  # of all known tenants
        self._num_open: Counter[str] = Counter()  # requests that have not ended
        self._credit = 2 * config.max_step_tokens
        self._step_tokens = config.fair_step_tokens

    @property
    def have_names(self) -> bool:
        return bool(self.service) and "" not in self.service

    @property
    def is_shared(self) -> bool:
        return len(self.service) > 1

    def arrive(self, tenant: str, *, is_backlogged: bool) -> None:
        """Count a request; `is_backlogged`: others of the tenant wait already.

        Who comes back from asking for little has saved up no more than a credit: enough to be served at once,
        not enough to hold up others for long.
        """
        if not is_backlogged:
            others = [self.service[other] for other in self._num_open if other != tenant]
            lifted = max(others, default=self._credit) - self._credit
            self.service[tenant] = max(lifted, self.service.get(tenant, lifted))
        self._num_open[tenant] += 1

    def end(self, tenant: str) -> None:
        self._num_open[tenant] -= 1
        if not self._num_open[tenant]:
            del self._num_open[tenant]
        if not self._num_open:
            self.service.clear()

    def restore(self, service: Mapping[str, int], tenants: Iterable[str]) -> None:
        """Become accounts with this service; `tenants` of the requests that have not ended."""
        self.service |= service
        self._num_open.update(tenants)

    def charge(self, tenant: str, chunk: ScheduledChunk) -> None:
        self.service[tenant] += chunk.num_tokens + chunk.samples

    def limit_heavy(self, draft: StepDraft, running: Collection[Request], waiting: WaitingQueue) -> None:
        """Limit the step for the sake of those who have been served much less than others, if there are any.

        They may be idle, for a while: who asks now and then waits for the steps that run when it comes.
        """
        most = max((self.service[tenant] for tenant in self._num_open), default=0)
        least, expected = most - self._credit // 2, most - EXPECTED_CREDITS * self._credit
        draft.light = frozenset(
            tenant
            for tenant, service in self.service.items()
            if service <= least and (service > expected or tenant in self._num_open)
        )
        if draft.light:
            lines = [line[0] for tenant in draft.light if (line := waiting.of(tenant))]
            admitted = [request for request in running if request.tenant in draft.light]
            draft.light_priority = min((request.priority for request in lines + admitted), default=0)
            draft.heavy_left = self._heavy_tokens(draft.light, admitted)

    def _heavy_tokens(self, light: frozenset[str], admitted: Collection[Request]) -> int:
        """Tokens for heavy tenants in a step, so that light ones see it take half as long again at most.

        Beside its tokens a step costs about as much as fair_step_tokens / 4 of them. If n tenants had as many
        decodes as the light ones have on average, it would have n times as many tokens. Where these decode
        nothing yet, they wait for steps that they have no part in, or compute prompts.
        """
        if light.isdisjoint(self._num_open):
            return self._step_tokens
        decodes = Counter(request.tenant for request in admitted if request.can_decode)
        if not decodes:
            return -(-self._step_tokens // 2)
        num_alike = len(self._num_open) * decodes.total() / len(decodes)
        return max(1, int(self._step_tokens / 8 + 1.5 * num_alike - decodes.total()))
