"""The queue as it was before a step: nobody is admitted before who had been served less."""

from collections import Counter

from legato.core.request import RequestState
from legato.scheduler.scheduler import Scheduler


class QueueWatch:
    """Looks at the queue when made, and judges a step by `check`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._waited = list(scheduler.waiting)
        self._service = dict(scheduler.tenants.service)

    def check(self) -> None:
        """Raise AssertionError when who waits was passed by one of a tenant that had been served more.

        Those of the same tenant that were admitted in the step count as served, also when they have ended in
        it. Who is tried as a suspect passes everybody.
        """
        admitted = [each for each in self._waited if each.is_admitted]
        passed = [each for each in self._waited if each.state is RequestState.WAITING]
        service = Counter(self._service)
        for request in self._waited:
            if request.state is not RequestState.WAITING:
                service[request.tenant] += len(request.token_ids)
        for request in admitted:
            if request.is_suspect:
                continue
            for other in passed:
                is_due = other.priority <= request.priority
                assert not is_due or service[other.tenant] >= self._service[request.tenant], (
                    f"{request.request_id} of {request.tenant} is admitted before {other.request_id} of"
                    f" {other.tenant}, which has been served less: {self._service}"
                )
