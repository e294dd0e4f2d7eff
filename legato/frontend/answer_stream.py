"""The answers to one call: what the client's reader thread hands over, in the event loop that asked."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress

from legato.core.errors import (
    ClosedError,
    EngineDiedError,
    GrammarFailedError,
    NonFiniteLogitsError,
    NotReadyError,
    OverloadedError,
    PoisonedRequestError,
    QueueTimeoutError,
    RequestError,
    SlowReaderError,
)
from legato.core.sampling_params import FinishReason
from legato.core.timing import Course
from legato.frontend.answer import Answer
from legato.frontend.generator import TextDelta
from legato.ipc.engine_client import EngineClient, EngineStage
from legato.ipc.messages import Aborted, Accepted, Failed, Rejected, TokenOutput
from legato.ipc.reply_router import Reply

ACCEPT_TIMEOUT_S = 60.0
MAX_UNREAD = 8192  # tokens of a call that wait for their reader, and
MAX_UNREAD_PER_ANSWER = 256  # so many more for each answer: all come in one step, and a step is soon read


class AnswerStream:
    """Implements TextStream. Belongs to one event loop; give its `sink` to EngineClient.submit."""

    def __init__(
        self,
        client: EngineClient,
        answers: Mapping[str, Answer],
        prompts: Sequence[Sequence[int]],
        first_token_at: float | None = None,
    ) -> None:
        self.prompts = prompts
        now = time.perf_counter()
        self.courses = [Course(now) for _ in answers]
        self.request_ids = list(answers)
        self._open_courses = dict(zip(self.request_ids, self.courses, strict=True))
        self.first_token_at = first_token_at
        self._client = client
        self._answers = dict(answers)  # request id -> answer, until it is finished
        self._loop = asyncio.get_running_loop()
        self._has_tokens = False
        self._max_unread = MAX_UNREAD + MAX_UNREAD_PER_ANSWER * len(self._answers)
        # Beside replies: why all that runs is to end; None wakes up after aclose().
        self._replies: asyncio.Queue[Reply | FinishReason | SlowReaderError | None] = asyncio.Queue()

    def sink(self, reply: Reply) -> None:
        """Called by the client's reader thread."""
        try:
            self._loop.call_soon_threadsafe(self._take, reply)
        except RuntimeError:  # the loop was closed under us: nobody reads any more
            if not isinstance(reply, Aborted):
                self._client.abort([reply.request_id])

    async def accepted(self) -> None:
        """Wait until every request is queued. Raises RequestError and the like, with nothing left running."""
        waiting = set(self._answers)
        try:
            async with asyncio.timeout(ACCEPT_TIMEOUT_S):
                while waiting:
                    reply = await self._replies.get()
                    if not isinstance(reply, Accepted):
                        raise self._error(reply)
                    waiting.remove(reply.request_id)
        except TimeoutError:
            await self.aclose()
            raise NotReadyError(
                f"the engine did not accept the request within {ACCEPT_TIMEOUT_S:.0f} s"
            ) from None
        except BaseException:
            await self.aclose()
            raise

    async def __aiter__(self) -> AsyncIterator[TextDelta]:
        try:
            while self._answers:
                reply = await self._replies.get()
                if not self._answers:
                    return  # closed meanwhile, by another task
                if isinstance(reply, FinishReason):
                    for delta in self._end_all(reply):
                        yield delta
                    return
                if not isinstance(reply, TokenOutput):
                    raise self._error(reply)
                answer = self._answers.get(reply.request_id)
                if answer is None:
                    continue  # tokens computed before the engine heard that a stop text had ended it
                self._has_tokens = True
                delta = answer.push(reply)
                if answer.is_finished:
                    del self._answers[reply.request_id]
                    self._close_course(reply.request_id)
                    if reply.finish_reason is None:
                        self._client.abort([reply.request_id])
                yield delta
        finally:
            await self.aclose()

    def abort(self, reason: FinishReason = FinishReason.ABORT) -> None:
        with suppress(RuntimeError):  # the loop was closed: nobody reads any more
            self._loop.call_soon_threadsafe(self._replies.put_nowait, reason)

    async def aclose(self) -> None:
        """Abort what still runs; a task that iterates meanwhile comes to its end."""
        self._client.abort(self._answers, self.sink)
        self._answers.clear()
        self._replies.put_nowait(None)

    def _take(self, reply: Reply) -> None:
        """In the event loop: note what it tells of the course, which may be read before the rest is."""
        course = self._open_courses.get(reply.request_id)
        stretch = reply.course if isinstance(reply, TokenOutput | Failed | Aborted) else None
        if course is not None and stretch is not None:
            course.go_on(stretch)
        is_open = isinstance(reply, Accepted) or (isinstance(reply, TokenOutput) and not reply.finish_reason)
        if not is_open:
            self._close_course(reply.request_id)
        if not isinstance(reply, Aborted):
            self._keep(reply)

    def _close_course(self, request_id: str) -> None:
        if course := self._open_courses.pop(request_id, None):
            course.is_closed = True

    def _keep(self, reply: Reply) -> None:
        """Until it is read. When too much waits, all is let go, and the reader is told if it comes back."""
        self._replies.put_nowait(reply)
        if self._replies.qsize() > self._max_unread:
            self._client.abort(self._answers, self.sink)
            self._replies = asyncio.Queue()  # nobody waits at the old one, which is full
            self._replies.put_nowait(
                SlowReaderError(
                    f"the answer is given up: {self._max_unread} tokens waited for the client to read them"
                )
            )

    def _end_all(self, reason: FinishReason) -> list[TextDelta]:
        """The last deltas of all that runs. Raises QueueTimeoutError for a timeout before any token."""
        if reason is FinishReason.TIMEOUT and not self._has_tokens:
            raise QueueTimeoutError
        self._client.abort(self._answers, self.sink)
        deltas = [answer.end(reason) for answer in self._answers.values()]
        self._answers.clear()
        return deltas

    def _error(self, reply: Reply | FinishReason | SlowReaderError | None) -> Exception:
        match reply:
            case SlowReaderError():
                return reply
            case Rejected(code="queue_full"):
                return OverloadedError(reply.message, retry_after_s=self._client.retry_after_s())
            case Rejected():
                return RequestError(reply.message, param=reply.param, code=reply.code)
            case Failed(code="non_finite_logits"):
                return NonFiniteLogitsError(reply.error)
            case Failed(code="engine_poisoned"):
                return PoisonedRequestError(reply.error)
            case Failed(code="grammar_failed"):
                return GrammarFailedError(reply.error)
            case Failed() if self._client.status.stage is EngineStage.CLOSED:
                return ClosedError(reply.error)
            case Failed():
                return EngineDiedError(reply.error)
            case _:
                return EngineDiedError(f"an unexpected answer of the engine: {type(reply).__name__}")
