"""Writes a program: each method appends one operation and hands back the value it makes."""

from collections.abc import Sequence

from legato.program.ops import (
    Activate,
    Activation,
    Add,
    Attention,
    Embedding,
    Experts,
    Gate,
    Index,
    LayerNorm,
    Linear,
    Op,
    Program,
    RmsNorm,
    Rope,
    RopeConfig,
    Rows,
    Scale,
    Select,
    SoftCap,
    Split,
    Value,
    Weight,
)


class Builder:
    """Collects operations; whether their shapes fit is for `check_program` to say."""

    def __init__(self) -> None:
        self._ops: list[Op] = []
        self._num_values = 0

    def embedding(self, weight: Weight) -> Value:
        """[tokens, width]: a row of `weight` for each token id of the step."""
        out = self._value(Rows.TOKENS, weight.shape[-1])
        self._ops.append(Embedding(out, weight))
        return out

    def position_embedding(self, weight: Weight, *, offset: int = 0) -> Value:
        """[tokens, width]: a row of `weight` for each token's position, whose first is at `offset`."""
        out = self._value(Rows.TOKENS, weight.shape[-1])
        self._ops.append(Embedding(out, weight, Index.POSITIONS, offset))
        return out

    def linear(self, x: Value, *weights: Weight, biases: tuple[Weight, ...] = ()) -> Value:
        """Several weights give their outputs side by side, for `split` to part again."""
        out = self._value(x.rows, sum(weight.shape[0] for weight in weights))
        self._ops.append(Linear(out, x, weights, biases))
        return out

    def rms_norm(self, x: Value, weight: Weight, *, eps: float) -> Value:
        out = self._value(x.rows, x.width)
        self._ops.append(RmsNorm(out, x, weight, eps))
        return out

    def layer_norm(self, x: Value, weight: Weight, bias: Weight, *, eps: float) -> Value:
        out = self._value(x.rows, x.width)
        self._ops.append(LayerNorm(out, x, weight, bias, eps))
        return out

    def rope(self, q: Value, k: Value, rope: RopeConfig) -> tuple[Value, Value]:
        return self._rope(q, rope), self._rope(k, rope)

    def attention(
        self,
        q: Value,
        k: Value,
        v: Value,
        layer: int,
        *,
        head_dim: int,
        scale: float,
        window: int | None = None,
        cap: float | None = None,
    ) -> Value:
        out = self._value(q.rows, q.width)
        self._ops.append(Attention(out, q, k, v, layer, head_dim, scale, window, cap))
        return out

    def split(self, x: Value, *widths: int) -> tuple[Value, ...]:
        outs = tuple(self._value(x.rows, width) for width in widths)
        self._ops.append(Split(outs, x))
        return outs

    def add(self, a: Value, b: Value) -> Value:
        out = self._value(a.rows, a.width)
        self._ops.append(Add(out, a, b))
        return out

    def scale(self, x: Value, factor: float) -> Value:
        """Nothing is written for a factor of 1."""
        if factor == 1:
            return x
        out = self._value(x.rows, x.width)
        self._ops.append(Scale(out, x, factor))
        return out

    def soft_cap(self, x: Value, cap: float | None) -> Value:
        """Nothing is written where there is no cap."""
        if cap is None:
            return x
        out = self._value(x.rows, x.width)
        self._ops.append(SoftCap(out, x, cap))
        return out

    def activate(self, x: Value, function: Activation) -> Value:
        out = self._value(x.rows, x.width)
        self._ops.append(Activate(out, x, function))
        return out

    def gate(self, gate: Value, up: Value, function: Activation) -> Value:
        out = self._value(gate.rows, gate.width)
        self._ops.append(Gate(out, gate, up, function))
        return out

    def experts(
        self,
        x: Value,
        scores: Value,
        experts: Sequence[tuple[Weight, Weight, Weight]],
        *,
        top_k: int,
        is_normalized: bool,
        function: Activation,
    ) -> Value:
        """experts: gate, up and down of each."""
        gates, ups, downs = zip(*experts, strict=True)
        out = self._value(x.rows, downs[0].shape[0])
        self._ops.append(Experts(out, x, scores, gates, ups, downs, top_k, is_normalized, function))
        return out

    def select(self, x: Value) -> Value:
        """Keep the rows that sample: what follows is computed for them alone."""
        out = self._value(Rows.SAMPLES, x.width)
        self._ops.append(Select(out, x))
        return out

    def output(self, logits: Value) -> Program:
        return Program(tuple(self._ops), logits)

    def _rope(self, x: Value, rope: RopeConfig) -> Value:
        out = self._value(x.rows, x.width)
        self._ops.append(Rope(out, x, rope))
        return out

    def _value(self, rows: Rows, width: int) -> Value:
        self._num_values += 1
        return Value(self._num_values - 1, rows, width)
