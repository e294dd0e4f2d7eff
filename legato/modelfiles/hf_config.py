"""The settings of a directory in Hugging Face layout: its config.json, generation_config.json, tokenizer."""

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from legato.core.errors import ModelError, RequestError
from legato.core.sampling_params import SamplingParams
from legato.modelfiles.model_config import ModelConfig

SUPPORTED = "LlamaForCausalLM"
SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")

logger = logging.getLogger(__name__)


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object. Raises ModelError naming the file."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds no JSON object")
    return value


def read_json_if_present(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def read_hf_config(path: Path) -> ModelConfig:
    """Read a model directory; see read_model_config."""
    if not (path / "config.json").is_file():
        raise ModelError(
            f"{path} has no config.json: a model's directory holds config.json and .safetensors weights, in"
            " Hugging Face layout; a model in one .gguf file is named by the path of that file"
        )
    config = read_json(path / "config.json")
    generation = read_json_if_present(path / "generation_config.json")
    _refuse_unsupported(config)
    return ModelConfig(
        architecture="llama",
        hidden_size=_required(config, "hidden_size"),
        intermediate_size=_required(config, "intermediate_size"),
        num_layers=_required(config, "num_hidden_layers"),
        num_heads=_required(config, "num_attention_heads"),
        num_kv_heads=_given(config, "num_key_value_heads", config.get("num_attention_heads")),
        head_dim=_head_dim(config),
        vocab_size=_required(config, "vocab_size"),
        max_position=_given(config, "max_position_embeddings", 2048),
        rms_norm_eps=_given(config, "rms_norm_eps", 1e-6),
        rope_theta=_rope_theta(config),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        eos_ids=frozenset(
            [*_ids(config, "eos_token_id"), *_ids(generation, "eos_token_id"), *_tokenizer_eos_ids(path)]
        ),
        bos_id=next(_ids(config, "bos_token_id"), None),
        sampling_defaults=read_sampling_defaults(path),
    )


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    names = config.get("architectures")
    if not names or not isinstance(names, list):
        names = [config.get("model_type", "none")]
    if SUPPORTED not in names and names != ["llama"]:
        raise ModelError(f"the architecture is {', '.join(map(str, names))}; only {SUPPORTED} is served")
    for name in ("attention_bias", "mlp_bias", "sliding_window", "quantization_config"):
        if config.get(name):
            raise ModelError(f"{name} = {config[name]!r} in config.json is not supported")
    for name, expected in (("hidden_act", "silu"), ("partial_rotary_factor", 1.0)):
        if _given(config, name, expected) != expected:
            raise ModelError(f"{name} = {config[name]!r} in config.json is not supported, only {expected!r}")
    for name in ("rope_scaling", "rope_parameters"):
        rope = config.get(name) or {}
        kind = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, dict) else rope
        known = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
        if kind not in ("default", "none") or not known.issuperset(rope):
            raise ModelError(
                f"{name} = {rope!r} in config.json is not supported: only the default rotary positions"
            )
        if _given(rope, "partial_rotary_factor", 1.0) != 1.0:
            raise ModelError(f"{name} = {rope!r} in config.json is not supported: all of a head is rotated")


def _required(config: Mapping[str, Any], name: str) -> Any:
    if config.get(name) is None:
        raise ModelError(f"config.json does not say {name}")
    return config[name]


def _given(config: Mapping[str, Any], name: str, default: Any) -> Any:
    value = config.get(name)
    return default if value is None else value


def _head_dim(config: Mapping[str, Any]) -> Any:
    explicit = config.get("head_dim")
    if explicit is not None:
        return explicit
    hidden, heads = _required(config, "hidden_size"), _required(config, "num_attention_heads")
    if type(hidden) is not int or type(heads) is not int or heads < 1 or hidden % heads:
        raise ModelError(f"hidden_size {hidden!r} does not divide into num_attention_heads {heads!r}")
    return hidden // heads


def _rope_theta(config: Mapping[str, Any]) -> Any:
    newer = (config.get("rope_parameters") or {}).get("rope_theta")
    return newer if newer is not None else _given(config, "rope_theta", 10000.0)


def _ids(config: Mapping[str, Any], name: str) -> Iterator[int]:
    value = config.get(name)
    for token_id in value if isinstance(value, list) else [value]:
        if type(token_id) is int and token_id >= 0:
            yield token_id
        elif token_id is not None:
            raise ModelError(f"{name} is {value!r}: neither an id nor a list of ids")


def _tokenizer_eos_ids(path: Path) -> Iterator[int]:
    settings = read_json_if_present(path / "tokenizer_config.json")
    text = token_text(settings.get("eos_token"))
    if text is None:
        return
    try:
        added = settings.get("added_tokens_decoder") or {}
        known = {token_text(token): int(token_id) for token_id, token in added.items()}
        if text not in known:
            known = _ids_by_text(read_json_if_present(path / "tokenizer.json"))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ModelError(
            f"the tokenizer's files in {path} do not list their added tokens: {error!r}"
        ) from error
    if text in known:
        yield known[text]


def token_text(token: Any) -> str | None:
    """A special token's text; the files write either the text or an object with `content`."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _ids_by_text(tokenizer: Mapping[str, Any]) -> dict[str | None, int]:
    vocab = (tokenizer.get("model") or {}).get("vocab")
    known: dict[str | None, int] = dict(vocab) if isinstance(vocab, dict) else {}
    known.update({token_text(token): token["id"] for token in tokenizer.get("added_tokens") or ()})
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
