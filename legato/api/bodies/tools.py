"""Tools in a body of OpenAI's chat route: their schema and limits, and what they ask for."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from legato.api.bodies.generation import Body, at_most, optional
from legato.api.bodies.structured import json_schema
from legato.core.errors import RequestError
from legato.tokenization.tool_calls.tools import Tool, ToolChoice, check_tools

NAME_PATTERN = r"^[a-zA-Z0-9_-]{1,64}$"
NAMED_CHOICE = '{"type": "function", "function": {"name": "NAME"}}'
CHOICES = f"none, auto, required, {NAMED_CHOICE}, or allowed_tools"
MODES = ("none", "auto", "required")


class FunctionBody(BaseModel):
    """A function that the client can call."""

    model_config = ConfigDict(extra="allow", strict=True)

    name: Annotated[str, Field(pattern=NAME_PATTERN, description="letters, digits, _ and -, at most 64")]
    description: str | None = optional("what it does, for the model")
    parameters: dict[str, Any] | None = optional("JSON schema of its arguments; without one it takes none")
    strict: bool | None = optional("hold the arguments of every call to the schema", False)


class ToolBody(BaseModel):
    """One tool."""

    model_config = ConfigDict(extra="allow", strict=True)

    type: Literal["function"]
    function: FunctionBody


class ToolFields(Body):
    """The tools of a conversation, and whether the model calls them."""

    tools: Annotated[list[ToolBody] | None, at_most("tools")] = optional("functions that the model may call")
    tool_choice: Annotated[
        str | dict[str, Any] | None,
        WithJsonSchema(
            {
                "anyOf": [
                    {"enum": [*MODES, None]},
                    {
                        "type": "object",
                        "required": ["type", "function"],
                        "properties": {
                            "type": {"const": "function"},
                            "function": {
                                "type": "object",
                                "required": ["name"],
                                "properties": {"name": {"type": "string"}},
                            },
                        },
                    },
                ],
                "default": "auto",
            }
        ),
        Field(description="whether it calls: never, as it likes, at least once, or one function once"),
    ] = None
    parallel_tool_calls: bool | None = optional("an answer may hold several calls", True)

    def tool_options(self) -> dict[str, Any]:
        """The arguments of ChatCall that say what the model may call. Raises RequestError."""
        return {
            "tools": [
                tool_of(each.function, f"tools.{index}.function.parameters")
                for index, each in enumerate(self.tools or [])
            ],
            "tool_choice": _choice(self.tool_choice),
            "parallel_tool_calls": self.parallel_tool_calls is not False,
        }

    def told_tools(self) -> tuple[Tool, ...]:
        """The tools that a prompt tells of. Raises RequestError when the fields contradict each other."""
        options = self.tool_options()
        use = check_tools(options["tools"], options["tool_choice"], parallel=options["parallel_tool_calls"])
        return () if use is None else use.tools


def tool_of(function: FunctionBody, place: str) -> Tool:
    """The tool that a body describes; `place` is that of its parameters. Raises RequestError."""
    parameters = function.parameters
    if parameters is not None:
        json_schema(parameters, param=place)  # knows the limits
        if parameters.get("type", "object") != "object":
            raise RequestError(f'{place}: must be the schema of an object, "type": "object"', param=place)
    return Tool(
        name=function.name,
        description=function.description or "",
        parameters=parameters,
        strict=function.strict is True,
    )


def _choice(value: str | Mapping[str, Any] | None) -> ToolChoice:
    match value:
        case None:
            return ToolChoice()
        case "none" | "auto" | "required":
            return ToolChoice(value)
        case {"type": "function", "function": {"name": str(name)}}:
            return ToolChoice("named", (name,))
        case {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto" | "required" as mode, "tools": list(tools)},
        }:
            return ToolChoice(mode, tuple(map(_allowed_name, tools)))
    raise _refusal()


def _allowed_name(tool: Any) -> str:
    match tool:
        case {"type": "function", "function": {"name": str(name)}}:
            return name
    raise _refusal()


def _refusal() -> RequestError:
    return RequestError(f"tool_choice must be {CHOICES}", param="tool_choice")
