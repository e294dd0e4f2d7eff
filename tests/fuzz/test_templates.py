"""Random chat templates: a text within its bound or one error; no way out, no work without end."""

from itertools import count

import pytest
from hypothesis import strategies as st

from legato.core.errors import ModelError, RequestError
from legato.tokenization.chat_template import ChatTemplate
from legato.tokenization.template_sandbox import MAX_TEXT_LEN
from tests.fuzz.examples import counts, memory_below, run_examples

MAX_MEMORY_BYTES = 256 * 2**20
INTERNALS = ("<class", "<function", "<built-in", "<bound method", "<module", " at 0x")
PREFIX = "{% set n = namespace(x=[]) %}"
LOOKS_PER_S = 1000  # by the clock of these tests: it is looked at before each piece of work
SECRET = "a secret of the server"

ATOMS = (
    *("messages", "messages[0]", "messages[0].content", "tools", "loop", "self", "caller", "range(1000)"),
    *("1", "0", "-1", "2.5", "10**9", "'x'", "'x' * 100000", "[1] * 1000", "('a', ('b',))", "{'a': [1]}"),
    *("n", "n.x", "none", "true", "undefined_name", "namespace(y=1)", "dict(a=1)", "raise_exception", "x"),
)
ATTRIBUTES = (
    *(
        "__class__",
        "__mro__",
        "__globals__",
        "__subclasses__()",
        "__init__",
        "mro()",
        "gi_frame",
        "f_globals",
    ),
    *("append(1)", "update({})", "clear()", "pop()", "items()", "keys()", "values()", "get('a')", "copy()"),
    *("format(1, 2)", "format_map({})", "join([1, 'a'])", "replace('x', 'yy')", "split('x')", "upper()"),
    *("encode()", "center(10**9)", "zfill(9)", "translate({120: 'y'})", "index(1)", "count('x')", "real"),
)
FILTERS = (
    *("string", "tojson", "list", "length", "upper", "trim", "join(',')", "replace('x', 'xx')", "safe", "e"),
    *(
        "map('string')",
        "map('upper')",
        "map(attribute='content')",
        "select",
        "sort",
        "unique",
        "groupby('role')",
    ),
    *(
        "attr('__class__')",
        "first",
        "last",
        "reverse",
        "sum",
        "int",
        "float",
        "abs",
        "round(5)",
        "default(n)",
    ),
    *(
        "selectattr('role', 'eq', 'user')",
        "dictsort",
        "items",
        "title",
        "truncate(5)",
        "min",
        "max",
        "center(99)",
    ),
)
OPERATORS = ("+", "-", "*", "/", "//", "%", "**", "~", "==", "<", "in", "not in", "and", "or")

expressions = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(ATTRIBUTES)).map(lambda each: f"({each[0]}).{each[1]}"),
        st.tuples(inner, st.sampled_from(FILTERS)).map(lambda each: f"({each[0]}) | {each[1]}"),
        st.tuples(inner, st.sampled_from(OPERATORS), inner).map(lambda each: "({}) {} ({})".format(*each)),
        st.tuples(inner, inner).map(lambda each: f"[{each[0]}, {each[1]}]"),
        st.tuples(inner, inner).map(lambda each: f"({each[0]})[{each[1]}]"),
        st.tuples(inner, inner).map(lambda each: f"({each[0]})[:({each[1]})]"),
    ),
    max_leaves=6,
)
statements = st.recursive(
    expressions.map(lambda each: f"{{{{ {each} }}}}"),
    lambda inner: st.one_of(
        st.tuples(expressions, inner).map(lambda each: f"{{% for x in {each[0]} %}}{each[1]}{{% endfor %}}"),
        st.tuples(expressions, inner).map(lambda each: f"{{% if {each[0]} %}}{each[1]}{{% endif %}}"),
        expressions.map(lambda each: f"{{% set n.x = {each} %}}"),
        inner.map(lambda each: f"{{% macro f() %}}{each}{{{{ f() }}}}{{% endmacro %}}{{{{ f() }}}}"),
        st.lists(inner, min_size=2, max_size=4).map("".join),
    ),
    max_leaves=5,
)


def render(source: str) -> None:
    looks = count()
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    with memory_below(MAX_MEMORY_BYTES):
        try:
            template = ChatTemplate(PREFIX + source, clock=lambda: next(looks) / LOOKS_PER_S)
            text = template.render(messages)
        except (ModelError, RequestError) as error:
            text = str(error)
            assert len(text) < 2000
    assert len(text) <= MAX_TEXT_LEN
    assert not any(each in text for each in INTERNALS)
    assert SECRET not in text
    assert messages == [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]


@counts(20, 1_000)
def test_random_templates(num_examples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEGATO_API_KEY", SECRET)
    run_examples(num_examples, render, statements)
