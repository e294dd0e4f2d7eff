"""What an answer with calls of tools must look like, as a grammar for llguidance."""

import json
import re
from collections.abc import Mapping

from legato.tokenization.grammar_text import lark_json, lark_text, lark_token
from legato.tokenization.tool_calls.format import ToolFormat
from legato.tokenization.tool_calls.tools import NO_PARAMETERS, Tool, ToolUse

ANY_OBJECT = {"type": "object"}
ANY_TEXT = r"/(.|\n)*/"
TEXT_THAT_IS_NO_CALL = r"/[ \t\r\n]*([^{ \t\r\n](.|\n)*)?/"  # where a bracket at the start begins a call


def tool_grammar(use: ToolUse, tool_format: ToolFormat, said: str | None = None) -> str:
    """The grammar of the answers that `use` allows.

    Calls stand as the format writes them. Arguments keep to their tool's schema when a call is forced or the
    tool is strict, else they are any object. Where no call is forced, text may stand before calls, or alone.

    said  the grammar of an answer that calls nothing; then no text stands before calls. None = any text
    """
    if use.is_forced:
        return _lark({"start": "calls", **_calls(use, tool_format)})
    if said is None:
        return _lark(_text_then_calls(tool_format) | _calls(use, tool_format))
    # llguidance tells two grammars apart by how they begin: calls with a marker, also where none is needed
    marker = "" if tool_format.is_marked else _literal(tool_format.marker, tool_format)
    start = f"{_sequence(marker, 'calls')} | @said"
    grammars = [
        {"lark_grammar": _lark({"start": start, **_calls(use, tool_format)})},
        {**_grammar_json(said), "name": "said"},
    ]
    return json.dumps({"grammars": grammars}, ensure_ascii=False)


def _calls(use: ToolUse, tool_format: ToolFormat) -> dict[str, str]:
    """The rule `calls`; `rest` is what follows in it on the opening of the first call."""
    bodies = {
        f"call_{index}": _sequence(
            _literal(f"{tool.name}{tool_format.before_arguments}", tool_format),
            lark_json(_schema(tool, is_forced=use.is_forced)),
            _literal(tool_format.after_arguments, tool_format),
        )
        for index, tool in enumerate(use.callable)
    }
    another = _sequence(_literal(tool_format.between + tool_format.before_name, tool_format), "call")
    return {
        "calls": _sequence(_literal(_opening(tool_format), tool_format), "rest"),
        "rest": _sequence(
            "call", "" if use.is_single else f"({another})*", _literal(tool_format.end, tool_format)
        ),
        "call": " | ".join(bodies),
        **bodies,
    }


def _text_then_calls(tool_format: ToolFormat) -> dict[str, str]:
    """Text, which ends with the first marker of calls, whether that is a token or spelled by others."""
    marker, token_id = tool_format.marker, tool_format.token_ids.get(tool_format.marker)
    if tool_format.is_marked:
        after = _literal(_opening(tool_format).removeprefix(marker), tool_format)
        start = f"TEXT | {_sequence('marked', after, 'rest')}"
    else:
        start = "TEXT | calls | marked calls"
    return {
        "start": start,
        "TEXT": ANY_TEXT if tool_format.is_marked else TEXT_THAT_IS_NO_CALL,
        "marked": "spelled" if token_id is None else f"spelled | TEXT {lark_token(token_id)}",
        "spelled[lazy]": f"TEXT {lark_text(marker)}",
    }


def _opening(tool_format: ToolFormat) -> str:
    return tool_format.begin + tool_format.before_name


def _schema(tool: Tool, *, is_forced: bool) -> Mapping[str, object]:
    if not (is_forced or tool.strict):
        return ANY_OBJECT
    return {"type": "object", **(NO_PARAMETERS if tool.parameters is None else tool.parameters)}


def _literal(text: str, tool_format: ToolFormat) -> str:
    """A text in which some markers are tokens."""
    ids = tool_format.token_ids
    parts = re.split(f"({'|'.join(map(re.escape, ids))})", text) if ids else [text]
    return _sequence(*(lark_token(ids[part]) if part in ids else lark_text(part) for part in parts if part))


def _sequence(*parts: str) -> str:
    return " ".join(filter(None, parts))


def _lark(rules: Mapping[str, str]) -> str:
    return "\n".join(f"{name}: {body}" for name, body in rules.items())


def _grammar_json(grammar: str) -> dict[str, object]:
    """A whole grammar as one of several."""
    if not grammar.lstrip().startswith("{"):
        return {"lark_grammar": grammar}
    whole: dict[str, list[dict[str, object]]] = json.loads(grammar)
    return whole["grammars"][0]
