"""A model's files to weights under canonical names."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from legato.backends.stored_weight import StoredWeight, StoredWeights, TensorHeader
from legato.core.errors import ModelError
from legato.modelfiles.model_config import ModelConfig
from legato.weights.gguf_tensors import GgufFile, split_half_rows
from legato.weights.names import GGUF_NAMES, HARMLESS_SUFFIXES, HF_NAMES, layer_names
from legato.weights.safetensors_file import open_safetensors

logger = logging.getLogger(__name__)


def load_weights(path: Path, config: ModelConfig) -> StoredWeights:
    """The weights of a directory in Hugging Face layout or of a .gguf file, as they are stored.

    Headers are read and checked here; a weight itself is read each time it is looked up.

    Names are the keys of names.HF_NAMES. Linear weights are [out_features, in_features], the rows of
    q_proj and k_proj in Hugging Face's order. `lm_head` is absent when the embeddings
    are tied, whether the file holds it or not.
    Raises ModelError for a tensor that is missing or misshapen; looking one up, when its type is unreadable.
    """
    if path.is_dir():
        places = open_safetensors(path)
        stored = {name: file.tensors[name] for name, file in places.items()}
        return _load(path, config, HF_NAMES, stored, lambda _, name: places[name].read(name))
    gguf = GgufFile(path)
    row_orders = {
        "q_proj": split_half_rows(config.num_heads, config.head_dim),
        "k_proj": split_half_rows(config.num_kv_heads, config.head_dim),
    }

    def read_gguf(canonical: str, name: str) -> StoredWeight:
        return gguf.read(name, row_orders.get(canonical.rpartition(".")[2]))

    return _load(path, config, GGUF_NAMES, gguf.tensors, read_gguf)


def _load(
    path: Path,
    config: ModelConfig,
    format_names: dict[str, str],
    stored: Mapping[str, TensorHeader],
    read: Callable[[str, str], StoredWeight],
) -> StoredWeights:
    names = layer_names(format_names, config.num_layers)
    lm_head = names["lm_head"]
    if config.tie_word_embeddings:
        del names["lm_head"]
    _check_shapes(path, config, names, stored)
    for extra in sorted(stored.keys() - names.values() - {lm_head}):
        if not extra.endswith(HARMLESS_SUFFIXES):
            logger.warning("%s: tensor %r is not used by this architecture", path, extra)
    tensors = {canonical: stored[name] for canonical, name in names.items()}
    return StoredWeights(tensors, lambda canonical: read(canonical, names[canonical]))


def _check_shapes(
    path: Path, config: ModelConfig, names: Mapping[str, str], stored: Mapping[str, TensorHeader]
) -> None:
    shapes = expected_shapes(config)
    for canonical, name in names.items():
        if name not in stored:
            raise ModelError(f"{path}: tensor {name!r} is missing")
        expected = shapes[canonical.rpartition(".")[2]]
        if stored[name].shape != expected:
            found = list(stored[name].shape)
            raise ModelError(
                f"{path}: tensor {name!r} has shape {found}; its configuration says {list(expected)}"
            )


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The shape of each weight, by the last part of its canonical name."""
    hidden, inner, vocab = config.hidden_size, config.intermediate_size, config.vocab_size
    q_dim, kv_dim = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return {
        "embed_tokens": (vocab, hidden),
        "input_norm": (hidden,),
        "q_proj": (q_dim, hidden),
        "k_proj": (kv_dim, hidden),
        "v_proj": (kv_dim, hidden),
        "o_proj": (hidden, q_dim),
        "post_norm": (hidden,),
        "gate_proj": (inner, hidden),
        "up_proj": (inner, hidden),
        "down_proj": (hidden, inner),
        "final_norm": (hidden,),
        "lm_head": (vocab, hidden),
    }
