"""A model's sizes and settings, whatever the format of its files."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from legato.core.errors import ModelError, brief

# Far above any real model, so that a false number is an error and no allocation.
MAX_SIZE = 2**24
MAX_LAYERS = 2**12


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """What a decoder needs to know beside its weights.

    architecture       "llama", the one family that is served
    head_dim           values of one head; num_heads * head_dim need not equal hidden_size
    max_position       tokens of context that the model was trained for
    rope_theta         base of the rotary frequencies; heads are rotated in halves, not in pairs
    eos_ids            every id that ends an answer
    sampling_defaults  fields of SamplingParams that the model's authors recommend
    Raises ModelError when the numbers cannot belong together.
    """

    architecture: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool
    eos_ids: frozenset[int] = frozenset()
    bos_id: int | None = None
    sampling_defaults: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (
            "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim",
            "vocab_size", "max_position",
        ):  # fmt: skip
            value = getattr(self, name)
            maximum = MAX_LAYERS if name == "num_layers" else MAX_SIZE
            if type(value) is not int or not 1 <= value <= maximum:
                raise ModelError(f"{name} is {value!r}, not a whole number from 1 to {maximum}")
        for name in ("rms_norm_eps", "rope_theta"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 < value <= sys.float_info.max:
                raise ModelError(f"{name} is {value!r}, not a positive number")
        if self.num_heads % self.num_kv_heads:
            raise ModelError(f"{self.num_heads} heads cannot share {self.num_kv_heads} K/V heads evenly")
        if self.head_dim % 2:
            raise ModelError(f"head_dim is {self.head_dim}; rotary positions need an even one")


def read_model_config(path: Path) -> ModelConfig:
    """Read the settings of a directory in Hugging Face layout or of a .gguf file.

    Raises ModelError for what is missing or malformed, and for any setting that would change the
    computation in a way that is not built: nothing of that kind is ignored.
    """
    try:
        if path.is_dir():
            from legato.modelfiles.hf_config import read_hf_config

            return read_hf_config(path)
        from legato.modelfiles.gguf_config import read_gguf_config  # each reader builds on this file

        return read_gguf_config(path)
    except ModelError as error:
        if str(path) in str(error):
            raise
        raise ModelError(f"{path}: {brief(error)}") from error
