"""Each operation of the reference backend against its formula, written again in float64 or in torch."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from legato.backends.backend import KVLayout
from legato.backends.reference import (
    ACTIVATIONS,
    ReferenceBackend,
    ReferenceProgram,
    attend,
    gather_pages,
    layer_norm,
    linear,
    rms_norm,
    rotate,
    rotation_table,
)
from legato.models.rope import plain_rope
from legato.program.builder import Builder
from legato.program.ops import Activation, Program, Value, Weight
from tests.backends.steps import Chunk, make_inputs

LEARNED = {"table": (10, 6), "places": (8, 6), "a": (3, 6), "b": (2, 6), "a_bias": (3,), "b_bias": (2,)}
ROPE = plain_rope(8, 10_000.0, 64)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def compile_program(program: Program, weights: dict[str, np.ndarray]) -> ReferenceProgram:
    kv = KVLayout(num_layers=1, num_pages=4, page_size=4, num_kv_heads=1, head_dim=8)
    return ReferenceBackend().compile(program, weights, kv)


def embed(p: Builder, table: np.ndarray) -> Value:
    return p.embedding(Weight("table", table.shape))


def test_linear_puts_the_products_of_several_matrices_side_by_side() -> None:
    x, a, b = normal(3, 16), normal(5, 16, seed=1), normal(2, 16, seed=2)
    expected = x.astype(np.float64) @ np.concatenate([a, b]).astype(np.float64).T

    np.testing.assert_allclose(linear(x, [a, b]), expected, rtol=1e-5, atol=1e-5)


def test_rms_norm_is_torchs() -> None:
    x, weight = normal(4, 96), normal(96, seed=1)
    expected = torch.nn.functional.rms_norm(torch.from_numpy(x), (96,), torch.from_numpy(weight), eps=1e-5)

    np.testing.assert_allclose(rms_norm(x, weight, 1e-5), expected.numpy(), rtol=1e-5, atol=1e-6)


def test_rms_norm_of_no_rows_is_no_rows() -> None:
    """A step that samples nothing ends with such a norm."""
    assert rms_norm(np.zeros((0, 64), np.float32), np.ones(64, np.float32), 1e-5).shape == (0, 64)


def test_rms_norm_of_heads_is_that_of_each() -> None:
    x, weight = normal(4, 3 * 32), normal(32, seed=1)
    expected = [rms_norm(head, weight, 1e-5) for head in np.split(x, 3, axis=1)]

    np.testing.assert_array_equal(rms_norm(x, weight, 1e-5), np.concatenate(expected, axis=1))


def test_layer_norm_is_torchs() -> None:
    x, weight, bias = 3 + normal(4, 96), normal(96, seed=1), normal(96, seed=2)
    expected = torch.nn.functional.layer_norm(
        torch.from_numpy(x), (96,), torch.from_numpy(weight), torch.from_numpy(bias), eps=1e-5
    )

    np.testing.assert_allclose(layer_norm(x, weight, bias, 1e-5), expected.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("function", "oracle"),
    [
        (Activation.SILU, torch.nn.functional.silu),
        (Activation.GELU, torch.nn.functional.gelu),
        (Activation.GELU_TANH, lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
        (Activation.RELU, torch.nn.functional.relu),
    ],
)
def test_activation_is_torchs(function: Activation, oracle: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = np.linspace(-12, 12, 4001, dtype=np.float32)

    with np.errstate(over="ignore"):  # of e^-x: the quotient is 0 then
        found = ACTIVATIONS[function](x)
    np.testing.assert_allclose(found, oracle(torch.from_numpy(x)), rtol=1e-5, atol=2e-6)


def test_rotation_turns_pairs_as_complex_numbers() -> None:
    x = normal(3, 2 * 8)
    positions = np.array([0, 5, 63])
    cos, sin = rotation_table(ROPE, 64)[:, positions]

    heads = x.reshape(3, 2, 8).astype(np.float64)
    pairs = heads[..., :4] + 1j * heads[..., 4:]
    frequencies = np.array([1, 0.1, 0.01, 0.001])  # 10_000 ** -(0, 2, 4, 6 of 8)
    turned = pairs * np.exp(1j * positions[:, None, None] * frequencies)
    expected = np.concatenate([turned.real, turned.imag], axis=-1).reshape(3, 16)

    np.testing.assert_allclose(rotate(x, cos, sin, 8), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kv_len", [1, 2, 65])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 4), (9, 3), (4, 1)])
def test_attention_is_torchs(kv_len: int, num_heads: int, num_kv_heads: int) -> None:
    q, k, v = (
        normal(num_heads * 8),
        normal(kv_len, num_kv_heads, 8, seed=1),
        normal(kv_len, num_kv_heads, 8, seed=2),
    )
    expected = torch.nn.functional.scaled_dot_product_attention(
        torch.from_numpy(q).view(num_heads, 1, 8),
        torch.from_numpy(k).transpose(0, 1).repeat_interleave(num_heads // num_kv_heads, dim=0),
        torch.from_numpy(v).transpose(0, 1).repeat_interleave(num_heads // num_kv_heads, dim=0),
        scale=0.3,
    )

    np.testing.assert_allclose(attend(q, k, v, 0.3), expected.numpy().reshape(-1), rtol=1e-5, atol=1e-6)


def test_attention_to_huge_logits_stays_finite() -> None:
    out = attend(np.full(8, 1e4, np.float32), normal(3, 1, 8) * 1e4, normal(3, 1, 8, seed=1), 1.0)

    assert np.isfinite(out).all()


def test_pages_are_gathered_in_the_order_of_the_table_up_to_the_length() -> None:
    pages = np.arange(4 * 2 * 1 * 1, dtype=np.float32).reshape(4, 2, 1, 1)
    table = np.array([3, 0, -1], np.int32)  # what stands behind the request's end is not read

    assert gather_pages(pages, table, 3).reshape(-1).tolist() == [6, 7, 0]


def test_tokens_attend_to_their_own_past_in_their_own_pages() -> None:
    table = normal(10, 8)
    p = Builder()
    x = embed(p, table)
    compiled = compile_program(
        p.output(p.select(p.attention(x, x, x, 0, head_dim=8, scale=1.0))), {"table": table}
    )

    logits = compiled.forward(make_inputs(Chunk([4, 5], 0, [2]), Chunk([6], 0, [1])))
    later = compiled.forward(make_inputs(Chunk([7], 2, [2])))

    np.testing.assert_array_equal(compiled.k_pages[0, 2, :, 0], [table[4], table[5], table[7], np.zeros(8)])
    np.testing.assert_array_equal(compiled.v_pages[0, 1, :, 0], [table[6], *np.zeros((3, 8))])
    past = [[4], [4, 5], [6], [4, 5, 7]]
    for row, ids in zip([*logits, *later], past, strict=True):
        scores = np.exp(table[ids].astype(np.float64) @ table[ids[-1]])
        np.testing.assert_allclose(row, scores / scores.sum() @ table[ids], rtol=1e-5, atol=1e-5)


def test_split_add_gate_and_select_are_their_formulas() -> None:
    table = normal(10, 6) * 10
    p = Builder()
    gate, up = p.split(embed(p, table), 3, 3)
    compiled = compile_program(
        p.output(p.select(p.add(p.gate(gate, up, Activation.SILU), gate))), {"table": table}
    )

    (logits,) = compiled.forward(make_inputs(Chunk([7], 0, [0])))

    gate_row, up_row = table[7, :3].astype(np.float64), table[7, 3:]
    np.testing.assert_allclose(logits, gate_row / (1 + np.exp(-gate_row)) * up_row + gate_row, rtol=1e-5)


def test_learned_positions_and_biases_are_looked_up_and_added() -> None:
    weights = {name: normal(*shape, seed=i) for i, (name, shape) in enumerate(LEARNED.items())}
    p = Builder()
    x = p.add(embed(p, weights["table"]), p.position_embedding(Weight("places", LEARNED["places"])))
    a, b = Weight("a", LEARNED["a"]), Weight("b", LEARNED["b"])
    x = p.linear(x, a, b, biases=(Weight("a_bias", (3,)), Weight("b_bias", (2,))))

    logits = compile_program(p.output(p.select(x)), weights).forward(make_inputs(Chunk([7, 2], 4, [0, 1])))

    rows = (weights["table"][[7, 2]] + weights["places"][[4, 5]]).astype(np.float64)
    for name, found in zip("ab", np.split(logits, [3], axis=1), strict=True):
        expected = rows @ weights[name].T + weights[f"{name}_bias"]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_step_that_samples_nothing_gives_no_logits() -> None:
    table, head = normal(10, 8), normal(20, 8)
    p = Builder()
    compiled = compile_program(
        p.output(p.linear(p.select(embed(p, table)), Weight("head", head.shape))),
        {"table": table, "head": head},
    )
    inputs = make_inputs(Chunk([1, 2], 0, [0]))

    logits = compiled.forward(
        type(inputs)(
            token_ids=inputs.token_ids,
            positions=inputs.positions,
            query_starts=inputs.query_starts,
            kv_lens=inputs.kv_lens,
            page_table=inputs.page_table,
            sample_rows=np.zeros(0, np.int32),
        )
    )

    assert logits.shape == (0, 20)


def test_weights_of_other_types_become_float32() -> None:
    table = normal(10, 8)
    p = Builder()
    program = p.output(p.select(embed(p, table)))

    logits = compile_program(program, {"table": table.astype(np.float64)}).forward(
        make_inputs(Chunk([3], 0, [0]))
    )

    assert logits.dtype == np.float32
    np.testing.assert_array_equal(logits[0], table[3])
