"""What does not fit is named before anything runs: the operation, the weight, both shapes."""

from collections.abc import Callable

import numpy as np
import pytest

from legato.core.errors import ModelError
from legato.models.registry import build_program
from legato.program.builder import Builder
from legato.program.check import check_program, check_weights
from legato.program.ops import Activation, Program, RopeConfig, Rows, Value, Weight
from tests.fakes import random_model

TABLE = Weight("table", (100, 8))

Write = Callable[[Builder, Value], Value]  # continues from an embedding [tokens, 8]


def write_program(write: Write) -> Program:
    p = Builder()
    return p.output(p.select(write(p, p.embedding(TABLE))))


def attend(p: Builder, x: Value, q_width: int, kv_widths: tuple[int, int], head_dim: int) -> Value:
    q, k, v = (
        p.linear(x, Weight(name, (n, 8))) for name, n in zip("qkv", (q_width, *kv_widths), strict=True)
    )
    return p.attention(q, k, v, 0, head_dim=head_dim, scale=1.0)


MISFITS: dict[str, tuple[Write, str]] = {
    "a matrix with other inputs": (
        lambda p, x: p.linear(x, Weight("up", (6, 9))),
        r"operation 1, Linear of up: inputs of 'up' must be \(8,\), not \(9,\)",
    ),
    "a vector where a matrix belongs": (
        lambda p, x: p.linear(x, Weight("up", (8,))),
        r"Linear of up: inputs of 'up' must be \(8,\), not \(\)",
    ),
    "no matrix": (lambda p, x: p.linear(x), "Linear: weights must be at least one, not none"),
    "a norm of another width": (
        lambda p, x: p.rms_norm(x, Weight("norm", (9,)), eps=1e-5),
        r"RmsNorm of norm: weight must be \(8,\), not \(9,\)",
    ),
    "a norm of heads that do not fill a row": (
        lambda p, x: p.rms_norm(x, Weight("norm", (3,)), eps=1e-5),
        r"RmsNorm of norm: weight must be \(8,\), not \(3,\)",
    ),
    "a layer norm's bias of another width": (
        lambda p, x: p.layer_norm(x, Weight("norm", (8,)), Weight("bias", (4,)), eps=1e-5),
        r"LayerNorm of norm, bias: bias must be \(8,\), not \(4,\)",
    ),
    "a bias that fits another matrix": (
        lambda p, x: p.linear(x, Weight("up", (6, 8)), biases=(Weight("bias", (8,)),)),
        r"Linear of up, bias: biases must be \[\(6,\)\], not \[\(8,\)\]",
    ),
    "a bias for one matrix of two": (
        lambda p, x: p.linear(x, Weight("up", (6, 8)), Weight("down", (2, 8)), biases=(Weight("b", (6,)),)),
        r"Linear of up, down, b: biases must be \[\(6,\), \(2,\)\], not \[\(6,\)\]",
    ),
    "parts that leave something over": (
        lambda p, x: p.split(x, 5, 2)[0],
        "Split: sum of widths must be 8, not 7",
    ),
    "a sum of other widths": (
        lambda p, x: p.add(x, p.linear(x, Weight("up", (6, 8)))),
        r"Add: b must be \('tokens', 8\), not \('tokens', 6\)",
    ),
    "a sum of all tokens and some": (
        lambda p, x: p.add(x, p.select(x)),
        r"Add: b must be \('tokens', 8\), not \('samples', 8\)",
    ),
    "a gate of another width": (
        lambda p, x: p.gate(x, p.linear(x, Weight("up", (6, 8))), Activation.SILU),
        r"Gate: up must be \('tokens', 8\), not \('tokens', 6\)",
    ),
    "a second selection": (lambda p, x: p.select(x), "Select: rows of x must be tokens, not samples"),
    "half a head": (
        lambda p, x: p.rope(x, x, RopeConfig(6, (1.0,), 10))[0],
        "Rope: width of x must be a multiple of head_dim 6, not 8",
    ),
    "more pairs than a head has": (
        lambda p, x: p.rope(x, x, RopeConfig(2, (1.0, 1.0), 10))[0],
        "Rope: frequencies must be 1 to 1, not 2",
    ),
    "keys of half a head": (
        lambda p, x: attend(p, x, 8, (6, 6), 4),
        "Attention: width of k must be a multiple of head_dim 4, not 6",
    ),
    "values unlike keys": (
        lambda p, x: attend(p, x, 8, (4, 8), 4),
        r"Attention: v must be \('tokens', 4\), not \('tokens', 8\)",
    ),
    "heads that cannot share": (
        lambda p, x: attend(p, x, 12, (8, 8), 4),
        "Attention: heads of q must be a multiple of the 2 of k, not 3",
    ),
    "a value of another program": (
        lambda p, x: p.add(x, Value(99, Rows.TOKENS, 8)),
        r"Add: input must be a value that an earlier operation made, not %99\[tokens, 8\]",
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_an_operation_that_does_not_fit_is_named_with_both_shapes(name: str) -> None:
    write, message = MISFITS[name]

    with pytest.raises(ModelError, match=message):
        check_program(write_program(write))


def test_logits_must_be_of_the_rows_that_sample() -> None:
    p = Builder()

    with pytest.raises(ModelError, match=r"the logits %0\[tokens, 8\] must be a value of the program"):
        check_program(p.output(p.embedding(TABLE)))


def test_a_llama_fits_itself() -> None:
    config, weights = random_model(0, vocab_size=16)
    program = build_program(config)

    check_program(program)
    check_weights(program, weights)


def test_a_missing_weight_is_named_with_the_operation_that_needs_it() -> None:
    config, weights = random_model(0, vocab_size=16)
    del weights["layers.1.k_proj"]

    with pytest.raises(
        ModelError,
        match=r"Linear of layers.1.q_proj, .*: its weight 'layers.1.k_proj' \[192, 576\] is missing",
    ):
        check_weights(build_program(config), weights)


def test_a_weight_of_another_shape_is_named_with_both_shapes() -> None:
    config, weights = random_model(0, vocab_size=16)
    weights["final_norm"] = np.ones(575, np.float32)

    with pytest.raises(
        ModelError, match=r"RmsNorm of final_norm: shape of weight 'final_norm' must be \[576\], not \[575\]"
    ):
        check_weights(build_program(config), weights)


def test_further_weights_do_no_harm() -> None:
    config, weights = random_model(0, vocab_size=16)
    weights["rotary_embedding"] = np.ones(3, np.float32)

    check_weights(build_program(config), weights)
