"""What a family of models is to the rest: how its settings become a program, and where its weights lie."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from legato.modelfiles.model_config import ModelConfig
from legato.models.settings import Settings
from legato.program.ops import Program
from legato.program.stored_tensors import StoredTensor, StoredTensors


@dataclass(frozen=True, slots=True)
class Described:
    """A forward pass, and how many tokens of context it was trained for."""

    program: Program
    max_position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A page of models/families/.

    hf_names      what `architectures` or model_type in config.json says
    gguf_names    what general.architecture in a .gguf header says
    describe      settings, by config.json's names in either format, to a program; raises ModelError
    hf_tensors    name of a weight in the program -> where it lies in Hugging Face's files; gguf_tensors
                  likewise. A name that no program of the family has does no harm
    hf_others     see StoredTensors: others, likewise gguf_others, hf_prefixes, and harmless
    """

    hf_names: tuple[str, ...]
    gguf_names: tuple[str, ...] = ()
    describe: Callable[[Settings], Described]
    hf_tensors: Mapping[str, StoredTensor]
    gguf_tensors: Mapping[str, StoredTensor] = field(default_factory=dict)
    hf_others: tuple[Mapping[str, StoredTensor], ...] = ()
    gguf_others: tuple[Mapping[str, StoredTensor], ...] = ()
    hf_prefixes: tuple[str, ...] = ("model.", "")
    harmless: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Model:
    """What is needed to load and run a model: see ModelConfig, Described and StoredTensors."""

    config: ModelConfig
    program: Program
    max_position: int
    tensors: StoredTensors

    @property
    def vocab_size(self) -> int:
        return self.program.logits.width
