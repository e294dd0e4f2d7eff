"""Rotary position embeddings: the settings of every spelling to frequencies, rounded nowhere."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from legato.models.settings import Settings
from legato.program.ops import RopeConfig

FULL, SLIDING = "full_attention", "sliding_attention"  # kinds of layers


@dataclass(frozen=True, slots=True)
class Scaled:
    """What a way of scaling makes of plain frequencies; max_position: how far it holds."""

    frequencies: tuple[float, ...]
    max_position: int
    magnitude: float = 1.0


@dataclass(frozen=True, slots=True)
class Plain:
    """Frequencies before they are scaled; trained_len is the context that they were trained with."""

    frequencies: tuple[float, ...]
    theta: float
    max_position: int
    trained_len: int


def plain_rope(head_dim: int, theta: float, max_position: int) -> RopeConfig:
    """Pair i of a head turns by theta ** (-2 i / head_dim) a position."""
    return RopeConfig(head_dim, plain_frequencies(head_dim, theta), max_position)


def plain_frequencies(width: int, theta: float) -> tuple[float, ...]:
    return tuple(theta ** -(pair / width) for pair in range(0, width, 2))


def rope_parameters(settings: Settings) -> Mapping[str, Any]:
    """What rope_scaling or rope_parameters says, its newer name: of all layers, or by kind of layer."""
    found: Mapping[str, Any] = {}
    for name in ("rope_parameters", "rope_scaling"):
        found = settings.table(name) or found
    return found


def rope_parameters_by_kind(settings: Settings) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Those of layers that see all, and of those in a window; what is said of no kind is of the former."""
    given = rope_parameters(settings)
    if not given.keys() & {FULL, SLIDING}:
        return given, {}
    by_kind = Settings(given, f"{settings.source}: {_rope_key(settings)}")
    return by_kind.table(FULL), by_kind.table(SLIDING)


def _rope_key(settings: Settings) -> str:
    """The name under which the file has what rope_parameters() gives."""
    return "rope_scaling" if settings.get("rope_scaling") else "rope_parameters"


def read_rope(
    settings: Settings,
    head_dim: int,
    max_position: int,
    *,
    parameters: Mapping[str, Any] | None = None,
    default_theta: float = 10_000.0,
    may_be_partial: bool = False,
) -> RopeConfig:
    """The rotation of the layers that `parameters` are of. Raises ModelError for one that is not built.

    may_be_partial  whether a part of each head may be left as it is
    """
    outer_theta = settings.number("rope_theta", default_theta)
    trained_len = settings.whole("original_max_position_embeddings", max_position)
    given = rope_parameters(settings) if parameters is None else parameters
    rope = Settings(given, f"{settings.source}: {_rope_key(settings)}")
    kind = rope.choice("rope_type", SCALINGS, rope.get("type", "default"))
    theta = rope.number("rope_theta", outer_theta)
    width = _rotated_width(settings, rope, head_dim, may_be_partial=may_be_partial)
    trained_len = rope.whole("original_max_position_embeddings", trained_len)
    plain = Plain(plain_frequencies(width, theta), theta, max_position, trained_len)
    scaled = SCALINGS[kind](rope, plain)
    rope.refuse_unread()
    return RopeConfig(head_dim, scaled.frequencies, scaled.max_position, scaled.magnitude)


def _rotated_width(settings: Settings, rope: Settings, head_dim: int, *, may_be_partial: bool) -> int:
    name = "partial_rotary_factor"
    if not may_be_partial:
        rope.refuse(name, 1, 1.0)
        settings.refuse(name, 1, 1.0)
    width = int(head_dim * rope.number(name, settings.number(name, 1.0)))
    if width % 2 or not 0 < width <= head_dim:
        raise settings.error(f"{width} dimensions of a head of {head_dim} cannot be rotated in pairs")
    return width


def _default(rope: Settings, plain: Plain) -> Scaled:
    return Scaled(plain.frequencies, plain.max_position)


def _linear(rope: Settings, plain: Plain) -> Scaled:
    factor = rope.number("factor")
    return Scaled(tuple(each / factor for each in plain.frequencies), plain.max_position)


def _dynamic(rope: Settings, plain: Plain) -> Scaled:
    """Frequencies change when a text grows beyond the trained context; up to there they are plain ones.

    Beyond it is not served: what was computed of a text's beginning would no longer hold.
    """
    rope.number("factor")
    return _default(rope, plain)


def _divided(rope: Settings, plain: Plain) -> Scaled:
    """Each by a number of its own, as GGUF files write llama3 down."""
    return Scaled(_quotients(rope, "factors", plain), plain.max_position)


def _longrope(rope: Settings, plain: Plain) -> Scaled:
    """Source: arXiv:2402.13753. Like `dynamic` beyond the trained context, so that is where it ends."""
    frequencies = _quotients(rope, "short_factor", plain)
    rope.get("long_factor")
    factor = rope.number("factor", plain.max_position / plain.trained_len)
    spread = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(plain.trained_len))
    magnitude = rope.number("attention_factor", spread)
    return Scaled(frequencies, min(plain.trained_len, plain.max_position), magnitude)


def _llama3(rope: Settings, plain: Plain) -> Scaled:
    """Waves that are long beside the trained context are slowed down by `factor`, short ones not."""
    factor, low, high = (rope.number(name) for name in ("factor", "low_freq_factor", "high_freq_factor"))

    def scaled(frequency: float) -> float:
        num_waves = plain.trained_len * frequency / (2 * math.pi)  # over the trained context
        smooth = min(max((num_waves - low) / (high - low), 0.0), 1.0)
        return frequency * (smooth + (1 - smooth) / factor)

    return Scaled(tuple(map(scaled, plain.frequencies)), plain.max_position)


def _yarn(rope: Settings, plain: Plain) -> Scaled:
    """Long waves are slowed down by `factor`, short ones not, a ramp between. Source: arXiv:2309.00071."""
    num_pairs = len(plain.frequencies)
    factor = rope.number("factor", plain.max_position / plain.trained_len)
    fast, slow = rope.number("beta_fast", 32.0), rope.number("beta_slow", 1.0)

    def pair_with(num_waves: float) -> float:
        return num_pairs * math.log(plain.trained_len / (num_waves * 2 * math.pi)) / math.log(plain.theta)

    first, last = pair_with(fast), pair_with(slow)
    if rope.flag("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * num_pairs - 1)
    if first == last:
        last += 0.001

    def scaled(pair: int) -> float:
        share = min(max((pair - first) / (last - first), 0.0), 1.0)
        return plain.frequencies[pair] * (1 - share + share / factor)

    frequencies = tuple(map(scaled, range(num_pairs)))
    magnitude = rope.number("attention_factor", _yarn_magnitude(rope, factor))
    return Scaled(frequencies, plain.max_position, magnitude)


def _yarn_magnitude(rope: Settings, factor: float) -> float:
    def magnitude(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1

    if all(rope.get(name) not in (None, 0) for name in ("mscale", "mscale_all_dim")):
        return magnitude(rope.number("mscale")) / magnitude(rope.number("mscale_all_dim"))
    return magnitude(1.0)


def _quotients(rope: Settings, name: str, plain: Plain) -> tuple[float, ...]:
    divisors = rope.get(name)
    if not isinstance(divisors, list) or len(divisors) != len(plain.frequencies):
        raise rope.error(f"{name} must be a list of {len(plain.frequencies)} numbers")
    if not all(isinstance(each, int | float) and each > 0 for each in divisors):
        raise rope.error(f"{name} must be positive numbers")
    return tuple(each / divisor for each, divisor in zip(plain.frequencies, divisors, strict=True))


SCALINGS: dict[str, Callable[[Settings, Plain], Scaled]] = {
    "default": _default,
    "none": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,  # its older name
    "llama3": _llama3,
    "divided": _divided,
}
