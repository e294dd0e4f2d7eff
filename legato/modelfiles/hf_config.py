"""The settings of a directory in Hugging Face layout: its config.json, generation_config.json, tokenizer."""

import json
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from legato.core.errors import ModelError, RequestError, brief
from legato.core.sampling_params import SamplingParams
from legato.modelfiles.model_config import ModelConfig

SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")

BESIDE_TEXT = ("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings")  # as in text_config


@dataclass(frozen=True, slots=True)
class TextPart:
    """What kind of model text_config is of, and what it means where it is silent, as saved files are."""

    model_type: str
    defaults: Mapping[str, Any]


TEXT_PARTS = {  # of models that see images too; the defaults are those of transformers' classes
    "Gemma3ForConditionalGeneration": TextPart(
        "gemma3_text",
        {
            "head_dim": 256,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "max_position_embeddings": 131_072,
            "num_attention_heads": 8,
            "num_hidden_layers": 26,
            "num_key_value_heads": 4,
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
            "vocab_size": 262_208,
        },
    ),
    "Mistral3ForConditionalGeneration": TextPart(
        "mistral",
        {
            "hidden_size": 4096,
            "intermediate_size": 14_336,
            "max_position_embeddings": 131_072,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "sliding_window": 4096,
            "vocab_size": 32_000,
        },
    ),
}

MAX_ID_DIGITS = 9
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")  # as JSON writes half of a surrogate pair

logger = logging.getLogger(__name__)


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object. Raises ModelError naming the file."""
    try:
        data = path.read_bytes()
        value = json.loads(data.decode(json.detect_encoding(data)))
        if _HALF.search(data):  # of a pair, or of none
            json.dumps(value, ensure_ascii=False).encode()
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeError as error:
        raise ModelError(f"{path} holds text that is no Unicode: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds no JSON object")
    return value


def read_json_if_present(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def table_of(settings: Mapping[str, Any], name: str, file: Path) -> Mapping[str, Any]:
    """An object among a file's settings; {} where there is none. Raises ModelError for anything else."""
    value = settings.get(name)
    if value is not None and not isinstance(value, dict):
        raise ModelError(f"{file}: {name} is {brief(repr(value))}, not an object")
    return value or {}


def read_hf_config(path: Path) -> ModelConfig:
    """Read a model directory; see read_model_config."""
    if not (path / "config.json").is_file():
        raise ModelError(
            f"{path} has no config.json: a model's directory holds config.json and weights, .safetensors or"
            " pytorch_model.bin, in Hugging Face layout (config.json alone with --load-format dummy); a model"
            " in one .gguf file is named by the path of that file"
        )
    config = read_json(path / "config.json")
    architecture = _architecture(config)
    settings = _text_settings(config, architecture)
    generation = read_json_if_present(path / "generation_config.json")
    return ModelConfig(
        architecture=architecture,
        file_format="hf",
        source=str(path / "config.json"),
        settings=settings,
        vocab_size=_vocab_size(settings),
        eos_ids=frozenset(
            [
                *_ids(settings, "eos_token_id", "config.json"),
                *_ids(generation, "eos_token_id", "generation_config.json"),
                *_tokenizer_eos_ids(path),
            ]
        ),
        bos_id=next(_ids(settings, "bos_token_id", "config.json"), None),
        sampling_defaults=read_sampling_defaults(path),
    )


def _text_settings(config: Mapping[str, Any], architecture: str) -> Mapping[str, Any]:
    """The settings of the text; the config itself for a model of text alone.

    Raises ModelError when there is no such part, or one of another kind of model.
    """
    part = TEXT_PARTS.get(architecture)
    if part is None:
        return config
    text = config.get("text_config")
    kind = text.get("model_type", part.model_type) if isinstance(text, Mapping) else None
    if not isinstance(text, Mapping) or kind != part.model_type:
        if "text_config" not in config:
            raise ModelError(f"text_config of {architecture} is missing")
        if not isinstance(text, Mapping):
            raise ModelError(f"text_config of {architecture} must be an object, not {brief(repr(text))}")
        shown = brief(repr(kind))
        raise ModelError(f"text_config of {architecture} is {shown}, and only {part.model_type!r} is read")
    outer = {name: config[name] for name in BESIDE_TEXT if name in config}
    return {**part.defaults, **text, **outer}


def _architecture(config: Mapping[str, Any]) -> str:
    """The first of `architectures`; older files have no such list, but a model_type."""
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else config.get("model_type")
    if not isinstance(name, str):
        raise ModelError("config.json says neither architectures nor model_type")
    return name


def _vocab_size(config: Mapping[str, Any]) -> Any:
    if config.get("vocab_size") is None:
        raise ModelError("config.json does not say vocab_size")
    return config["vocab_size"]


def _ids(config: Mapping[str, Any], name: str, file: str) -> Iterator[int]:
    value = config.get(name)
    for token_id in value if isinstance(value, list) else [value]:
        if type(token_id) is int and token_id >= 0:
            yield token_id
        elif token_id is not None:
            raise ModelError(f"{file}: {name} is {value!r}: neither an id nor a list of ids")


def _tokenizer_eos_ids(path: Path) -> Iterator[int]:
    """Of the text that the tokenizer's settings call the end."""
    file = path / "tokenizer_config.json"
    settings = read_json_if_present(file)
    text = token_text((read_json_if_present(path / "special_tokens_map.json") | settings).get("eos_token"))
    if text is None:
        return
    added = table_of(settings, "added_tokens_decoder", file)
    known: dict[str | None, Any] = {token_text(token): token_id for token_id, token in added.items()}
    if text not in known:
        file = path / "tokenizer.json"
        known = _ids_by_text(read_json_if_present(file), file)
    if not known:
        file = path / "vocab.json"
        known.update(read_json_if_present(file))
    if text in known:
        yield token_id_of(known[text], file)


def token_text(token: Any) -> str | None:
    """A special token's text; the files write either the text or an object with `content`."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def token_id_of(value: Any, file: Path) -> int:
    """An id that the file gives a token; keys are texts. Raises ModelError."""
    if isinstance(value, str) and value.isdecimal() and len(value) <= MAX_ID_DIGITS:
        return int(value)
    if type(value) is int and 0 <= value < 10**MAX_ID_DIGITS:
        return value
    raise ModelError(f"{file} gives a token the id {brief(repr(value))}")


def _ids_by_text(tokenizer: Mapping[str, Any], file: Path) -> dict[str | None, Any]:
    vocab = table_of(tokenizer, "model", file).get("vocab")
    known: dict[str | None, Any] = dict(vocab) if isinstance(vocab, dict) else {}  # others have lists
    tokens = tokenizer.get("added_tokens") or []
    if not isinstance(tokens, list) or not all(isinstance(token, dict) for token in tokens):
        raise ModelError(f"{file}: added_tokens is {brief(repr(tokens))}, not a list of objects")
    known.update({token_text(token): token.get("id") for token in tokens})
    return known


def read_sampling_defaults(path: Path) -> dict[str, float]:
    """What generation_config.json recommends, as fields of SamplingParams; its do_sample is not looked at."""
    generation = read_json_if_present(path / "generation_config.json")
    defaults: dict[str, float] = {}
    for name in SAMPLING_FIELDS:
        value = generation.get(name)
        if value is None:
            continue
        try:
            SamplingParams(**{name: value})
        except (RequestError, TypeError) as error:
            logger.warning("generation_config.json: %s is left out: %s", name, error)
        else:
            defaults[name] = value
    return defaults
