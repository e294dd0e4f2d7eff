"""The operations a model is made of: what each reads, what it writes, in which shapes."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Rows(StrEnum):
    """How many rows a value has, known only when a step runs."""

    TOKENS = "tokens"  # one for every token of the step
    SAMPLES = "samples"  # one for every token whose successor is sampled


class Index(StrEnum):
    """The step's arrays that rows of an embedding are chosen by."""

    TOKEN_IDS = "token_ids"
    POSITIONS = "positions"


class Activation(StrEnum):
    """A function of one number."""

    SILU = "silu"  # x / (1 + exp(-x))
    GELU = "gelu"  # x * (1 + erf(x / sqrt(2))) / 2. Source: arXiv:1606.08415
    GELU_TANH = "gelu_tanh"  # near it: x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3))) / 2
    RELU = "relu"  # max(x, 0)


@dataclass(frozen=True, slots=True)
class Value:
    """A float32 array [rows, width] that one operation writes and later ones read; `index` is its name."""

    index: int
    rows: Rows
    width: int

    def __str__(self) -> str:
        return f"%{self.index}[{self.rows}, {self.width}]"


@dataclass(frozen=True, slots=True)
class Weight:
    """An array of the model by its canonical name; a matrix is [outputs, inputs]."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding: pair i of a head's dimensions turns by position * frequencies[i].

    A pair is (i, i + len(frequencies)); where these are fewer than head_dim / 2, the rest of a head stays.
    What is turned is multiplied by `magnitude`. Source: RoFormer, arXiv:2104.09864.
    """

    head_dim: int
    frequencies: tuple[float, ...]
    max_position: int
    magnitude: float = 1.0


@dataclass(frozen=True, slots=True)
class Embedding:
    """out[i] = weight[index[i] + offset]; weight is [vocabulary, width], or [positions, width] if learned."""

    out: Value
    weight: Weight
    index: Index = Index.TOKEN_IDS
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Linear:
    """out[i] = W @ x[i] + b, where W is the weights one below the other, so that q, k and v are one product.

    biases  [outputs] of each weight, or none at all
    """

    out: Value
    x: Value
    weights: tuple[Weight, ...]
    biases: tuple[Weight, ...] = ()


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """out[i] = weight * x[i] / sqrt(mean(x[i] ** 2) + eps), of each head of x[i] where weight is [head_dim].

    Source: arXiv:1910.07467.
    """

    out: Value
    x: Value
    weight: Weight
    eps: float


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """out[i] = weight * (x[i] - mean(x[i])) / sqrt(variance(x[i]) + eps) + bias. Source: arXiv:1607.06450."""

    out: Value
    x: Value
    weight: Weight
    bias: Weight
    eps: float


@dataclass(frozen=True, slots=True)
class Rope:
    """Turns each head of x[i] by the angles of positions[i]."""

    out: Value
    x: Value
    rope: RopeConfig


@dataclass(frozen=True, slots=True)
class Attention:
    """Writes k[i] and v[i] to the K/V store at the token's position; then q[i] attends up to its own.

    q and out are [tokens, num_heads * head_dim], k and v [tokens, num_kv_heads * head_dim]; query heads share
    K/V heads in groups of num_heads / num_kv_heads.

    scale   multiplies the scores
    window  positions that a token sees, its own and those before it; None: all of them
    cap     scores become cap * tanh(score / cap), unless it is None
    """

    out: Value
    q: Value
    k: Value
    v: Value
    layer: int
    head_dim: int
    scale: float
    window: int | None = None
    cap: float | None = None

    @property
    def num_heads(self) -> int:
        return self.q.width // self.head_dim

    @property
    def num_kv_heads(self) -> int:
        return self.k.width // self.head_dim


@dataclass(frozen=True, slots=True)
class Split:
    """Cuts x into `outs` along its width, in order."""

    outs: tuple[Value, ...]
    x: Value


@dataclass(frozen=True, slots=True)
class Add:
    """out = a + b."""

    out: Value
    a: Value
    b: Value


@dataclass(frozen=True, slots=True)
class Scale:
    """out = x * factor."""

    out: Value
    x: Value
    factor: float


@dataclass(frozen=True, slots=True)
class SoftCap:
    """out = cap * tanh(x / cap): nothing is beyond the cap, and small numbers stay about as they are."""

    out: Value
    x: Value
    cap: float


@dataclass(frozen=True, slots=True)
class Activate:
    """out = function(x)."""

    out: Value
    x: Value
    function: Activation


@dataclass(frozen=True, slots=True)
class Gate:
    """out = function(gate) * up: with silu, SwiGLU without its products."""

    out: Value
    gate: Value
    up: Value
    function: Activation


@dataclass(frozen=True, slots=True)
class Experts:
    """Sends each row through the top_k experts, gated MLPs, for which its scores are highest.

    out[i] = sum of share * down @ (function(gate @ x[i]) * (up @ x[i])) over these experts, the highest score
    first; of equal ones the first expert's is higher. A share is an expert's part of softmax(scores[i]).
    Source: arXiv:2401.04088.

    scores         [tokens, experts]
    gates, ups     of each expert [width, inputs]; downs [outputs, width]
    is_normalized  the shares of a row are divided by their sum
    """

    out: Value
    x: Value
    scores: Value
    gates: tuple[Weight, ...]
    ups: tuple[Weight, ...]
    downs: tuple[Weight, ...]
    top_k: int
    is_normalized: bool
    function: Activation


@dataclass(frozen=True, slots=True)
class Select:
    """out[j] = x[sample_rows[j]]: from every token of the step to those that sample."""

    out: Value
    x: Value


Op = (
    Embedding
    | Linear
    | RmsNorm
    | LayerNorm
    | Rope
    | Attention
    | Split
    | Add
    | Scale
    | SoftCap
    | Activate
    | Gate
    | Experts
    | Select
)


@dataclass(frozen=True, slots=True)
class Program:
    """A model's forward pass: operations in the order they run, and which value is the logits.

    Besides values the operations read the step's index arrays, named in each docstring: token_ids, positions,
    sample_rows, and for attention the page table.
    """

    ops: tuple[Op, ...]
    logits: Value


def inputs_of(op: Op) -> tuple[Value, ...]:
    outs = outputs_of(op)
    return tuple(each for each in _parts(op) if isinstance(each, Value) and each not in outs)


def outputs_of(op: Op) -> tuple[Value, ...]:
    return op.outs if isinstance(op, Split) else (op.out,)


def weights_of(op: Op) -> tuple[Weight, ...]:
    return tuple(each for each in _parts(op) if isinstance(each, Weight))


def products_of(op: Op) -> tuple[tuple[Weight, ...], ...]:
    """The matrices that an operation reads, those together whose outputs are made side by side."""
    match op:
        case Embedding():
            return ((op.weight,),)
        case Linear():
            return (op.weights,)
        case Experts():
            gate_ups = tuple(zip(op.gates, op.ups, strict=True))
            return (*gate_ups, *((down,) for down in op.downs))
    return ()


def _parts(op: Op) -> Iterator[object]:
    """What the fields of an operation hold, tuples opened."""
    for name in op.__dataclass_fields__:
        held = getattr(op, name)
        yield from held if isinstance(held, tuple) else (held,)
