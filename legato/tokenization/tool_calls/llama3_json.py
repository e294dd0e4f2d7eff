"""Calls as Llama 3 writes them: {"name": …, "parameters": {…}}, alone or behind <|python_tag|>."""

from collections.abc import Callable, Collection

from legato.tokenization.tool_calls.call_reader import CallReader, Steps
from legato.tokenization.tool_calls.format import ToolFormat

TAG, SEPARATOR = "<|python_tag|>", ";"


class Llama3JsonReader(CallReader):
    """A call begins the answer, follows the tag, or follows another call and a semicolon."""

    def __init__(self, names: Collection[str], make_id: Callable[[], str]) -> None:
        self._is_at_start = True
        super().__init__(names, make_id)

    def _calls(self) -> Steps:
        if self._is_at_start:
            self._is_at_start = False
        else:
            yield from self._until(TAG)
        yield from self._object()
        while (yield from self._another(SEPARATOR)):
            yield from self._object()


LLAMA3_JSON = ToolFormat(
    kind="llama3_json",
    make_reader=Llama3JsonReader,
    marker=TAG,
    is_marked=False,
    markers=(TAG,),
    before_name='{"name": "',
    before_arguments='", "parameters": ',
    after_arguments="}",
    between=f"{SEPARATOR} ",
)
