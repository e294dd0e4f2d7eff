"""One call, from the head of its request to the last byte of its answer, as a list of causes."""

from collections.abc import Mapping, Sequence
from typing import Any

from legato.api.service import ModelService
from legato.core.timing import UNEXPLAINED, Course, Part, Stretch

# What a part has beside its cause and seconds, where it is not 0.
_COUNTS = {
    "steps": "steps",
    "tokens": "tokens",
    "skipped": "cached_tokens",
    "others": "other_requests",
    "other_tokens": "other_tokens",
    "mixed_steps": "steps_with_prompts",
    "mixed_s": "seconds_with_prompts",
}


class ExplainedCall:
    """What is known of a call's time. Holds counts and moments alone: no text, no token.

    tenant       who may ask for it, among several keys
    service      whose engine computes it
    courses      of its answers, which go on while it runs
    request_ids  of its answers in the engine
    """

    def __init__(
        self,
        call_id: str,
        tenant: str | None,
        service: ModelService,
        *,
        received_at: float,
        body_read_at: float,
        courses: Sequence[Course],
        request_ids: Sequence[str],
    ) -> None:
        self.id = call_id
        self.tenant = tenant
        self.service = service
        self.request_ids = request_ids
        self.ended_at: float | None = None
        self._received_at = received_at
        self._body_read_at = body_read_at
        self._courses = courses

    @property
    def num_parts(self) -> int:
        return sum(len(course.parts) + 5 for course in self._courses)

    def explain(
        self, now: float, in_engine: Mapping[str, Stretch] | None = None, *, missing: str = UNEXPLAINED
    ) -> dict[str, Any]:
        """Where the time up to `now` went, or up to the end if that was before.

        in_engine  request id -> what the engine has not told yet, of answers that it still computes. Then it
                   is its moment that counts, not that of its message
        missing    what holds up the answers of which it has told nothing now
        """
        courses = [course.copy() for course in self._courses]
        for request_id, course in zip(self.request_ids, courses, strict=True):
            if in_engine and request_id in in_engine:
                course.go_on(in_engine[request_id])
        engine_end = max(course.until for course in courses)
        end = engine_end if in_engine else max(self.ended_at or now, engine_end)
        wholes = [self._whole(course, engine_end, end, missing) for course in courses]
        return {
            "id": self.id,
            "object": "request.explanation",
            "elapsed_s": end - self._received_at,
            "choices": [_choice_json(index, course) for index, course in enumerate(wholes)],
        }

    def _whole(self, course: Course, engine_end: float, end: float, missing: str) -> Course:
        """The course of one answer with what came before and after the engine."""
        whole = Course(self._received_at)
        whole.add(Part("receive", 0.0), self._body_read_at)
        whole.add(Part("prepare", 0.0), course.start)
        whole.extend(course.seen())
        if not course.is_closed:
            whole.add(Part(missing, 0.0), end)
        whole.add(Part("siblings", 0.0), engine_end)
        whole.add(Part("deliver", 0.0), end)
        return whole


def _choice_json(index: int, course: Course) -> dict[str, Any]:
    unexplained_s = sum(part.seconds for part in course.parts if part.cause == UNEXPLAINED)
    return {
        "index": index,
        "unexplained_s": unexplained_s,
        "parts": [_part_json(part) for part in course.parts],
    }


def _part_json(part: Part) -> dict[str, Any]:
    is_wait = part.cause.startswith("wait_")
    names = _COUNTS | {"others": "ahead"} if is_wait else _COUNTS
    counts = {name: getattr(part, field) for field, name in names.items() if getattr(part, field)}
    return {"cause": part.cause, "seconds": part.seconds, **counts}
