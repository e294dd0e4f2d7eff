"""The one door through which every route asks for text, and the one place where that is counted."""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from typing import Any

from fastapi import Request

from legato.api.answers.deadlines import Deadlines
from legato.api.answers.running import RunningCalls
from legato.api.errors import describe
from legato.api.explain.explained_call import ExplainedCall
from legato.api.explain.explanations import Explanations
from legato.api.explain.in_answer import is_wanted
from legato.api.service import ModelService
from legato.core.config import ServerConfig
from legato.core.errors import LegatoError, RequestError, SlowFirstTokenError
from legato.core.sampling_params import FinishReason, SamplingParams
from legato.frontend.generator import Prompt, TextDelta, TextStream
from legato.observability.call_span import CallSpan, request_attributes
from legato.observability.metrics import Metrics, RequestMeter
from legato.observability.tracing import Span

PREDICTED_TTFT = "x-legato-predicted-ttft-ms"  # header: milliseconds from the request's arrival


async def open_stream(
    request: Request,
    service: ModelService,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    *,
    prompt_field: str = "prompt",
    grammar_field: str = "grammar",
    n: int = 1,
    names: Iterable[str] = (),
    **options: Any,
) -> TextStream:
    """Queue n answers to each of `prompts`, the body's `prompt_field`, and return their deltas, counted.

    grammar_field is the body's field that params.grammar was made of. `names` can abort the call, beside its
    x-request-id; `options` are those of Generator.submit.
    Returns when the engine has accepted all of them, so that every refusal still finds its status.
    Raises LegatoError when nothing was queued.
    """
    is_wanted(request)  # while a header that does not fit can still be refused
    server: ServerConfig = request.app.state.server
    deadlines = Deadlines.of(request)
    if len(server.api_key) > 1:  # how long a prefix of another's prompt takes would tell that it is known
        options["cache_salt"] = f"{request.state.tenant}/{options.get('cache_salt', '')}"
        options["tenant"] = request.state.tenant
    received_at: float = request.state.received_at
    if server.ttft_limit_s:
        options["first_token_by"] = received_at + server.ttft_limit_s
    metrics: Metrics = request.app.state.metrics
    model = service.names[0]
    span: Span | None = getattr(request.state, "span", None)
    if span is not None:
        span.rename(f"{request.state.operation} {model}")
        span.tell(request_attributes(model, params, n))
    try:
        async with deadlines.while_queueing():
            stream = await service.generator.submit(prompts, params, n=n, **options)
    except LegatoError as error:
        if isinstance(error, RequestError):
            _name_field(error, prompt_field, grammar_field)
        _count_refusal(request, model, error)
        raise
    meters = [metrics.accepted(model, received_at=received_at) for _ in range(len(prompts) * n)]
    names = list(dict.fromkeys([*names, request.state.request_id]))
    _let_explain(request, service, stream, names)
    if stream.first_token_at is not None:
        meters[0].predicted_ttft_s = _tell_prediction(request, stream.first_token_at)
    calls: RunningCalls = request.app.state.calls
    call = None if span is None else _call_span(span, stream, names, received_at, len(meters))
    measured = MeasuredStream(stream, meters, call)
    measured.on_close.append(calls.add(names, stream.abort))
    expire = partial(stream.abort, FinishReason.TIMEOUT)
    measured.on_close.append(deadlines.watch(lambda: measured.has_tokens, expire))
    return measured


def _let_explain(request: Request, service: ModelService, stream: TextStream, names: Sequence[str]) -> None:
    """From now on the call can be explained by its names."""
    state = request.state
    call = state.explained = ExplainedCall(
        names[0],
        getattr(state, "tenant", None),
        service,
        received_at=state.received_at,
        body_read_at=state.body_read_at,
        courses=stream.courses,
        request_ids=stream.request_ids,
    )
    explanations: Explanations = request.app.state.explanations
    keys = explanations.add(call, names)
    state.on_end.append(partial(explanations.end, call, keys))


def _name_field(error: RequestError, prompt_field: str, grammar_field: str) -> None:
    """Let the error speak of the body's own field."""
    if error.param == "grammar":  # its text is about a schema or a pattern, and says not which field's
        error.args = (f"{grammar_field}: {error}",)
        error.param = grammar_field
    elif error.param == "prompt":
        error.param = prompt_field


def _count_refusal(request: Request, model: str, error: LegatoError) -> None:
    if isinstance(error, SlowFirstTokenError):
        _tell_prediction(request, error.first_token_at)
    answer = describe(error, request.state.request_id)
    request.app.state.metrics.rejected(model, str(answer.code))
    span: Span | None = getattr(request.state, "span", None)
    if span is not None:
        span.fail(str(answer.code), is_ours=answer.status >= 500)


def _tell_prediction(request: Request, first_token_at: float) -> float:
    """Put it into the answer's head; it is the seconds from the request's arrival."""
    ttft_s: float = first_token_at - request.state.received_at
    request.state.answer_headers[PREDICTED_TTFT] = f"{1000 * ttft_s:.0f}"
    return ttft_s


def _call_span(
    span: Span, stream: TextStream, names: Sequence[str], received_at: float, num_answers: int
) -> CallSpan:
    span.tell({"gen_ai.usage.input_tokens": sum(map(len, stream.prompts)), "gen_ai.response.id": names[0]})
    return CallSpan(span, received_at, num_answers)


class MeasuredStream:
    """A TextStream that keeps the account of each of its answers.

    on_close  called by aclose(), which may come more than once
    """

    def __init__(
        self, stream: TextStream, meters: Sequence[RequestMeter], call: CallSpan | None = None
    ) -> None:
        self.on_close: list[Callable[[], None]] = []
        self.has_tokens = False
        self._stream = stream
        self.prompts, self.courses, self.request_ids = stream.prompts, stream.courses, stream.request_ids
        self.first_token_at = stream.first_token_at
        self._deltas = aiter(stream)
        self._meters = meters
        self._call = call

    def __aiter__(self) -> AsyncIterator[TextDelta]:
        return self

    async def __anext__(self) -> TextDelta:
        try:
            delta = await anext(self._deltas)
        except StopAsyncIteration:
            raise
        except Exception as error:
            self._close_accounts("error")
            if self._call is not None:
                _fail(self._call, error)
            raise
        self.has_tokens = self.has_tokens or bool(delta.token_ids)
        meter = self._meters[delta.index]
        meter.tokens(len(delta.token_ids), has_text=bool(delta.text), prompt_tokens=delta.usage.prompt_tokens)
        if delta.finish_reason is not None:
            meter.finished(delta.finish_reason.value)
        if self._call is not None:
            _note(self._call, delta)
        return delta

    def abort(self, reason: FinishReason = FinishReason.ABORT) -> None:
        self._stream.abort(reason)

    async def aclose(self) -> None:
        for call in self.on_close:
            call()
        self._close_accounts("abort")
        if self._call is not None:
            self._call.close()
        await self._stream.aclose()

    def _close_accounts(self, reason: str) -> None:
        for meter in self._meters:
            meter.finished(reason)


def _note(call: CallSpan, delta: TextDelta) -> None:
    call.note(
        delta.index,
        num_tokens=len(delta.token_ids),
        has_text=bool(delta.text),
        cached_tokens=delta.usage.cached_tokens,
        queue_s=delta.timing.queue_s,
    )
    if delta.finish_reason is not None:
        call.finish(delta.index, delta.finish_reason.value)


def _fail(call: CallSpan, error: Exception) -> None:
    """By its code; of what legato did not foresee the log says more."""
    if isinstance(error, LegatoError):
        answer = describe(error, "")
        call.fail(str(answer.code), is_ours=answer.status >= 500)
    else:
        call.fail("internal_error", is_ours=True)
