"""What tools, tool_choice and parallel_tool_calls ask for together."""

import pytest

from legato.core.errors import RequestError
from legato.tokenization.tool_calls.tools import NO_PARAMETERS, Tool, ToolChoice, check_tools

F, G = Tool(name="f"), Tool(name="g", parameters={"type": "object"}, strict=True)


def test_choice_says_what_may_and_what_must_be_called() -> None:
    auto = check_tools([F, G], ToolChoice(), parallel=True)
    required = check_tools([F], ToolChoice("required"), parallel=False)
    named = check_tools([F, G], ToolChoice("named", ("f",)), parallel=True)
    allowed = check_tools([F, G], ToolChoice("auto", ("f",)), parallel=True)
    assert None not in (auto, required, named, allowed)

    assert (auto.callable, auto.is_forced, auto.is_single, auto.is_constrained) == (
        (F, G),
        False,
        False,
        True,
    )
    assert (required.callable, required.is_forced, required.is_single) == ((F,), True, True)
    assert (named.tools, named.callable, named.is_forced, named.is_single) == ((F, G), (F,), True, True)
    assert (allowed.tools, allowed.callable, allowed.is_constrained) == ((F, G), (F,), False)


def test_no_tools_and_none_are_no_use_of_tools() -> None:
    assert check_tools([], ToolChoice(), parallel=False) is None
    assert check_tools([F], ToolChoice("none"), parallel=True) is None


@pytest.mark.parametrize(
    ("tools", "choice", "param", "reason"),
    [
        ([F, F], ToolChoice(), "tools", "two of them are named 'f'"),
        ([F], ToolChoice("named", ("g",)), "tool_choice", "no tool is named 'g'; tools: f"),
        ([], ToolChoice("named", ("g",)), "tool_choice", "there are none"),
        ([], ToolChoice("required"), "tool_choice", "required needs tools"),
        ([F], ToolChoice("auto", ()), "tool_choice", "at least one tool"),
    ],
)
def test_contradictions_are_refused(tools: list[Tool], choice: ToolChoice, param: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as refusal:
        check_tools(tools, choice, parallel=True)
    assert refusal.value.param == param


def test_template_gets_a_tool_in_openais_shape() -> None:
    assert F.for_template() == {
        "type": "function",
        "function": {"name": "f", "description": "", "parameters": NO_PARAMETERS},
    }
