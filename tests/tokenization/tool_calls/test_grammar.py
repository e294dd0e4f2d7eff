"""Which answers the grammar of tools lets through, in every format, as tokens and spelled out."""

from dataclasses import replace
from pathlib import Path

import pytest

from legato.modelfiles.grammars import build_matcher, open_token_table
from legato.tokenization.grammar_text import choice_grammar, json_schema_grammar, regex_grammar
from legato.tokenization.tool_calls.format import ToolFormat
from legato.tokenization.tool_calls.grammar import tool_grammar
from legato.tokenization.tool_calls.hermes import HERMES
from legato.tokenization.tool_calls.llama3_json import LLAMA3_JSON
from legato.tokenization.tool_calls.mistral import MISTRAL, NEWER_MISTRAL
from legato.tokenization.tool_calls.tools import Tool, ToolChoice, check_tools
from tests.tokenization.tiny_tokenizers import byte_level_backend

FORMATS = (HERMES, LLAMA3_JSON, MISTRAL, NEWER_MISTRAL)
MARKERS = sorted({marker for each in FORMATS for marker in each.markers})
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = Tool(name="get_weather", parameters=CITY, strict=True)
TIME = Tool(name="get_time")
PARIS, TOWN = '{"city": "Paris"}', '{"town": "Paris"}'


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> "Tokens":
    return Tokens(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


class Tokens:
    """A tokenizer to which every marker is a token, and what llguidance makes of it."""

    def __init__(self, file: Path) -> None:
        self._backend = byte_level_backend()
        self._backend.add_special_tokens(MARKERS)
        self._backend.save(str(file))
        self._table = open_token_table(file, [self._backend.token_to_id("<|end|>")])

    def known_to(self, tool_format: ToolFormat) -> ToolFormat:
        ids = {marker: self._backend.token_to_id(marker) for marker in tool_format.markers}
        return replace(tool_format, token_ids=ids)

    def accepts(self, grammar: str, answer: str, *, as_tokens: bool) -> bool:
        """Whether the answer may end here; its markers as tokens, or else spelled by characters."""
        parts = [answer] if as_tokens else answer
        ids = [token_id for part in parts for token_id in self._backend.encode(part).ids]
        matcher = build_matcher(self._table, grammar)
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


class Case:
    """One format, whose markers are tokens or not."""

    def __init__(self, tokens: Tokens, tool_format: ToolFormat, as_tokens: bool) -> None:
        self.format = tokens.known_to(tool_format) if as_tokens else tool_format
        self._tokens = tokens
        self._as_tokens = as_tokens

    def grammar(self, choice: ToolChoice, said: str | None = None, *, parallel: bool = True) -> str:
        use = check_tools([WEATHER, TIME], choice, parallel=parallel)
        assert use is not None
        return tool_grammar(use, self.format, said)

    def accepts(self, grammar: str, answer: str) -> bool:
        return self._tokens.accepts(grammar, answer, as_tokens=self._as_tokens)

    def calls(self, *calls: tuple[str, str]) -> str:
        return self.format.calls_text(calls)


@pytest.fixture(params=[(each, as_tokens) for each in FORMATS for as_tokens in (True, False)])
def case(request: pytest.FixtureRequest, tokens: Tokens) -> Case:
    return Case(tokens, *request.param)


def test_forced_answer_is_calls_whose_arguments_keep_to_the_schema(case: Case) -> None:
    grammar = case.grammar(ToolChoice("required"))

    assert case.accepts(grammar, case.calls(("get_weather", PARIS)))
    assert case.accepts(grammar, case.calls(("get_time", "{}"), ("get_weather", PARIS)))
    for answer in ("", "Hello", "{", case.calls(("get_weather", TOWN)), case.calls(("get_time", PARIS))):
        assert not case.accepts(grammar, answer)
    assert not case.accepts(grammar, case.calls(("unknown", "{}")))
    assert not case.accepts(grammar, "Hi. " + case.calls(("get_time", "{}")))


def test_named_function_is_called_once(case: Case) -> None:
    grammar = case.grammar(ToolChoice("named", ("get_weather",)))

    assert case.accepts(grammar, case.calls(("get_weather", PARIS)))
    assert not case.accepts(grammar, case.calls(("get_time", "{}")))
    assert not case.accepts(grammar, case.calls(("get_weather", PARIS), ("get_weather", PARIS)))


def test_strict_tool_is_held_to_its_schema_behind_any_text(case: Case) -> None:
    grammar = case.grammar(ToolChoice())
    tag = "" if case.format.is_marked else case.format.marker

    for text in ("", "Hello <tool {x} [TOOL\n", " \n"):
        assert case.accepts(grammar, text)
        assert case.accepts(grammar, text + tag + case.calls(("get_weather", PARIS), ("get_time", TOWN)))
        assert not case.accepts(grammar, text + tag + case.calls(("get_weather", TOWN)))
    assert case.accepts(grammar, case.calls(("get_time", "{}")))


def test_single_call_is_the_last_thing_in_an_answer(case: Case) -> None:
    grammar = case.grammar(ToolChoice(), parallel=False)

    assert case.accepts(grammar, "Hello")
    assert case.accepts(grammar, case.calls(("get_time", "{}")))
    assert not case.accepts(grammar, case.calls(("get_time", "{}"), ("get_time", "{}")))


@pytest.mark.parametrize(
    ("said", "fits"),
    [
        (
            json_schema_grammar({"type": "object", "properties": {"name": {"const": "Ann"}}}),
            '{"name": "Ann"}',
        ),
        (choice_grammar(["yes", "no"]), "yes"),
        (regex_grammar("a+"), "aaa"),
    ],
)
def test_what_is_said_instead_of_calls_keeps_to_its_own_grammar(case: Case, said: str, fits: str) -> None:
    grammar = case.grammar(ToolChoice(), said)
    tag = "" if case.format.is_marked else case.format.marker

    assert case.accepts(grammar, fits)
    assert case.accepts(grammar, tag + case.calls(("get_weather", PARIS)))
    assert not case.accepts(grammar, "Hello")
    assert not case.accepts(grammar, tag + case.calls(("get_weather", TOWN)))
    assert case.grammar(ToolChoice("required"), said) == case.grammar(ToolChoice("required"))
