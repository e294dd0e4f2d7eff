"""Tools in a body of Anthropic's routes."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from legato.api.bodies.generation import Body, at_most, optional
from legato.api.bodies.tools import NAME_PATTERN, FunctionBody, tool_of
from legato.core.errors import RequestError
from legato.tokenization.tool_calls.tools import Tool, ToolChoice, check_tools

MODES: dict[str, Literal["none", "auto", "required"]] = {"none": "none", "auto": "auto", "any": "required"}
CHOICES = '{"type": "auto"}, {"type": "any"}, {"type": "none"} or {"type": "tool", "name": "NAME"}'


class ToolBody(BaseModel):
    """One tool that the client runs."""

    model_config = ConfigDict(extra="allow", strict=True)

    type: Literal["custom"] | None = optional("tools of other types, which Anthropic runs, are refused")
    name: Annotated[str, Field(pattern=NAME_PATTERN, description="letters, digits, _ and -, at most 64")]
    description: str | None = optional("what it does, for the model")
    input_schema: dict[str, Any] = Field(description="JSON schema of its input, an object")
    strict: bool | None = optional("hold the input of every call to the schema", False)


class ToolFields(Body):
    """The tools of a conversation, and whether the model calls them."""

    tools: Annotated[list[ToolBody] | None, at_most("tools")] = optional("tools that the model may call")
    tool_choice: dict[str, Any] | None = optional(f"whether it calls: {CHOICES}", {"type": "auto"})

    def tool_options(self) -> dict[str, Any]:
        """The arguments of ChatCall that say what the model may call. Raises RequestError."""
        choice = self.tool_choice or {"type": "auto"}
        is_single = choice.get("disable_parallel_tool_use")
        if not isinstance(is_single, bool | None):
            place = "tool_choice.disable_parallel_tool_use"
            raise RequestError(f"{place}: must be true or false", param=place)
        return {
            "tools": [_tool(index, each) for index, each in enumerate(self.tools or [])],
            "tool_choice": _choice(choice),
            "parallel_tool_calls": not is_single,
        }

    def told_tools(self) -> tuple[Tool, ...]:
        """The tools that a prompt tells of. Raises RequestError when the fields contradict each other."""
        options = self.tool_options()
        use = check_tools(options["tools"], options["tool_choice"], parallel=options["parallel_tool_calls"])
        return () if use is None else use.tools


def _tool(index: int, body: ToolBody) -> Tool:
    function = FunctionBody(
        name=body.name, description=body.description, parameters=body.input_schema, strict=body.strict
    )
    return tool_of(function, f"tools.{index}.input_schema")


def _choice(value: dict[str, Any]) -> ToolChoice:
    match value:
        case {"type": "auto" | "any" | "none" as mode}:
            return ToolChoice(MODES[mode])
        case {"type": "tool", "name": str(name)}:
            return ToolChoice("named", (name,))
    raise RequestError(f"tool_choice must be {CHOICES}", param="tool_choice")
