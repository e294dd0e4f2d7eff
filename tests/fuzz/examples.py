"""How the fuzzers draw: the same examples in every run, few in `make test`, many in `make test-slow`."""

import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

EDGES = (0, 1, 2, 7, 8, 31, 32, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)


def counts(few: int, many: int) -> pytest.MarkDecorator:
    """Run a test with few examples, and in the slow tests with many."""
    return pytest.mark.parametrize("num_examples", [few, pytest.param(many, marks=pytest.mark.slow)])


def run_examples(num_examples: int, check: Callable[[Any], None], values: st.SearchStrategy[Any]) -> None:
    """Call `check` with drawn values. What fails is shrunk."""

    @settings(
        max_examples=num_examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(values)
    def run(value: Any) -> None:
        check(value)

    run()


@contextmanager
def memory_below(max_bytes: int) -> Iterator[None]:
    """Fail when what Python and numpy allocate meanwhile goes beyond."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= max_bytes, f"{peak} bytes were allocated"


@st.composite
def damaged(draw: st.DrawFn, whole: bytes, header_bytes: int) -> bytes:
    """The bytes of a file with one to four faults in its header."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, min(header_bytes, len(data)) - 1)) if data else 0
        match draw(st.sampled_from(("number", "number", "bytes", "cut", "insert", "remove", "repeat"))):
            case "number":
                width = draw(st.sampled_from((1, 2, 4, 8)))
                number = draw(st.sampled_from(EDGES)) + draw(st.integers(-1, 1))
                data[place : place + width] = (number % 2 ** (8 * width)).to_bytes(width, "little")
            case "bytes":
                data[place : place + 4] = draw(st.binary(min_size=1, max_size=4))
            case "cut":
                del data[place:]
            case "insert":
                data[place:place] = draw(st.binary(min_size=1, max_size=16))
            case "remove":
                del data[place : place + draw(st.integers(1, 32))]
            case "repeat":
                data[place:place] = data[place : place + draw(st.integers(1, 64))]
    return bytes(data)


ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 3, 2**31, 2**63, -(2**63), 2**64, 10**30, 10**400, 0.0, -0.0, 0.5, 1e308),
    *("", "x", "0", "\0", "\x1b[31m", "ключ", "x" * 3000, "{{ 7 }}", "../../etc/passwd"),
    *([], [None], [[]], [0, -1], ["x"] * 600, [[[[[]]]]], {}, {"x": None}, {"": {"": {}}}, {"type": "x"}),
)  # fmt: skip


def nested(depth: int, kind: type) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value] if kind is list else {"items": value}
    return value


odd_values = st.one_of(
    st.sampled_from(ODD_VALUES),
    st.builds(nested, st.integers(1, 300), st.sampled_from((list, dict))),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
        max_leaves=12,
    ),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of everything inside a JSON value."""
    items: Sequence[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


@st.composite
def mutated(draw: st.DrawFn, value: Any, *, also: Sequence[str] = ()) -> Any:
    """A JSON value with one to three of its parts replaced, left out or added; `also` are keys to add."""
    found = _copied(value)
    for _ in range(draw(st.integers(1, 3))):
        paths = list(places(found)) + [(key,) for key in also]
        if not paths:
            break
        *way, last = draw(st.sampled_from(paths))
        target = found
        for key in way:
            target = target[key]
        if draw(st.integers(0, 5)) == 0 and last in (
            target if isinstance(target, dict) else range(len(target))
        ):
            del target[last]
        else:
            target[last] = _copied(draw(odd_values))  # it may be changed by the next
    return found


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list) else value
