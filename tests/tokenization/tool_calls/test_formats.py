"""The format that a model's chat template speaks of."""

from dataclasses import fields

import pytest

from legato.core.config import EngineConfig
from legato.tokenization.tokenizer import Tokenizer
from legato.tokenization.tool_calls.format import ToolFormat
from legato.tokenization.tool_calls.formats import FORMATS, choose_format
from legato.tokenization.tool_calls.hermes import HERMES
from legato.tokenization.tool_calls.llama3_json import LLAMA3_JSON
from legato.tokenization.tool_calls.mistral import MISTRAL, NEWER_MISTRAL
from tests.tokenization.tiny_tokenizers import byte_level_backend

LLAMA = """{{ '{"name": "' + call.name + '", ' }}{{ '"parameters": ' }}{{ call.arguments | tojson }}"""


@pytest.mark.parametrize(
    ("source", "chosen"),
    [
        ("", HERMES),
        ("{% for message in messages %}{{ message.content }}{% endfor %}", HERMES),
        ("{{ '<tool_call>\\n{\"name\": ' }}", HERMES),
        ("{{ '[TOOL_CALLS] [' }}", MISTRAL),
        ("{{ '[TOOL_CALLS]' + call.name + '[ARGS]' }}", NEWER_MISTRAL),
        ("{{ '<|python_tag|>' }}", LLAMA3_JSON),
        (LLAMA, LLAMA3_JSON),
    ],
)
def test_auto_takes_what_the_template_speaks_of(source: str, chosen: ToolFormat) -> None:
    assert choose_format("auto", source) == chosen


def test_a_named_format_wins_over_the_template() -> None:
    assert choose_format("hermes", "{{ '[TOOL_CALLS] [' }}") == HERMES
    assert choose_format("mistral", "{{ '[ARGS]' }}") == NEWER_MISTRAL


def test_setting_offers_every_format() -> None:
    [setting] = [each for each in fields(EngineConfig) if each.name == "tool_call_parser"]
    assert setting.metadata["choices"] == ("auto", *FORMATS)


def test_markers_that_are_tokens_are_known_by_their_ids() -> None:
    backend = byte_level_backend()
    backend.add_special_tokens(["[TOOL_CALLS]", "[INST]"])
    backend.add_tokens(["<tool_call>"])  # no special one, and yet one token
    tokenizer = Tokenizer(backend)

    mistral, hermes, llama = (
        choose_format(kind, "", tokenizer) for kind in ("mistral", "hermes", "llama3_json")
    )

    assert mistral.token_ids == {"[TOOL_CALLS]": backend.token_to_id("[TOOL_CALLS]")}
    assert hermes.token_ids == {"<tool_call>": backend.token_to_id("<tool_call>")}
    assert llama.token_ids == {}
