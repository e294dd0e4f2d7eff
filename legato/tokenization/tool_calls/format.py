"""How a model writes calls of tools, said once, for all who read, render or demand them."""

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from legato.tokenization.tool_calls.reader import ToolCallReader

MakeReader = Callable[[Collection[str], Callable[[], str]], ToolCallReader]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """`begin`, calls with `between` between them, `end`.

    A call is `before_name`, its tool's name, `before_arguments`, a JSON object, `after_arguments`. Readers
    take more than this: what models write is seldom to the letter.

    kind       its name for --tool-call-parser
    marker     what no text in front of a call holds, since it is read as the beginning of one
    is_marked  calls begin with the marker; else they may also begin the answer without it
    markers    texts that may be tokens of their own
    token_ids  those of them that are tokens of the model, and their ids
    make_id    makes the id of a call
    """

    kind: str
    make_reader: MakeReader
    marker: str
    is_marked: bool = True
    markers: tuple[str, ...]
    begin: str = ""
    before_name: str
    before_arguments: str
    after_arguments: str
    between: str
    end: str = ""
    make_id: Callable[[], str] = lambda: f"call_{secrets.token_hex(12)}"
    token_ids: Mapping[str, int] = field(default_factory=dict)

    def reader(self, names: Collection[str]) -> ToolCallReader:
        """A reader of one answer that may call the tools of these names."""
        return self.make_reader(names, self.make_id)

    def call_text(self, name: str, arguments: str) -> str:
        return f"{self.before_name}{name}{self.before_arguments}{arguments}{self.after_arguments}"

    def calls_text(self, calls: Iterable[tuple[str, str]]) -> str:
        """Calls, each a name and the JSON text of its arguments, as the model would write them."""
        texts = (self.call_text(name, arguments) for name, arguments in calls)
        return f"{self.begin}{self.between.join(texts)}{self.end}"
