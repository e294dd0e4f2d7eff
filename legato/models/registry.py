"""Which architectures can be served, and what writes each one's program."""

from collections.abc import Callable

from legato.core.errors import ModelError
from legato.modelfiles.model_config import ModelConfig
from legato.models.llama import llama_program
from legato.program.ops import Program

PROGRAMS: dict[str, Callable[[ModelConfig], Program]] = {
    "llama": llama_program,
}


def build_program(config: ModelConfig) -> Program:
    """The forward pass of the model that `config` describes; ModelError for an unknown architecture."""
    write_program = PROGRAMS.get(config.architecture)
    if write_program is None:
        raise ModelError(
            f"architecture {config.architecture!r} is not supported; these are: {', '.join(sorted(PROGRAMS))}"
        )
    return write_program(config)
