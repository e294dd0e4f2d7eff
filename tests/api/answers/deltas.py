"""A stream of deltas that a test writes down."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from legato.api.answers.chat import ChatDelta
from legato.core.sampling_params import FinishReason
from legato.frontend.generator import Usage
from legato.tokenization.tool_calls.reader import ToolCallDelta

PROMPT_LEN, CACHED_LEN = 7, 3


def delta(
    number: int, part: str | ToolCallDelta, reason: FinishReason | None = None, **fields: Any
) -> ChatDelta:
    """The delta of the step `number`, from 1, with one part."""
    is_text = isinstance(part, str)
    return ChatDelta(
        index=0,
        text=part if is_text else "",
        tool_calls=() if is_text else (part,),
        token_ids=(number,),
        usage=Usage(PROMPT_LEN, number, CACHED_LEN),
        finish_reason=reason,
        **fields,
    )


class WrittenStream:
    """Implements TextStream over the deltas of `parts`; the last of them carries `reason`."""

    prompts = ((0,) * PROMPT_LEN,)
    courses = ()
    request_ids = ()

    def __init__(
        self, parts: Sequence[str | ToolCallDelta], reason: FinishReason = FinishReason.STOP, **last: Any
    ) -> None:
        *others, end = parts
        self._deltas = [delta(number, part) for number, part in enumerate(others, start=1)]
        self._deltas.append(delta(len(parts), end, reason, **last))

    async def __aiter__(self) -> AsyncIterator[ChatDelta]:
        for each in self._deltas:
            yield each

    async def aclose(self) -> None:
        pass
