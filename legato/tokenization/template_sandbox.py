"""A Jinja environment for templates that strangers wrote: no way out, and bounded work."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_TEXT_LEN = 4 << 20  # characters of any text that a template builds
MAX_OPERATIONS = 1_000_000  # loop turns and calls of one rendering, and its work on texts and lists
CHARS_PER_OPERATION = 4096  # of a text that is copied or searched
MAX_SECONDS = 1.0  # of one rendering
REFUSED_METHODS = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})  # they pad to any width
REFUSED_FILTERS = ("center", "format", "indent", "wordwrap", "xmlattr")
# These read a text at the speed of a copy; other filters take each of its characters in hand.
FAST_FILTERS = frozenset(
    {"capitalize", "count", "d", "default", "e", "escape", "first", "float", "forceescape", "int", "join"}
    | {"last", "length", "lower", "replace", "safe", "string", "tojson", "trim", "upper"}
)
REFUSED_GLOBALS = ("cycler", "joiner", "lipsum")  # helpers for web pages

_COUNTED, _CONCATENATED, _CHARGED = "counted_by_legato", "concatenated_by_legato", "charged_by_legato"
_WIDE_FIELD = re.compile(r"\d{4}|\*|\{[^{}]*\{")  # a width of four digits, or one that is computed


@dataclass(slots=True)
class _Budget:
    """What one rendering may still do, and until when by `clock`, in seconds."""

    operations: int
    deadline_s: float
    clock: Callable[[], float]


_budget: ContextVar[_Budget] = ContextVar("budget")


class GenerationTag(Extension):
    """{% generation %} … {% endgeneration %} marks what to train on; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012  # Jinja declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """What chat templates may use, by the same names as in Hugging Face's environment for them.

    Jinja's sandbox keeps a template from Python's internals. What it leaves open is work without end
    and texts without bound, so loop turns, calls and what they read are counted here, under a deadline,
    and the operations that lengthen a text are checked before they are done. All faults are TemplateError.
    """

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag])
        for name in REFUSED_FILTERS:
            del self.filters[name]
        for name in REFUSED_GLOBALS:
            del self.globals[name]
        self.filters |= {"tojson": _to_json, "replace": _replace, "join": _join}
        self.filters |= {_COUNTED: _counted, _CONCATENATED: _concatenated, _CHARGED: _charged}
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Lead loops and `~` through filters of our own, since Jinja has no hook for them."""
        template = super()._parse(source, name, filename)
        _bound(template)
        template.set_environment(self)
        return template

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        _charged(owner)
        if isinstance(owner, str):
            if name in REFUSED_METHODS:
                raise SecurityError(f"the method {name} is not available")
            if name == "replace":
                return _replace(owner, *args, **kwargs)
            if name == "join" and args:
                return _join(args[0], owner)
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _charged(left)
        _charged(right)
        if operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
            _check_len(len(left) + len(right))
        elif operator in ("*", "**"):
            _check_len(_magnitude(left) * _magnitude(right))
        elif operator == "%" and isinstance(left, str):
            _check_format(left, left.count("%"), right)
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """The sandbox's own str.format, checked; None when the value is not that method."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        layout = value.__self__

        def checked(*args: Any, **kwargs: Any) -> str:
            _check_format(layout, layout.count("{"), (args, kwargs))
            return wrapped(*args, **kwargs)

        return checked


def render_bounded(generate: Callable[[], Iterable[str]], clock: Callable[[], float]) -> str:
    """Join the pieces of a rendering, within the limits. Raises TemplateError beyond them."""
    token = _budget.set(_Budget(MAX_OPERATIONS, clock() + MAX_SECONDS, clock))
    try:
        pieces, text_len = [], 0
        for piece in generate():
            text_len += len(piece)
            _check_len(text_len)
            pieces.append(piece)
        return "".join(pieces)
    finally:
        _budget.reset(token)


def _bound(parent: nodes.Node) -> None:
    for name, value in parent.iter_fields():
        if isinstance(value, list):
            setattr(parent, name, [_bounded(item) for item in value])
        else:
            setattr(parent, name, _bounded(value))


def _bounded(child: Any) -> Any:
    """A part of a syntax tree (or a plain value in it), with its work led through filters of our own."""
    if isinstance(child, nodes.Node):
        _bound(child)
    if isinstance(child, nodes.For):
        child.iter = nodes.Filter(child.iter, _COUNTED, [], [], None, None)
    is_slice = isinstance(child, nodes.Getitem) and isinstance(child.arg, nodes.Slice)
    if is_slice or (isinstance(child, nodes.Filter) and child.node is not None):
        is_fast = nodes.Const(is_slice or child.name in FAST_FILTERS)
        child.node = nodes.Filter(child.node, _CHARGED, [is_fast], [], None, None)
    if isinstance(child, nodes.Concat):
        return nodes.Filter(nodes.List(child.nodes), _CONCATENATED, [], [], None, None)
    return child


def _spend(operations: int) -> None:
    budget = _budget.get()
    budget.operations -= operations
    if budget.operations < 0:
        raise SecurityError(f"it takes more than {MAX_OPERATIONS:,} loop turns and calls")
    if budget.clock() > budget.deadline_s:
        raise SecurityError(f"it takes more than {MAX_SECONDS:g} s")


def _check_len(text_len: int) -> None:
    if text_len > MAX_TEXT_LEN:
        raise SecurityError(f"it builds a text of more than {MAX_TEXT_LEN:,} characters")


def _check_format(layout: str, num_fields: int, values: Any) -> None:
    if _WIDE_FIELD.search(layout):
        raise SecurityError("it formats to a great or computed width")
    _check_len(num_fields * len(str(values)))


def _magnitude(value: Any) -> int:
    return len(value) if hasattr(value, "__len__") else abs(int(value))


def _charged(value: Any, is_fast: bool = True) -> Any:
    """The value, which is about to be read as a whole."""
    size = len(value) if isinstance(value, str | list | tuple | dict) else 0
    _spend(1 + (size // CHARS_PER_OPERATION if is_fast and isinstance(value, str) else size))
    return value


class _Turns(list[Any]):
    """What a loop goes over; each turn looks at the clock."""

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            _spend(0)
            yield item


def _counted(items: Iterable[Any]) -> list[Any]:
    turns = _Turns(items)
    _spend(len(turns))
    return turns


def _concatenated(parts: Iterable[Any]) -> str:
    texts = [str(part) for part in parts]
    _check_len(sum(map(len, texts)))
    return "".join(texts)


def _join(items: Iterable[Any], separator: str = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        items = [item[attribute] for item in items]
    texts = [str(item) for item in items]
    _check_len(sum(map(len, texts)) + len(separator) * len(texts))
    return separator.join(texts)


def _replace(text: Any, old: str, new: str, count: int = -1) -> str:
    text = str(text)
    _check_len(len(text) + text.count(old) * len(new))
    replaced: str = text.replace(old, new, count)
    return replaced


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As Hugging Face's: no HTML escapes, and characters as they are."""
    if indent is not None and indent > 16:
        raise SecurityError("tojson: indent is at most 16")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(layout: str) -> str:
    _check_format(layout, 0, ())
    return datetime.now().strftime(layout)
