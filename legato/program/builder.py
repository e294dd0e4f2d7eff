"""Writes a program: each method appends one operation and hands back the value it makes."""

from legato.program.ops import (
    Add,
    Attention,
    Embedding,
    Linear,
    Op,
    Program,
    RmsNorm,
    Rope,
    RopeConfig,
    Rows,
    Select,
    SiluMul,
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

    def linear(self, x: Value, *weights: Weight) -> Value:
        """Several weights give their outputs side by side, for `split` to part again."""
        out = self._value(x.rows, sum(weight.shape[0] for weight in weights))
        self._ops.append(Linear(out, x, weights))
        return out

    def rms_norm(self, x: Value, weight: Weight, *, eps: float) -> Value:
        out = self._value(x.rows, x.width)
        self._ops.append(RmsNorm(out, x, weight, eps))
        return out

    def rope(self, q: Value, k: Value, rope: RopeConfig) -> tuple[Value, Value]:
        return self._rope(q, rope), self._rope(k, rope)

    def attention(self, q: Value, k: Value, v: Value, layer: int, *, head_dim: int, scale: float) -> Value:
        out = self._value(q.rows, q.width)
        self._ops.append(Attention(out, q, k, v, layer, head_dim, scale))
        return out

    def split(self, x: Value, *widths: int) -> tuple[Value, ...]:
        outs = tuple(self._value(x.rows, width) for width in widths)
        self._ops.append(Split(outs, x))
        return outs

    def add(self, a: Value, b: Value) -> Value:
        out = self._value(a.rows, a.width)
        self._ops.append(Add(out, a, b))
        return out

    def silu_mul(self, gate: Value, up: Value) -> Value:
        out = self._value(gate.rows, gate.width)
        self._ops.append(SiluMul(out, gate, up))
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
