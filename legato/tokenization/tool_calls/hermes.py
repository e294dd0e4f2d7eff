"""Calls as Hermes, Qwen and many others write them: <tool_call>{"name": …, "arguments": {…}}</tool_call>."""

from legato.tokenization.tool_calls.call_reader import CallReader, Steps
from legato.tokenization.tool_calls.format import ToolFormat

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesReader(CallReader):
    """A call stands between two markers; the second may be missing."""

    def _calls(self) -> Steps:
        yield from self._until(OPEN)
        yield from self._object()
        yield from self._follows(CLOSE)


HERMES = ToolFormat(
    kind="hermes",
    make_reader=HermesReader,
    marker=OPEN,
    markers=(OPEN, CLOSE),
    before_name=f'{OPEN}\n{{"name": "',
    before_arguments='", "arguments": ',
    after_arguments=f"}}\n{CLOSE}",
    between="\n",
)
