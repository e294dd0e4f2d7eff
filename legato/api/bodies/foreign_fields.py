"""Fields of other servers that legato does not honour: one table of what becomes of each, for every route.

A field that a body declares is honoured there, whatever stands here. A field that stands nowhere is ignored,
and so named to the client. Null is like absent, always.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel

# These would change the answer: 400, but for the values that ask for nothing. So too for a field that is
# honoured by other routes than the one asked.
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        # OpenAI
        "audio": (),
        "best_of": (1,),
        "continue_final_message": (False,),
        "echo": (False,),
        "function_call": ("none", "auto"),
        "functions": ([],),
        "logprobs": (False,),
        "modalities": (["text"],),
        "moderation": (),
        "n": (1,),
        "prediction": (),
        "response_format": ({"type": "text"},),
        "suffix": ("",),
        "tool_choice": ("none", "auto"),
        "tools": ([],),
        "top_logprobs": (0,),
        "web_search_options": (),
        # Anthropic
        "container": (),
        "mcp_servers": ([],),
        # legato
        "return_timings": (False,),
        # vLLM
        "allowed_token_ids": (),
        "bad_words": ([],),
        "chat_template": (),
        "documents": ([],),
        "guided_choice": (),
        "guided_grammar": (),
        "guided_json": (),
        "guided_regex": (),
        "kv_transfer_params": (),
        "logprob_token_ids": (),
        "logits_processors": ([],),
        "prompt_embeds": (),
        "prompt_logprobs": (),
        "return_token_ids": (False,),
        "return_tokens_as_token_ids": (False,),
        "spaces_between_special_tokens": (True, False),  # none are put there, as by fast tokenizers
        "structured_outputs": (),
        "truncation_side": ("left",),
        "use_beam_search": (False,),
        # SGLang
        "custom_logit_processor": (),
        "ebnf": (),
        "input_ids": (),
        "lora_path": (),
        "no_stop_trim": (False,),
        "regex": (),
        "return_hidden_states": (False,),
        "session_params": (),
        "stop_regex": ([],),
        # llama.cpp
        "dry_multiplier": (0, 0.0),
        "dynatemp_range": (0, 0.0),
        "grammar": ("",),
        "json_schema": (),
        "lora": ([],),
        "mirostat": (0,),
        "n_indent": (0,),
        "n_predict": (),
        "n_probs": (0,),
        "post_sampling_probs": (False,),
        "repeat_penalty": (1, 1.0),
        "response_fields": ([],),
        "return_tokens": (False,),
        "timings_per_token": (False,),
        "t_max_predict_ms": (0, -1),
        "tfs_z": (1, 1.0),
        "top_n_sigma": (-1, -1.0),
        "typical_p": (1, 1.0),
        "xtc_probability": (0, 0.0),
    }
)

REMEDIES: Mapping[str, str] = MappingProxyType(
    {
        "function_call": "is the older form of tool_choice; give that",
        "functions": "is the older form of tools; give those",
        "ebnf": 'is not read here; give structured_outputs: {"grammar": ...}',
        "grammar": 'is not read here; give structured_outputs: {"grammar": ...}',
        "json_schema": 'is not read here; give structured_outputs: {"json": ...}',
        "regex": 'is not read here; give structured_outputs: {"regex": ...}',
    }
)

# These are taken as the first value, and the client is told so where it gave one that is not listed.
ADJUSTED: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "service_tier": ("default", "auto", "standard_only"),  # everybody is served alike
        "store": (False,),  # nothing is kept after the answer
    }
)

# These change no answer: the client's notes to itself or to OpenAI, hints about caches, and what only tunes
# a feature whose switch is refused above.
NOTES = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "user",
        # Anthropic
        "cache_control",
        # vLLM
        "guided_decoding_backend",
        "guided_whitespace_pattern",
        "length_penalty",
        # llama.cpp
        "dry_allowed_length",
        "dry_base",
        "dry_penalty_last_n",
        "dry_sequence_breakers",
        "dynatemp_exponent",
        "mirostat_eta",
        "mirostat_tau",
        "repeat_last_n",
        "xtc_threshold",
    }
)

Shape = Mapping[str, Any]  # name -> the shape of what is inside, or None where anything may be

_TEXT_PART: Shape = {"type": None, "text": None}
_FUNCTION: Shape = {"name": None, "description": None, "parameters": None, "strict": None}
_CALL: Shape = {"id": None, "type": None, "function": {"name": None, "arguments": None}}
# What is read inside the fields that hold objects; a list has the shape of its elements.
SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        "messages": {
            "role": None,
            "name": None,
            "content": _TEXT_PART,
            "tool_calls": _CALL,
            "tool_call_id": None,
            # refused where they hold anything
            "audio": None,
            "function_call": None,
        },
        "response_format": {
            "type": None,
            "json_schema": {"name": None, "description": None, "schema": None, "strict": None},
        },
        "stream_options": {"include_usage": None, "continuous_usage_stats": None},
        "structured_outputs": {  # what else it has is refused
            "json": None,
            "regex": None,
            "choice": None,
            "grammar": None,
            "json_object": None,
            "whitespace_pattern": None,
            "disable_any_whitespace": None,
            "disable_additional_properties": None,
            "disable_fallback": None,
        },
        "tool_choice": {
            "type": None,
            "function": {"name": None},
            "allowed_tools": {"mode": None, "tools": {"type": None, "function": {"name": None}}},
        },
        "tools": {"type": None, "function": _FUNCTION},
    }
)


def is_harmless(value: Any, harmless: tuple[Any, ...]) -> bool:
    """Whether a value asks for nothing. Compares types too: 0 and false, 1 and true are not the same wish."""
    return value is None or any(type(value) is type(known) and value == known for known in harmless)


def unread_inside(path: str, value: Any, shape: Shape) -> Iterator[str]:
    """The places in a field's value that nobody reads, e.g. "messages.0.cache_control"."""
    if isinstance(value, list):
        for index, element in enumerate(value):
            yield from unread_inside(f"{path}.{index}", element, shape)
    elif isinstance(value, Mapping | BaseModel):
        for name, inner in dict(value).items():
            place = f"{path}.{name}"
            if inner is None:
                continue
            if name not in shape:
                yield place
            elif shape[name] is not None:
                yield from unread_inside(place, inner, shape[name])
