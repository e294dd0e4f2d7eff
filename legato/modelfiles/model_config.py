"""What a model's files say of it, whatever their format, before its family makes a program of that."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from legato.core.errors import ModelError, brief

MAX_SIZE = 2**24  # of a vocabulary, a context, a width: above any real one, so that a false one is an error


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A model's settings as they are written down; models/registry.py says what they mean.

    architecture       as config.json names it, "LlamaForCausalLM", or a .gguf header, "llama"
    file_format        whose names and whose order the weights have
    source             the file that says so, for errors
    settings           by their names in config.json, in either format
    eos_ids            every id that ends an answer
    sampling_defaults  fields of SamplingParams that the model's authors recommend
    """

    architecture: str
    file_format: Literal["hf", "gguf"]
    source: str
    settings: Mapping[str, Any]
    vocab_size: int
    eos_ids: frozenset[int] = frozenset()
    bos_id: int | None = None
    sampling_defaults: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if type(self.vocab_size) is not int or not 1 <= self.vocab_size <= MAX_SIZE:
            shown = brief(repr(self.vocab_size))
            raise ModelError(f"{self.source}: vocab_size is {shown}, not a whole number from 1 to {MAX_SIZE}")


def read_model_config(path: Path) -> ModelConfig:
    """Read the settings of a directory in Hugging Face layout or of a .gguf file.

    Raises ModelError for what is missing or malformed. Whether the model can be served is not asked here.
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
