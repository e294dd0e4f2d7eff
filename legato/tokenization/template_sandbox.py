"""A Jinja environment for templates that strangers wrote: no way out, and bounded work."""

import json
import re
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, ValuesView
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn

from jinja2 import Environment, nodes, pass_context, pass_environment
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_round, do_sum
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_TEXT_LEN = 4 << 20  # characters of any text that a template builds
MAX_OPERATIONS = 1_000_000  # loop turns and calls of one rendering, and its work on texts and lists
CHARS_PER_OPERATION = 4096  # of a text that is copied or searched
BUILT_CHARS_PER_OPERATION = 256  # of a new one: it may be kept, so this bounds the memory
MAX_SECONDS = 1.0  # of one rendering
MAX_NUMBER_BITS = 4096
MAX_DECIMALS = 16
# They pad to any width, replace a character by a long text, or leave texts for bytes, which are not watched.
REFUSED_METHODS = frozenset(
    {"center", "encode", "expandtabs", "ljust", "rjust", "to_bytes", "translate", "zfill"}
)
# These read a text at the speed of a copy; other filters take each of its characters in hand.
FAST_FILTERS = frozenset(
    {"capitalize", "count", "d", "default", "e", "escape", "first", "float", "forceescape", "int", "join"}
    | {"last", "length", "lower", "replace", "safe", "string", "tojson", "trim", "upper"}
)
# These look at the items of a list alone; other filters at all that is in them.
SHALLOW_FILTERS = frozenset(
    {"attr", "count", "d", "default", "first", "items", "last", "length", "list", "map", "reject"}
    | {"rejectattr", "reverse", "select", "selectattr"}
)
# These go through a generator, such as map() gives; others would show nothing but its place in memory.
ITERATING_FILTERS = SHALLOW_FILTERS | {"groupby", "join", "max", "min", "sort", "sum", "unique"}
# Beside these Jinja has what web pages need: it pads, wraps, fills or marks up.
FILTERS = (
    FAST_FILTERS
    | SHALLOW_FILTERS
    | {"abs", "dictsort", "groupby", "max", "min", "round", "sort", "sum", "title", "truncate", "unique"}
)
COMPARING_TESTS = (
    *("==", "!=", ">", ">=", "<", "<=", "eq", "equalto", "ne", "gt", "greaterthan", "ge", "lt"),
    *("lessthan", "le", "in"),
)
REFUSED_GLOBALS = ("cycler", "joiner", "lipsum")  # helpers for web pages

GENERATOR = "a generator is no value yet; put | list behind it"
FUNCTION = "a function is no value; call it"  # as text it would show its place in memory
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

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)  # what is set inside stays inside


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """What chat templates may use, by the same names as in Hugging Face's environment for them.

    Jinja's sandbox keeps a template from Python's internals. What it leaves open is work without end
    and texts without bound, so loop turns, calls and what they read are counted here, under a deadline,
    and the operations that lengthen a text are checked before they are done. All faults are TemplateError.
    """

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, GenerationTag],
            finalize=pass_context(_printable),
        )
        for name in REFUSED_GLOBALS:
            del self.globals[name]
        own: dict[str, Any] = {
            "tojson": _to_json,
            "replace": _replace,
            "join": _join,
            "sum": _sum,
            "round": _round,
        }
        known: dict[str, Any] = {**self.filters, **own}
        self.filters = {name: _guarded(known[name], name) for name in FILTERS}
        self.tests |= {name: _guarded(self.tests[name], name) for name in COMPARING_TESTS}
        self.filters |= {_COUNTED: _counted, _CONCATENATED: _concatenated, _CHARGED: _charged}
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Lead loops, comparisons and `~` through filters of our own, since Jinja has no hook for them."""
        template = super()._parse(source, name, filename)
        _bound(template)
        template.set_environment(self)
        return template

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        _charged(owner)
        if name in REFUSED_METHODS and isinstance(owner, str | int | float):
            raise SecurityError(f"the method {name} is not available")
        if isinstance(owner, list | tuple | dict):
            _charged((args, kwargs))  # to be compared with what is in it
        if isinstance(owner, str):
            if name == "replace":
                return _replace(owner, *args, **kwargs)
            if name == "join" and args:
                return _join(args[0], owner)
        return _built(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _charged(left, is_whole=False)
        _charged(right, is_whole=False)
        if operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
            _check_len(len(left) + len(right))
        elif operator in ("*", "**"):
            _check_product(operator, left, right)
        elif operator == "%" and isinstance(left, str):
            _check_format(left, left.count("%"), right)
        return _built(super().call_binop(context, operator, left, right))

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
    if isinstance(child, nodes.Compare | nodes.Operand):
        child.expr = _reading(child.expr)
    if isinstance(child, nodes.Pair):
        child.key = _reading(child.key)  # whose hash is taken
    if isinstance(child, nodes.Getitem):
        if isinstance(child.arg, nodes.Slice):
            child.node = _reading(child.node, is_whole=False)
        elif not isinstance(child.arg, nodes.Const):
            child.arg = _reading(child.arg)
    if isinstance(child, nodes.Concat):
        return nodes.Filter(nodes.List(child.nodes), _CONCATENATED, [], [], None, None)
    return child


def _reading(node: nodes.Expr, *, is_whole: bool = True) -> nodes.Expr:
    """The node, charged for what it holds before anything else is done with it."""
    if isinstance(node, nodes.Const):
        return node
    return nodes.Filter(node, _CHARGED, [nodes.Const(True), nodes.Const(is_whole)], [], None, None)


def _guarded(function: Any, name: str) -> Callable[..., Any]:
    """A filter or test, charged for what it reads and what it builds, called by name too, as map() does."""
    place = 1 if hasattr(function, "jinja_pass_arg") else 0
    is_fast, is_whole = name not in FILTERS or name in FAST_FILTERS, name not in SHALLOW_FILTERS

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if isinstance(args[place], Iterator) and name not in ITERATING_FILTERS:
            raise SecurityError(f"{name}: {GENERATOR}")
        _charged(args[place], is_fast, is_whole)
        return _built(function(*args, **kwargs))

    return guarded


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
    _check_len(num_fields * _count_chars(values))


def _check_product(operator: str, left: Any, right: Any) -> None:
    lengths = [len(each) for each in (left, right) if hasattr(each, "__len__")]
    if lengths and operator == "*":
        times = right if hasattr(left, "__len__") else left
        _check_len(lengths[0] * max(0, times) if isinstance(times, int) else 0)
    elif isinstance(left, int) and isinstance(right, int):
        bits = (left.bit_length(), right.bit_length())
        if (sum(bits) if operator == "*" else bits[0] * abs(right)) > MAX_NUMBER_BITS:
            raise SecurityError(f"it computes a number of more than {MAX_NUMBER_BITS} bits")


def _charged(value: Any, is_fast: bool = True, is_whole: bool = True) -> Any:
    """The value, which is about to be read: as a whole, or its first level alone."""
    if isinstance(value, str):
        _spend(1 + (len(value) // CHARS_PER_OPERATION if is_fast else len(value)))
    elif is_whole and not isinstance(value, Iterator):
        _count_chars(value)
    else:
        _spend(1 + (len(value) if isinstance(value, list | tuple | dict) else 0))
    return value


def _count_chars(value: Any) -> int:
    """About as many as the value has when it is written out: a part that occurs twice counts twice."""
    num_chars, unread = 0, [value]
    while unread:
        part = unread.pop()
        items: Any = ()
        if isinstance(part, str):
            num_chars += len(part)
        elif isinstance(part, int):
            num_chars += part.bit_length()
        elif isinstance(part, dict):
            items = [*part, *part.values()]
        elif isinstance(part, list | tuple | KeysView | ValuesView | ItemsView):
            items = part
        elif isinstance(part, Namespace):
            raise SecurityError("a namespace cannot be read as a whole")
        elif isinstance(part, Iterator):
            raise SecurityError(GENERATOR)
        elif callable(part) and not isinstance(part, Undefined):
            raise SecurityError(FUNCTION)
        num_chars += len(items)
        _check_len(num_chars)
        _spend(1 + len(items))
        unread += items
    return num_chars


def _printable(context: Context, value: Any) -> Any:
    """What stands between {{ and }}; Jinja makes it a text."""
    if not isinstance(value, str):
        _count_chars(value)
    return value


def _built(value: Any) -> Any:
    """The value, which is new."""
    if isinstance(value, str):
        _check_len(len(value))
        _spend(len(value) // BUILT_CHARS_PER_OPERATION)
    elif isinstance(value, list):
        _spend(len(value))
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


def _concatenated(parts: list[Any]) -> str:
    _count_chars(parts)
    text: str = _built("".join(map(str, parts)))
    return text


def _join(items: Iterable[Any], separator: str = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        items = [item[attribute] for item in items]
    items = list(items)
    _count_chars(items)
    texts = [str(item) for item in items]
    _check_len(sum(map(len, texts)) + len(separator) * len(texts))
    text: str = _built(separator.join(texts))
    return text


def _replace(text: Any, old: str, new: str, count: int = -1) -> str:
    _count_chars(text)
    text = str(text)
    _check_len(len(text) + text.count(old) * len(new))
    replaced: str = _built(text.replace(old, new, count))
    return replaced


@pass_environment
def _sum(environment: Environment, items: Iterable[Any], attribute: Any = None, start: Any = 0) -> Any:
    if not isinstance(start, int | float):
        raise SecurityError("sum: numbers alone are added")
    return do_sum(environment, items, attribute, start)


def _round(value: float, precision: int = 0, method: Any = "common") -> float:
    if abs(precision) > MAX_DECIMALS:
        raise SecurityError(f"round: precision is at most {MAX_DECIMALS}")
    return do_round(value, precision, method)


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
    _check_format(layout, layout.count("%"), " " * 32)
    return datetime.now().strftime(layout)
