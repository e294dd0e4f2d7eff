"""The operations a model is made of: what each reads, what it writes, in which shapes."""

from dataclasses import dataclass
from enum import StrEnum


class Rows(StrEnum):
    """How many rows a value has, known only when a step runs."""

    TOKENS = "tokens"  # one for every token of the step
    SAMPLES = "samples"  # one for every token whose successor is sampled


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
    """Rotary position embedding: dimension pair i of a head turns by position * theta ** (-2 i / head_dim).

    A pair is (i, i + head_dim / 2). Source: RoFormer, arXiv:2104.09864.
    """

    head_dim: int
    theta: float
    max_position: int


@dataclass(frozen=True, slots=True)
class Embedding:
    """out[i] = weight[token_ids[i]]; weight is [vocabulary, width]."""

    out: Value
    weight: Weight


@dataclass(frozen=True, slots=True)
class Linear:
    """out[i] = W @ x[i], where W is the weights one below the other, so that q, k and v are one product."""

    out: Value
    x: Value
    weights: tuple[Weight, ...]


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """out[i] = weight * x[i] / sqrt(mean(x[i] ** 2) + eps). Source: arXiv:1910.07467."""

    out: Value
    x: Value
    weight: Weight
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
    K/V heads in groups of num_heads / num_kv_heads. scale multiplies the logits.
    """

    out: Value
    q: Value
    k: Value
    v: Value
    layer: int
    head_dim: int
    scale: float

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
class SiluMul:
    """out = silu(gate) * up, where silu(x) = x / (1 + exp(-x)): SwiGLU without its products."""

    out: Value
    gate: Value
    up: Value


@dataclass(frozen=True, slots=True)
class Select:
    """out[j] = x[sample_rows[j]]: from every token of the step to those that sample."""

    out: Value
    x: Value


Op = Embedding | Linear | RmsNorm | Rope | Attention | Split | Add | SiluMul | Select


@dataclass(frozen=True, slots=True)
class Program:
    """A model's forward pass: operations in the order they run, and which value is the logits.

    Besides values the operations read the step's index arrays, named in each docstring: token_ids, positions,
    sample_rows, and for attention the page table.
    """

    ops: tuple[Op, ...]
    logits: Value


def inputs_of(op: Op) -> tuple[Value, ...]:
    match op:
        case Embedding():
            return ()
        case Attention():
            return (op.q, op.k, op.v)
        case Add():
            return (op.a, op.b)
        case SiluMul():
            return (op.gate, op.up)
        case _:
            return (op.x,)


def outputs_of(op: Op) -> tuple[Value, ...]:
    return op.outs if isinstance(op, Split) else (op.out,)


def weights_of(op: Op) -> tuple[Weight, ...]:
    match op:
        case Embedding() | RmsNorm():
            return (op.weight,)
        case Linear():
            return op.weights
        case _:
            return ()
