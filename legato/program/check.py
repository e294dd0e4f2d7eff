"""Whether a program makes sense and its weights fit, asked before anything runs."""

from collections.abc import Iterator, Mapping
from typing import Protocol

from legato.core.errors import ModelError
from legato.program.ops import (
    Add,
    Attention,
    Embedding,
    Experts,
    Gate,
    LayerNorm,
    Linear,
    Op,
    Program,
    RmsNorm,
    Rope,
    Rows,
    Select,
    Split,
    Value,
    inputs_of,
    outputs_of,
    weights_of,
)


class HasShape(Protocol):
    """An array, of whatever library."""

    @property
    def shape(self) -> tuple[int, ...]: ...


Fault = tuple[str, object, object]  # what, expected, found


def check_program(program: Program) -> None:
    """Raise ModelError unless each operation reads values that exist, in the shapes it needs."""
    known: set[Value] = set()
    for index, op in enumerate(program.ops):
        for value in inputs_of(op):
            if value not in known:
                raise _error(index, op, ("input", "a value that an earlier operation made", value))
        for fault in _faults(op):
            raise _error(index, op, fault)
        known.update(outputs_of(op))
    if program.logits not in known or program.logits.rows is not Rows.SAMPLES:
        raise ModelError(f"the logits {program.logits} must be a value of the program, one row a sample")


def check_weights(program: Program, weights: Mapping[str, HasShape]) -> None:
    """Raise ModelError unless each weight that the program names is there, in its shape."""
    for index, op in enumerate(program.ops):
        for weight in weights_of(op):
            if weight.name not in weights:
                raise ModelError(
                    f"{_describe(index, op)}: its weight {weight.name!r} {list(weight.shape)} is missing;"
                    " the model's files are incomplete or of another architecture"
                )
            found = tuple(weights[weight.name].shape)
            if found != weight.shape:
                raise _error(index, op, (f"shape of weight {weight.name!r}", list(weight.shape), list(found)))


def _faults(op: Op) -> Iterator[Fault]:
    match op:
        case Embedding():
            yield from _embedding_faults(op)
        case Linear():
            yield from _linear_faults(op)
        case RmsNorm() | LayerNorm():
            yield from _norm_faults(op)
        case Rope():
            yield from _rope_faults(op)
        case Attention():
            yield from _attention_faults(op)
        case Experts():
            yield from _experts_faults(op)
        case Split() | Add() | Gate() | Select():
            yield from _shape_faults(op)


def _shape_faults(op: Split | Add | Gate | Select) -> Iterator[Fault]:
    match op:
        case Split():
            yield from _differs("sum of widths", op.x.width, sum(out.width for out in op.outs))
        case Add():
            yield from _differs("b", _shape(op.a), _shape(op.b))
        case Gate():
            yield from _differs("up", _shape(op.gate), _shape(op.up))
        case Select():
            yield from _differs("rows of x", Rows.TOKENS, op.x.rows)


def _embedding_faults(op: Embedding) -> Iterator[Fault]:
    yield from _differs("weight", (op.out.width,), op.weight.shape[1:])
    if not 0 <= op.offset < op.weight.shape[0]:
        yield "offset", f"below {op.weight.shape[0]}", op.offset


def _linear_faults(op: Linear) -> Iterator[Fault]:
    if not op.weights:
        yield "weights", "at least one", "none"
    for weight in op.weights:
        yield from _differs(f"inputs of {weight.name!r}", (op.x.width,), weight.shape[1:])
    if op.biases:
        yield from _differs(
            "biases", [weight.shape[:1] for weight in op.weights], [bias.shape for bias in op.biases]
        )


def _norm_faults(op: RmsNorm | LayerNorm) -> Iterator[Fault]:
    if isinstance(op, LayerNorm):
        yield from _differs("weight", (op.x.width,), op.weight.shape)
        yield from _differs("bias", (op.x.width,), op.bias.shape)
    elif len(op.weight.shape) != 1 or op.x.width % op.weight.shape[0]:
        yield "weight", (op.x.width,), op.weight.shape


def _rope_faults(op: Rope) -> Iterator[Fault]:
    yield from _not_whole_heads("x", op.x, op.rope.head_dim)
    if not 0 < 2 * len(op.rope.frequencies) <= op.rope.head_dim:
        yield "frequencies", f"1 to {op.rope.head_dim // 2}", len(op.rope.frequencies)


def _attention_faults(op: Attention) -> Iterator[Fault]:
    yield from _differs("rows of q", Rows.TOKENS, op.q.rows)
    yield from _not_whole_heads("q", op.q, op.head_dim)
    yield from _not_whole_heads("k", op.k, op.head_dim)
    yield from _differs("v", _shape(op.k), _shape(op.v))
    yield from _not_positive("window", op.window)
    yield from _not_positive("cap", op.cap)
    if op.num_kv_heads == 0 or op.num_heads % op.num_kv_heads:
        yield "heads of q", f"a multiple of the {op.num_kv_heads} of k", op.num_heads


def _experts_faults(op: Experts) -> Iterator[Fault]:
    yield from _differs("rows of x", Rows.TOKENS, op.x.rows)
    yield from _differs("scores", (op.x.rows.value, len(op.gates)), _shape(op.scores))
    yield from _differs("ups and downs", [len(op.gates)] * 2, [len(op.ups), len(op.downs)])
    if not 1 <= op.top_k <= len(op.gates):
        yield "top_k", f"1 to {len(op.gates)}", op.top_k
    for gate, up, down in zip(op.gates, op.ups, op.downs, strict=False):
        yield from _differs(f"shape of {gate.name!r}", (*gate.shape[:1], op.x.width), gate.shape)
        yield from _differs(f"shape of {up.name!r}", gate.shape, up.shape)
        yield from _differs(f"shape of {down.name!r}", (op.out.width, *gate.shape[:1]), down.shape)


def _not_whole_heads(what: str, value: Value, head_dim: int) -> Iterator[Fault]:
    if value.width % head_dim:
        yield f"width of {what}", f"a multiple of head_dim {head_dim}", value.width


def _not_positive(what: str, found: float | None) -> Iterator[Fault]:
    if found is not None and found <= 0:
        yield what, "positive", found


def _differs(what: str, expected: object, found: object) -> Iterator[Fault]:
    if expected != found:
        yield what, expected, found


def _shape(value: Value) -> tuple[str, int]:
    return (value.rows.value, value.width)


def _error(index: int, op: Op, fault: Fault) -> ModelError:
    what, expected, found = fault
    return ModelError(f"{_describe(index, op)}: {what} must be {expected}, not {found}")


def _describe(index: int, op: Op) -> str:
    names = ", ".join(weight.name for weight in weights_of(op))
    return f"operation {index}, {type(op).__name__}" + (f" of {names}" if names else "")
