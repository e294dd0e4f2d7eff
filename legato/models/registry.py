"""Which architectures can be served, and how a model's settings become a program."""

from collections.abc import Iterable
from difflib import get_close_matches

from legato.core.errors import ModelError
from legato.modelfiles.gguf_config import ROPE_TENSORS
from legato.modelfiles.model_config import ModelConfig
from legato.models.families.gemma import GEMMA2, GEMMA3
from legato.models.families.gpt2 import GPT2
from legato.models.families.granite import GRANITE
from legato.models.families.llama import LLAMA
from legato.models.families.mistral import MISTRAL
from legato.models.families.mixtral import MIXTRAL
from legato.models.families.opt import OPT
from legato.models.families.phi3 import PHI3
from legato.models.families.qwen import QWEN2, QWEN3
from legato.models.families.qwen3_moe import QWEN3_MOE
from legato.models.families.smollm3 import SMOLLM3
from legato.models.family import Family, Model
from legato.models.settings import Settings
from legato.program.ops import Attention, Program
from legato.program.stored_tensors import StoredTensors

FAMILIES: tuple[Family, ...] = (
    LLAMA, MISTRAL, MIXTRAL, QWEN2, QWEN3, QWEN3_MOE, GEMMA2, GEMMA3, PHI3, SMOLLM3, GRANITE, OPT, GPT2,
)  # fmt: skip


SIMILAR = 0.75  # by difflib's ratio: a typo in a name


def build_model(config: ModelConfig) -> Model:
    """The forward pass of the model and where its weights lie.

    Raises ModelError for an architecture that is not supported, and for any setting that would change the
    computation in a way that is not built: nothing of that kind is ignored.
    """
    family = _family_of(config)
    settings = Settings(config.settings, config.source)
    try:
        described = family.describe(settings)
    except (ArithmeticError, ValueError) as error:  # of a logarithm, a division, a power
        raise settings.error(f"its numbers do not belong together: {error}") from error
    settings.finish()
    head_dim = next(op.head_dim for op in described.program.ops if isinstance(op, Attention))
    if config.file_format == "hf":
        tensors = StoredTensors(
            family.hf_tensors, head_dim, family.hf_prefixes, family.harmless, family.hf_others
        )
    else:
        tensors = StoredTensors(
            family.gguf_tensors, head_dim, harmless=tuple(ROPE_TENSORS), others=family.gguf_others
        )
    return Model(config, described.program, described.max_position, tensors)


def build_program(config: ModelConfig) -> Program:
    """The forward pass alone."""
    return build_model(config).program


def _family_of(config: ModelConfig) -> Family:
    is_hf = config.file_format == "hf"
    known = {name: each for each in FAMILIES for name in (each.hf_names if is_hf else each.gguf_names)}
    if config.architecture in known:
        return known[config.architecture]
    nearest = _nearest(config.architecture, known)
    hint = f"the nearest that is: {nearest}; " if nearest else ""
    listed = sorted(name for name in known if not is_hf or name != name.lower())  # those are model_type's
    raise ModelError(
        f"{config.source}: the architecture {config.architecture!r} is not supported;"
        f" {hint}all that are: {', '.join(listed)}"
    )


def _nearest(architecture: str, known: Iterable[str]) -> str | None:
    """A name that is nearly this one, or of a family whose name this one begins with."""
    stems, stem = {_stem(name) for name in known}, _stem(architecture)
    [best] = get_close_matches(stem, stems, n=1, cutoff=0)
    kin = [each for each in stems if stem.startswith(each.rstrip("0123456789"))]
    near = get_close_matches(stem, kin, n=1, cutoff=0) or get_close_matches(stem, [best], cutoff=SIMILAR)
    alike = [name for name in known if near and _stem(name) == near[0]]
    return next(iter(get_close_matches(architecture, alike, n=1, cutoff=0)), None)


def _stem(architecture: str) -> str:
    """Without the ending that all have."""
    return architecture.partition("For")[0].removesuffix("LMHeadModel").lower()
