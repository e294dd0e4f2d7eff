"""What may be said in a conversation, and how what may not is named."""

from typing import Any

import pytest

from legato.core.errors import RequestError
from legato.tokenization.messages import plain_messages

USER = {"role": "user", "content": "hi"}


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
        ([USER, {"role": "tool", "content": "x"}], "messages.1.role", "tool needs tools"),
        ([USER, {"role": "assistant", "tool_calls": [{}]}], "messages.1.tool_calls", "not supported"),
        ([{"role": "user"}], "messages.0.content", "a text or a list of text parts"),
        ([{"role": "user", "content": None}], "messages.0.content", "a text or a list of text parts"),
        ([USER | {"name": 7}], "messages.0.name", "must be a text"),
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
