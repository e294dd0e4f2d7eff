"""Which format a model writes calls in."""

from collections.abc import Mapping
from dataclasses import replace

from legato.tokenization.tokenizer import Tokenizer
from legato.tokenization.tool_calls.format import ToolFormat
from legato.tokenization.tool_calls.hermes import HERMES
from legato.tokenization.tool_calls.llama3_json import LLAMA3_JSON
from legato.tokenization.tool_calls.mistral import ARGS, MISTRAL, NEWER_MISTRAL

FORMATS: Mapping[str, ToolFormat] = {each.kind: each for each in (HERMES, LLAMA3_JSON, MISTRAL)}


def choose_format(kind: str, template_source: str, tokenizer: Tokenizer | None = None) -> ToolFormat:
    """The format of a kind, one of FORMATS; `auto` is what the chat template speaks of, Hermes when of none.

    With a tokenizer the format knows which of its markers are tokens of their own.
    """
    chosen = _detected(template_source) if kind == "auto" else FORMATS[kind]
    if chosen is MISTRAL and ARGS in template_source:
        chosen = NEWER_MISTRAL
    if tokenizer is None:
        return chosen
    ids = {marker: tokenizer.added_id(marker) for marker in chosen.markers}
    return replace(chosen, token_ids={marker: each for marker, each in ids.items() if each is not None})


def _detected(template_source: str) -> ToolFormat:
    if HERMES.marker in template_source:
        return HERMES
    if MISTRAL.marker in template_source:
        return MISTRAL
    is_llama = LLAMA3_JSON.marker in template_source or '"parameters": ' in template_source  # 3.1, 3.2
    return LLAMA3_JSON if is_llama else HERMES
