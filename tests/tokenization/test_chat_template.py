"""Chat templates: Hugging Face's text, errors that are the request's, and no harm from a hostile one."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from legato.core.errors import ModelError, RequestError
from legato.modelfiles.catalog import resolve
from legato.tokenization.chat_template import ChatTemplate, load_chat_template
from tests.model_builders import TINY_GGUF, gguf_bytes, write_json

HELLO = [{"role": "user", "content": "Hello"}]
CONTENTS = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"

CHATS: list[list[dict[str, Any]]] = [
    HELLO,
    [{"role": "system", "content": "Be brief."}, *HELLO],
    [
        *HELLO,
        {"role": "assistant", "content": "Hi <b> & 'you'"},
        {"role": "user", "content": " 한국어 🧑‍🚀\n"},
    ],
]

ELABORATE = """{%- set ns = namespace(count=0, parts=[]) -%}
{{ bos_token }}
{%- macro turn(m, n) %}<{{ m.role | upper }} {{ n }}>
{{- m['content'] | trim | replace('<b>', '*') }}{% endmacro -%}
{% for m in messages %}
  {%- if m.role == 'system' %}{% continue %}{% endif %}
  {%- set ns.count = ns.count + 1 %}
  {%- set ns.parts = ns.parts + [m.role ~ '/' ~ loop.index0] %}
    {{ turn(m, ns.count) }}{{ '' if loop.last else ', ' }}{{ loop.length }}
  {% generation %}{{ m | tojson }}{% endgeneration %}
{% endfor %}
{{ ns.parts | join('; ') }} {{ '; '.join(ns.parts) }}
{{ '%s-%03d' % ('x', 7) }} {{ '{:>6}|{}'.format('ab', 1.5) }}
{{ {'b': 1, 'a': ['é', none, true]} | tojson(indent=2) }}
{{ 'aXbX'.replace('X', '--', 1) }} {{ 2 ** 10 * '=' | length }}
{% if tools is defined and tools %}{{ tools | tojson }}{% endif %}
{%- if add_generation_prompt %}<go>{% endif %}"""


@pytest.mark.oracle
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_elaborate_template_gives_the_text_of_transformers(add_generation_prompt: bool) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template  # takes seconds to import

    variables: dict[str, Any] = {"tools": [{"type": "function", "name": "f<é>"}], "bos_token": "<s>"}
    oracle, _ = render_jinja_template(
        CHATS, chat_template=ELABORATE, add_generation_prompt=add_generation_prompt, **variables
    )
    template = ChatTemplate(ELABORATE, {"bos": "<s>"})
    assert [
        template.render(chat, add_generation_prompt, tools=variables["tools"]) for chat in CHATS
    ] == oracle


@pytest.mark.model
@pytest.mark.oracle
def test_default_model_gives_the_text_of_transformers() -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    template = load_chat_template(resolve("smollm2-135m-instruct").path)
    assert template is not None
    oracle, _ = render_jinja_template(CHATS, chat_template=template.source, add_generation_prompt=True)
    assert [template.render(chat) for chat in CHATS] == oracle
    assert template.render(CHATS[1]) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.model
def test_final_message_of_the_default_model_is_continued_without_its_end_marker() -> None:
    template = load_chat_template(resolve("smollm2-135m-instruct").path)
    assert template is not None
    chat = [*HELLO, {"role": "assistant", "content": "Once upon "}]
    whole = template.render(chat, False)
    assert template.render(chat, False, True) == whole.removesuffix("<|im_end|>\n")
    assert whole.endswith("Once upon <|im_end|>\n")


@pytest.mark.parametrize("content", ["Once upon ", "", None])
def test_final_message_is_continued_as_it_stands(content: str | None) -> None:
    template = ChatTemplate("{% for m in messages %}[{{ m.role }}:{{ m.content | trim }}]{% endfor %}")
    chat = [*HELLO, {"role": "assistant", "content": content}]
    assert template.render(chat, False, True) == f"[user:Hello][assistant:{content or ''}"
    assert chat[-1]["content"] == content


@pytest.mark.parametrize(
    ("source", "chat", "reason"),
    [
        (CONTENTS, HELLO, "a last message of the assistant's"),
        ("{{ messages[0].content }}", [*HELLO, {"role": "assistant", "content": "x"}], "does not show"),
    ],
)
def test_what_cannot_be_continued_is_refused(source: str, chat: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as refusal:
        ChatTemplate(source).render(chat, False, True)
    assert refusal.value.param == "continue_final_message"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('Roles must alternate') }}", "Roles must alternate"),
        ("{{ messages[3].content.text }}", "has no element 3"),
        ("{{ messages[0].content + none }}", "TypeError"),
        ("{% include 'other' %}", "no loader"),
    ],
)
def test_refusal_of_the_template_is_the_requests_fault_with_its_reason(source: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as refusal:
        ChatTemplate(source).render(HELLO)
    assert refusal.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ self.__init__.__globals__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__code__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'content': 'x'}) }}",
        "{{ ('{0.__class__}').format(1) }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ joiner('x').__class__ }}",
        "{{ ('x' | attr('__class__')).mro() }}",
    ],
)
def test_hostile_template_finds_no_way_out(source: str) -> None:
    messages = [dict(message) for message in HELLO]
    template = ChatTemplate(source)
    with suppress(RequestError):  # what Jinja calls unsafe is an error when used, and "" when shown
        assert template.render(messages) == ""
    assert messages == HELLO


GROW = "{% set n = namespace(x='xx') %}{% for i in range(60) %}{% set n.x = GROWN %}{% endfor %}"


# Two equal values that are small in memory, and look endless to who compares, prints or hashes them.
TWINS = (
    "{% set n = namespace(a=(1,), b=(1,)) %}"
    "{% for i in range(60) %}{% set n.a = (n.a, n.a) %}{% set n.b = (n.b, n.b) %}{% endfor %}"
)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10 ** 10 }}",
        "{{ 10 ** 10 ** 10 ** 10 ** 10 }}",
        "{% for i in range(99999) %}{{ 'x' * 100 }}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        GROW.replace("GROWN", "n.x ~ n.x"),
        GROW.replace("GROWN", "n.x + n.x"),
        GROW.replace("GROWN", "n.x.replace('x', n.x)"),
        GROW.replace("GROWN", "n.x | replace('x', n.x)"),
        GROW.replace("GROWN", "[n.x, n.x] | join"),
        GROW.replace("GROWN", "n.x.join([n.x, n.x])"),
        GROW.replace("'xx'", "3").replace("GROWN", "n.x * n.x"),
        "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 999999999) }}",
        "{{ 'x'.ljust(999999999) }}",
        "{{ strftime_now('%0999999999d') }}",
        "{{ [1] | tojson(indent=999999999) }}",
        "{{ 'x'.encode().ljust(999999999) }}",
        "{{ (5).to_bytes(999999999, 'big') }}",
        "{{ ('x' * 2000).translate({120: 'y' * 2000000}) }}",
        "{{ 1.5 | round(999999999, 'ceil') }}",
        "{{ ([[1] * 2000] * 2000) | sum(start=[]) }}",
        "{{ ([['x' * 4000000] * 1000] | map('string')) | list }}",
        "{{ ['x' * 4000000] * 1000 }}",
        "{{ (['x' * 4000000] * 1000) | tojson }}",
        "{{ '' ~ (['x' * 4000000] * 1000) }}",
        "{{ '%s' % [['x' * 4000000] * 1000] }}",
        "{{ [['x' * 4000000] * 1000] | join }}",
        "{{ messages | map('string') }}",
        "{{ [messages | map('string')] }}",
        "{{ (messages | map('string')) | upper }}",
        "{% set n = namespace() %}{% set n.x = [n] %}{{ n.x }}",
        "{% set n = namespace(x=[]) %}"
        "{% for i in range(9999) %}{% set n.x = n.x + ['x' * 4000000] %}{% endfor %}",
        TWINS + "{{ n.a == n.b }}",
        TWINS + "{{ n.a in [n.b] }}",
        TWINS + "{{ [n.a].index(n.b) }}",
        TWINS + "{{ [n.a, n.b] | unique | list }}",
        TWINS + "{{ {n.a: 1} }}",
        TWINS + "{{ {}[n.a] }}",
    ],
)
def test_template_without_end_or_bound_is_stopped(source: str) -> None:
    with pytest.raises(RequestError):
        ChatTemplate(source).render(HELLO)


@pytest.mark.parametrize(
    "work",
    [
        "{% for i in range(9) %}{% endfor %}",
        "{{ messages | length }}",
        "{{ bos_token[1:] }}",
        "{{ 1 + 1 }}",
        "{{ bos_token.strip() }}",
    ],
)
def test_whatever_a_template_does_is_under_a_deadline(work: str) -> None:
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 0.4  # the deadline is 1 s after the first look
        return now

    with pytest.raises(RequestError, match="more than 1 s"):
        ChatTemplate(work * 4, {"bos": "<s>"}, clock).render(HELLO)


@pytest.mark.parametrize("work", ["n.x[1:]", "n.x + ''", "n.x.upper()", "n.x | upper", "n.x | list"])
def test_work_on_a_long_text_counts_by_its_length(work: str) -> None:
    loop = "{% for i in range(TURNS) %}{% set y = WORK %}{% endfor %}".replace("WORK", work)
    source = "{% set n = namespace(x='x' * 4000000) %}" + loop
    ChatTemplate(source.replace("4000000", "4").replace("TURNS", "1100"), clock=lambda: 0.0).render(HELLO)
    with pytest.raises(RequestError, match="loop turns"):
        ChatTemplate(source.replace("TURNS", "1100"), clock=lambda: 0.0).render(HELLO)


def test_budget_is_new_for_every_rendering() -> None:
    template = ChatTemplate("{% for i in range(90000) %}{% endfor %}{{ messages[0].content }}")
    assert [template.render(HELLO) for _ in range(15)] == ["Hello"] * 15


@pytest.mark.parametrize(
    "source",
    [
        "{{ [1, 2] | batch(999999999, 0) | list }}",
        "{{ [1, 2] | slice(999999999) | list }}",
        "{{ messages | pprint }}",
        "{{ ('<>' * 400000) | striptags }}",
        "{% for i in [1] %}" * 30 + "{% endfor %}" * 30,
        "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
        "{{ " + "-" * 100_000 + "1 }}",
    ],
)
def test_template_that_could_only_do_harm_is_refused_when_it_is_loaded(source: str) -> None:
    with pytest.raises(ModelError, match=r"cannot be read: .*--chat-template"):
        ChatTemplate(source)


def test_plain_arithmetic_is_no_work_on_texts() -> None:
    assert (
        ChatTemplate("{{ 3000 * 3000 }} {{ 2 ** 10 }} {{ 1.26 | round(1) }}").render(HELLO)
        == "9000000 1024 1.3"
    )


def test_template_that_is_none_is_refused_when_it_is_loaded() -> None:
    with pytest.raises(ModelError, match=r"cannot be read: .*--chat-template"):
        ChatTemplate("{% if %}")


def test_messages_of_the_caller_win_over_template_variables() -> None:
    variables: dict[str, Any] = {"bos_token": "mine", "x": 1}
    assert ChatTemplate("{{ bos_token }}{{ x }}", {"bos": "<s>"}).render(HELLO, **variables) == "mine1"


FORMS: dict[str, dict[str, Any]] = {
    "a text": {"tokenizer_config.json": {"chat_template": "T{{ eos_token }}", "eos_token": "</s>"}},
    "a list by name": {"tokenizer_config.json": {"eos_token": {"content": "</s>"}, "chat_template": [
        {"name": "tool_use", "template": "U"}, {"name": "default", "template": "T{{ eos_token }}"},
    ]}},
    "a file of its own": {"chat_template.jinja": "T{{ eos_token }}", "tokenizer_config.json": {
        "chat_template": "older", "eos_token": "</s>",
    }},
    "a JSON file": {"chat_template.json": {"chat_template": "T{{ eos_token }}"},
                    "special_tokens_map.json": {"eos_token": "</s>"}},
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_template_in_a_folder_is_read(tmp_path: Path, form: str) -> None:
    for name, value in FORMS[form].items():
        if name.endswith(".jinja"):
            (tmp_path / name).write_text(value)
        else:
            write_json(tmp_path / name, value)
    template = load_chat_template(tmp_path)
    assert template is not None
    assert template.render(HELLO) == "T</s>"


def test_template_of_a_gguf_file_is_read_and_an_override_wins(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    tokens = {
        "tokenizer.ggml.tokens": ["a", "<s>", "</s>"],
        "tokenizer.chat_template": "{{ bos_token }}{{ eos_token }}",
    }
    path.write_bytes(gguf_bytes(TINY_GGUF | tokens))
    (tmp_path / "other.jinja").write_text("other {{ eos_token }}")

    own, other = load_chat_template(path), load_chat_template(path, tmp_path / "other.jinja")

    assert own is not None
    assert other is not None
    assert (own.render(HELLO), other.render(HELLO)) == ("<s></s>", "other </s>")


@pytest.mark.parametrize("form", ["listed", "beside", "gguf"])
def test_requests_with_tools_get_the_template_for_them(tmp_path: Path, form: str) -> None:
    plain, with_tools = "plain", "{% for tool in tools %}{{ tool.name }}{% endfor %}{# tool_calls #}"
    path = tmp_path
    if form == "listed":
        named = [{"name": "default", "template": plain}, {"name": "tool_use", "template": with_tools}]
        write_json(tmp_path / "tokenizer_config.json", {"chat_template": named})
    elif form == "beside":
        (tmp_path / "chat_template.jinja").write_text(plain)
        (tmp_path / "additional_chat_templates").mkdir()
        (tmp_path / "additional_chat_templates/tool_use.jinja").write_text(with_tools)
    else:
        path = tmp_path / "model.gguf"
        keys = {"tokenizer.chat_template": plain, "tokenizer.chat_template.tool_use": with_tools}
        path.write_bytes(gguf_bytes(TINY_GGUF | keys))
    template = load_chat_template(path)
    assert template is not None
    assert (template.knows_tools, template.knows_calls) == (True, True)
    assert template.render(HELLO) == "plain"
    assert template.render(HELLO, tools=[{"name": "f"}, {"name": "g"}]) == "fg"


def test_model_without_a_template_has_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load_chat_template(tmp_path) is None
    write_json(tmp_path / "tokenizer_config.json", {"chat_template": [{"name": "rag", "template": "R"}]})
    assert load_chat_template(tmp_path) is None
    assert "no chat template is named default, only rag" in caplog.text


@pytest.mark.parametrize("file", ["tokenizer_config.json", "chat_template.json"])
@pytest.mark.parametrize(
    "templates", [7, [7], [{"name": [1], "template": {}}], [{"name": "default"}], {"default": None}]
)
def test_a_template_that_is_no_text_is_refused_unless_there_is_another(
    tmp_path: Path, file: str, templates: Any
) -> None:
    write_json(tmp_path / file, {"chat_template": templates})
    with pytest.raises(ModelError, match=r"json: chat_template is neither .* by --chat-template FILE"):
        load_chat_template(tmp_path)
    (tmp_path / "other.jinja").write_text("T")
    other = load_chat_template(tmp_path, tmp_path / "other.jinja")
    assert other is not None
    assert other.source == "T"


def test_missing_override_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot read the chat template .*none\.jinja"):
        load_chat_template(tmp_path, tmp_path / "none.jinja")
