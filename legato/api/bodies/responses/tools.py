"""Tools in a body of the Responses API: chat's, but flat."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel

from legato.api.bodies.generation import Body, at_most, optional
from legato.api.bodies.tools import MODES, FunctionBody, tool_of
from legato.core.errors import RequestError
from legato.tokenization.tool_calls.tools import ToolChoice

CHOICES = (
    f'{", ".join(MODES)}, {{"type": "function", "name": "NAME"}}, or'
    ' {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "NAME"}]}'
)


class ToolType(BaseModel):
    """Checked before what a function has: OpenAI's own tools have none of it."""

    type: Literal["function"]


class FlatToolBody(FunctionBody, ToolType):
    """One tool."""


class FlatToolFields(Body):
    """The tools of a conversation, and whether the model calls them."""

    tools: Annotated[list[FlatToolBody] | None, at_most("tools")] = optional(
        "functions that the model may call"
    )
    tool_choice: str | dict[str, Any] | None = optional("whether it calls: " + CHOICES, "auto")
    parallel_tool_calls: bool | None = optional("an answer may hold several calls", True)

    def tool_options(self) -> dict[str, Any]:
        """The arguments of ChatCall that say what the model may call. Raises RequestError."""
        tools = enumerate(self.tools or [])
        return {
            "tools": [tool_of(each, f"tools.{index}.parameters") for index, each in tools],
            "tool_choice": _choice(self.tool_choice),
            "parallel_tool_calls": self.parallel_tool_calls is not False,
        }

    def tool_settings(self) -> dict[str, Any]:
        """The fields of a response that repeat these."""
        return {
            "tools": [each.model_dump() for each in self.tools or []],
            "tool_choice": self.tool_choice or "auto",
            "parallel_tool_calls": self.parallel_tool_calls is not False,
        }


def _choice(value: str | dict[str, Any] | None) -> ToolChoice:
    match value:
        case None:
            return ToolChoice()
        case "none" | "auto" | "required":
            return ToolChoice(value)
        case {"type": "function", "name": str(name)}:
            return ToolChoice("named", (name,))
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": list(tools)}:
            return ToolChoice(mode, tuple(map(_allowed_name, tools)))
    raise _refusal()


def _allowed_name(tool: Any) -> str:
    match tool:
        case {"type": "function", "name": str(name)}:
            return name
    raise _refusal()


def _refusal() -> RequestError:
    return RequestError(f"tool_choice must be {CHOICES}", param="tool_choice")
