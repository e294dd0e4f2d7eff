"""Tools, calls and results in the messages of a chat template; spelled out where it knows nothing of them."""

import json
from collections.abc import Sequence
from typing import Any

from legato.tokenization.chat_template import ChatTemplate
from legato.tokenization.tool_calls.format import ToolFormat
from legato.tokenization.tool_calls.tools import Tool

Message = dict[str, Any]


def fit_to_template(
    messages: Sequence[Message], tools: Sequence[Tool], template: ChatTemplate, tool_format: ToolFormat
) -> list[Message]:
    """Messages, as plain_messages gives them, as `template` takes them.

    Templates that render calls expect their arguments as objects. For others calls are spelled out as the
    model would write them, and the results that follow as one message of the user. Tools that the template
    does not describe are described in the system message, which becomes the first when there is none.
    """
    fitted = list(map(_with_objects, messages)) if template.knows_calls else _as_text(messages, tool_format)
    if not tools or template.knows_tools:
        return fitted
    description = _description(tools, tool_format)
    if fitted and fitted[0]["role"] == "system":
        return [{**fitted[0], "content": f"{fitted[0]['content']}\n\n{description}"}, *fitted[1:]]
    return [{"role": "system", "content": description}, *fitted]


def _with_objects(message: Message) -> Message:
    if "tool_calls" not in message:
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": _object(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _object(arguments: str) -> Any:
    """What a model wrote that is no object stays the text it was."""
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def _as_text(messages: Sequence[Message], tool_format: ToolFormat) -> list[Message]:
    plain: list[Message] = []
    follows_result = False
    for message in messages:
        if message["role"] == "tool" and follows_result:
            plain[-1]["content"] += f"\n{_result_text(message)}"
        elif message["role"] == "tool":
            plain.append({"role": "user", "content": _result_text(message)})
        elif "tool_calls" in message:
            functions = [call["function"] for call in message["tool_calls"]]
            calls = tool_format.calls_text((each["name"], each["arguments"]) for each in functions)
            content = "\n".join(filter(None, (message["content"], calls)))
            plain.append({"role": message["role"], "content": content})
        else:
            plain.append(message)
        follows_result = message["role"] == "tool"
    return plain


def _description(tools: Sequence[Tool], tool_format: ToolFormat) -> str:
    functions = "\n".join(_json(tool.for_template()) for tool in tools)
    example = tool_format.calls_text([("NAME", '{"ARGUMENT": VALUE}')])
    return (
        "You can call the functions below; their arguments are described by JSON schemas.\n"
        f"<tools>\n{functions}\n</tools>\n"
        f"To call one, answer in this form, with its name and its arguments as JSON:\n{example}\n"
        "What it returns is then given to you between <tool_response> and </tool_response>."
    )


def _result_text(message: Message) -> str:
    result = {"name": message["name"], "content": message["content"]}
    return f"<tool_response>\n{_json(result)}\n</tool_response>"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
