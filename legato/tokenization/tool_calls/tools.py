"""The tools of one chat, and what the model may and must do with them; every route's fields become these."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from legato.core.errors import RequestError

# OpenAI's default for a function without parameters
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the client can call for the model.

    parameters  a JSON schema of the arguments' object; None = the function takes none
    strict      the arguments of each call keep to the schema, also where the model need not call
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    strict: bool = False

    def for_template(self) -> dict[str, Any]:
        """In OpenAI's shape, which chat templates expect."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters or NO_PARAMETERS,
        }
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether the model calls tools.

    mode   none: never; auto: as it likes; required: at least one call; named: exactly one
    names  of the tools that it may call; None = all that are offered
    """

    mode: Literal["none", "auto", "required", "named"] = "auto"
    names: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """A chat's tools, checked.

    tools     what the model is told of
    callable  those of them that it may call
    is_forced  the answer is at least one call, and nothing else
    is_single  the answer is at most one call
    """

    tools: tuple[Tool, ...]
    callable: tuple[Tool, ...]
    is_forced: bool
    is_single: bool

    @property
    def is_constrained(self) -> bool:
        """A grammar is needed to keep what was asked for."""
        return self.is_forced or self.is_single or any(tool.strict for tool in self.callable)


def check_tools(tools: Sequence[Tool], choice: ToolChoice, *, parallel: bool) -> ToolUse | None:
    """What the three fields ask for; None = no tools. Raises RequestError when they contradict each other."""
    names = [tool.name for tool in tools]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise RequestError(f"tools: two of them are named {twice!r}; give each its own name", param="tools")
    unknown = next((name for name in choice.names or () if name not in names), None)
    if unknown is not None:
        known = ", ".join(names) or "there are none"
        raise RequestError(f"tool_choice: no tool is named {unknown!r}; tools: {known}", param="tool_choice")
    if choice.mode == "required" and not tools:
        raise RequestError("tool_choice: required needs tools", param="tool_choice")
    if choice.names == ():
        raise RequestError("tool_choice: allowed_tools must name at least one tool", param="tool_choice")
    if choice.mode == "none" or not tools:
        return None
    return ToolUse(
        tools=tuple(tools),
        callable=tuple(tool for tool in tools if choice.names is None or tool.name in choice.names),
        is_forced=choice.mode != "auto",
        is_single=choice.mode == "named" or not parallel,
    )
