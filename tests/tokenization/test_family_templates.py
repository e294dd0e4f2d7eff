"""What the templates of the served families are made of is rendered as transformers renders it."""

from pathlib import Path
from typing import Any

import pytest

from legato.core.errors import RequestError
from legato.tokenization.chat_template import ChatTemplate

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather in a «city» & its <region>",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = {
    "type": "function",
    "id": "call_1",
    "function": {"name": "get_weather", "arguments": {"city": "서울"}},
}
PLAIN = [
    {"role": "system", "content": "Be brief. "},
    {"role": "user", "content": " What's up?\n"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nNot much."},
    {"role": "user", "content": "And in Seoul?"},
]
WITH_CALL: list[dict[str, Any]] = [
    *PLAIN,
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "21 °C", "tool_call_id": "call_1", "name": "get_weather"},
]
CHATS = {"plain": PLAIN, "without system": PLAIN[1:], "with a call": WITH_CALL}

# Short ones, with the constructs of the families' own.
SOURCES = {file.stem: file.read_text() for file in (Path(__file__).parent / "templates").glob("*.jinja")}

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("llama3", {}),
    ("llama3", {"day": "Monday", "quiet": True}),
    ("qwen3", {}),
    ("qwen3", {"enable_thinking": False}),
    ("mistral", {}),
    ("phi3", {}),
    ("smollm3", {}),
    ("smollm3", {"enable_thinking": False}),
    ("granite", {}),
    (
        "granite",
        {"controls": {"citations": True}, "thinking": True, "documents": [{"text": "1"}, {"text": "2"}]},
    ),
]


@pytest.mark.oracle
@pytest.mark.parametrize("tools", [None, [TOOL]], ids=["", "tools"])
@pytest.mark.parametrize(("family", "variables"), VARIANTS)
def test_family_gives_the_text_of_transformers(
    family: str, variables: dict[str, Any], tools: list[dict[str, Any]] | None
) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template  # takes seconds to import

    source = SOURCES[family]
    marks = {"bos_token": "<s>", "eos_token": "</s>"}
    template = ChatTemplate(source, {"bos": "<s>", "eos": "</s>"})
    for name, chat in CHATS.items():
        for generates in (True, False):
            oracle, _ = render_jinja_template(
                [chat],
                tools=tools,
                chat_template=source,
                add_generation_prompt=generates,
                **marks,
                **variables,
            )
            assert [template.render(chat, generates, tools=tools, **variables)] == oracle, name


@pytest.mark.oracle
@pytest.mark.parametrize(("family", "chat"), [("gemma", PLAIN[1:]), ("gemma3", PLAIN), ("gemma3", PLAIN[1:])])
def test_gemma_gives_the_text_of_transformers(family: str, chat: list[dict[str, Any]]) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    oracle, _ = render_jinja_template(
        [chat], chat_template=SOURCES[family], add_generation_prompt=True, bos_token="<bos>"
    )
    assert [ChatTemplate(SOURCES[family], {"bos": "<bos>"}).render(chat)] == oracle


def test_gemma3_takes_a_system_message_into_the_first_turn() -> None:
    text = ChatTemplate(SOURCES["gemma3"], {"bos": "<bos>"}).render(PLAIN)
    assert text.startswith("<bos><turn>user\nBe brief. \n\nWhat's up?</turn>\n<turn>model\n")
    with pytest.raises(RequestError, match="turns must alternate"):
        ChatTemplate(SOURCES["gemma3"]).render(PLAIN[2:])


def test_gemma_refuses_a_system_message_in_its_own_words() -> None:
    with pytest.raises(RequestError, match="no system role here") as refusal:
        ChatTemplate(SOURCES["gemma"], {"bos": "<bos>"}).render(PLAIN)
    assert refusal.value.param == "messages"


def test_thinking_is_switched_off_by_a_variable_of_the_template() -> None:
    template = ChatTemplate(SOURCES["qwen3"])
    assert template.render(PLAIN).endswith("<|a|>")
    assert template.render(PLAIN, enable_thinking=False).endswith("<|a|><think></think>")
