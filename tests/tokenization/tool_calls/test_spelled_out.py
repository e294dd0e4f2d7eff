"""What a chat template gets of tools, calls and results, whether it knows of them or not."""

from typing import Any

from legato.tokenization.chat_template import ChatTemplate
from legato.tokenization.tool_calls.hermes import HERMES
from legato.tokenization.tool_calls.llama3_json import LLAMA3_JSON
from legato.tokenization.tool_calls.spelled_out import fit_to_template
from legato.tokenization.tool_calls.tools import Tool

PLAIN = ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
KNOWING = ChatTemplate("{{ tools }}{% for m in messages %}{{ m.tool_calls }}{% endfor %}")
KNOWING_TOOLS = ChatTemplate("{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}")
WEATHER = Tool(name="get_weather", description="Wetter in é", parameters={"type": "object"})

USER = {"role": "user", "content": "Hi"}
SYSTEM = {"role": "system", "content": "Be brief."}


def called(name: str, arguments: str, content: str = "") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    call = {"id": "call_1", "type": "function", "function": function}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def result(name: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "call_1", "name": name, "content": content}


def test_template_says_what_it_knows() -> None:
    sets_it = ChatTemplate("{% set tools = [] %}{{ tools }}")
    assert [each.knows_tools for each in (PLAIN, KNOWING, KNOWING_TOOLS, sets_it)] == [
        False,
        True,
        True,
        False,
    ]
    assert [each.knows_calls for each in (PLAIN, KNOWING, KNOWING_TOOLS)] == [False, True, False]


def test_template_that_knows_gets_arguments_as_objects() -> None:
    messages = [USER, called("f", '{"a": [1]}'), called("f", "oops"), result("f", "42")]

    fitted = fit_to_template(messages, [WEATHER], KNOWING, HERMES)

    assert [message.get("content") for message in fitted] == ["Hi", "", "", "42"]
    arguments = [fitted[index]["tool_calls"][0]["function"]["arguments"] for index in (1, 2)]
    assert arguments == [{"a": [1]}, "oops"]
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == '{"a": [1]}'


def test_tools_are_described_in_the_system_message() -> None:
    [system, user] = fit_to_template([SYSTEM, USER], [WEATHER], PLAIN, HERMES)

    assert user == USER
    assert system["content"].startswith("Be brief.\n\n")
    assert '"name": "get_weather", "description": "Wetter in é"' in system["content"]
    assert '<tool_call>\n{"name": "NAME", "arguments": ' in system["content"]
    assert fit_to_template([USER], [WEATHER], PLAIN, HERMES)[0] == {
        "role": "system",
        "content": system["content"].removeprefix("Be brief.\n\n"),
    }
    assert SYSTEM["content"] == "Be brief."


def test_nothing_is_described_without_tools_or_to_a_template_that_does_it() -> None:
    assert fit_to_template([USER], [], PLAIN, HERMES) == [USER]
    assert fit_to_template([USER], [WEATHER], KNOWING_TOOLS, HERMES) == [USER]


def test_calls_and_results_are_spelled_out() -> None:
    messages = [
        USER,
        called("f", '{"a": 1}', content="I look."),
        result("f", "42"),
        result("g", '"é"'),
        USER,
        called("g", "{}"),
        result("g", ""),
    ]

    fitted = fit_to_template(messages, [], PLAIN, HERMES)

    assert fitted == [
        USER,
        {
            "role": "assistant",
            "content": 'I look.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
        },
        {
            "role": "user",
            "content": '<tool_response>\n{"name": "f", "content": "42"}\n</tool_response>\n'
            '<tool_response>\n{"name": "g", "content": "\\"é\\""}\n</tool_response>',
        },
        USER,
        {"role": "assistant", "content": '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'},
        {"role": "user", "content": '<tool_response>\n{"name": "g", "content": ""}\n</tool_response>'},
    ]


def test_calls_are_spelled_out_in_the_models_own_format() -> None:
    [message] = fit_to_template([called("f", "{}")], [], PLAIN, LLAMA3_JSON)
    assert message == {"role": "assistant", "content": '{"name": "f", "parameters": {}}'}
