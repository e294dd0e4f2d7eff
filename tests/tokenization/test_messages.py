"""What may be said in a conversation, and how what may not is named."""

from typing import Any

import pytest

from legato.core.errors import RequestError
from legato.tokenization.messages import plain_messages

USER = {"role": "user", "content": "hi"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "42"}


def calling(calls: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": calls}


def test_calls_and_their_results_stand_beside_the_texts() -> None:
    text_parts = {**RESULT, "content": [{"type": "text", "text": "4"}, {"type": "text", "text": "2"}]}

    assert plain_messages([USER, calling([CALL]), text_parts]) == [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {**RESULT, "name": "f"},
    ]


@pytest.mark.parametrize(
    ("given", "text"),
    [("", "{}"), (" ", "{}"), ({"é": 1}, '{"é": 1}'), ('{"a": ', '{"a":'), ("nonsense", "nonsense")],
)
def test_arguments_are_a_text_whatever_the_model_wrote(given: Any, text: str) -> None:
    call = {**CALL, "function": {"name": "f", "arguments": given}}
    [_, message] = plain_messages([USER, calling([call])])
    assert message["tool_calls"][0]["function"]["arguments"] == text


def test_messages_are_reduced_to_roles_and_texts_and_stay_as_they_are() -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    messages = (
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": parts, "name": "Ann"},
        {"role": "assistant", "content": "", "tool_calls": None},
        {"role": "assistant", "content": None},
    )

    assert plain_messages(messages) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello", "name": "Ann"},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": ""},
    ]
    assert messages[1] == {"role": "user", "content": parts, "name": "Ann"}


@pytest.mark.parametrize(
    ("messages", "place", "reason"),
    [
        ("hi", "messages", r'a list of messages such as \[{"role": "user"'),
        (USER, "messages", "a list of messages"),
        (None, "messages", "a list of messages"),
        ([], "messages", "at least one message that is not the assistant's"),
        ([{"role": "assistant", "content": "x"}], "messages", "at least one message"),
        ([[USER]], "messages.0", "one conversation"),
        ([USER, "hi"], "messages.1", "with a role and a content"),
        ([{"content": "x"}], "messages.0.role", "one of system, developer, user, assistant"),
        ([USER, {"role": "king", "content": "x"}], "messages.1.role", "one of system"),
        ([{"role": ["user"], "content": "x"}], "messages.0.role", "one of system"),
        ([USER, {"role": "function", "content": "x"}], "messages.1.role", "older form of tool"),
        ([USER, {"role": "assistant", "function_call": {"name": "f"}}], "messages.1.function_call", "older"),
        ([{**USER, "name": 1}], "messages.0.name", "a text that is not empty"),
        ([{**USER, "tool_calls": [CALL]}], "messages.0.tool_calls", "in a message of the assistant"),
        ([calling("x")], "messages.0.tool_calls", "a list of calls"),
        ([calling([{}])], "messages.0.tool_calls.0", r'such as {"id": "call_1"'),
        ([calling([{**CALL, "type": "custom"}])], "messages.0.tool_calls.0.type", "must be function"),
        ([calling([{**CALL, "id": ""}])], "messages.0.tool_calls.0.id", "not empty"),
        (
            [calling([{**CALL, "function": {"arguments": "{}"}}])],
            "messages.0.tool_calls.0.function.name",
            "empty",
        ),
        (
            [calling([{**CALL, "function": {"name": "f", "arguments": 1}}])],
            "messages.0.tool_calls.0.function.arguments",
            "the text of a JSON object",
        ),
        ([USER, {"role": "tool", "content": "x"}], "messages.1.tool_call_id", "not empty"),
        ([USER, RESULT], "messages.1.tool_call_id", "'call_1' is the id of no call"),
        ([USER, RESULT, calling([CALL])], "messages.1.tool_call_id", "before this one"),
        ([USER, calling([CALL]), {**RESULT, "content": None}], "messages.2.content", "a text"),
        ([{"role": "user"}], "messages.0.content", "a text or a list of text parts"),
        ([{"role": "user", "content": None}], "messages.0.content", "a text or a list of text parts"),
        ([{"role": "user", "content": []}], "messages.0.content", "a text or a list of text parts"),
        ([{"role": "user", "content": {"text": "x"}}], "messages.0.content", "a text or a list"),
        ([{"role": "user", "content": ["x"]}], "messages.0.content.0", 'such as {"type": "text"'),
        ([{"role": "user", "content": [{"text": "x"}]}], "messages.0.content.0.type", "type 'None'"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages.0.content.0.type", "'image_url'"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages.0.content.0.text", "must be a text"),
    ],
)
def test_fault_is_named_with_its_place(messages: Any, place: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as refusal:
        plain_messages(messages)
    assert refusal.value.param == place
    assert str(refusal.value).startswith(f"{place}: ")
