"""What each tenant has been served, and what follows for the next step when one asks for more than others.

Source of the counters: the Virtual Token Counter of Sheng et al., "Fairness in Serving Large Language Models",
OSDI 2024. docs/decisions/fair_sharing.md says what was added to them.
"""

from collections import Counter
from collections.abc import Iterable

from legato.core.config import SchedulerConfig
from legato.core.plan import ScheduledChunk
from legato.core.request import Request


class TenantAccounts:
    """Service of each tenant: a token for each that was computed, and one more for each that was sampled.

    As long as one tenant is known, nothing is counted. When all requests have ended, all is forgotten.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.service: dict[str, int] = {}  # of all known tenants
        self._num_open: Counter[str] = Counter()  # requests that have not ended
        self._credit = 2 * config.max_step_tokens
        self._step_tokens = config.fair_step_tokens

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

    def charge(self, tenant: str, chunk: ScheduledChunk) -> None:
        self.service[tenant] += chunk.num_tokens + chunk.samples

    def light_tenants(self) -> frozenset[str]:
        """Those who are well behind the most served one that asks now; they may be idle."""
        most = max((self.service[tenant] for tenant in self._num_open), default=0)
        limit = most - self._credit // 2
        return frozenset(tenant for tenant, service in self.service.items() if service <= limit)

    def heavy_tokens(self, light: frozenset[str], running: Iterable[Request]) -> int:
        """Tokens of a step for all who are not light, so that it takes at most half as long again for those.

        A step costs its tokens, and beside them as much as fair_step_tokens / 8. With n tenants and w decodes
        of each light one, a step in which all did the same would have n·w tokens; where a light one has
        none yet it waits for steps that it has no part in, which are no longer than need be.
        """
        if light.isdisjoint(self._num_open):
            return self._step_tokens
        decodes = Counter(each.tenant for each in running if each.can_decode and each.tenant in light)
        if not decodes:
            return -(-self._step_tokens // 2)
        num_alike = len(self._num_open) * decodes.total() / len(decodes)
        return max(1, int(self._step_tokens / 16 + 1.5 * num_alike - decodes.total()))


def choose_who_yields(
    request: Request, candidates: Iterable[Request], held: Counter[str], num_needed: int
) -> Request | None:
    """The youngest of those whose tenant will still hold no less than the request's, once that has what it needs.

    held        rows or pages of each tenant
    num_needed  how many of them the request takes
    """
    limit = held[request.tenant] + num_needed
    return max(
        (each for each in candidates if held[each.tenant] > limit),
        key=lambda each: each.age_key,
        default=None,
    )
