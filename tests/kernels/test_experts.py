"""A mixture of experts against its formula, and bits of a row that hang on the row alone."""

from dataclasses import dataclass
from itertools import cycle, islice
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.kernels.conftest import open_or_fail
from tests.kernels.tapes import apply, random_rows, relative_error, silu_mul
from tests.kernels.test_linear import FLOATS, QUANTISED, Matrix, as_multiplied, matrix, product

if TYPE_CHECKING:
    from legato.kernels._native import Device, Tape, WeightFormat

HIDDEN, WIDTH, TOP_K = 96, 64, 2
ALL, ONE, NONE = 2, 4, (1, 3)  # experts that every row, one row, and no row goes to

FORMATS: "dict[str, list[WeightFormat]]" = {
    **{each: [each] for each in [*FLOATS, *QUANTISED]},
    "mixed": ["q4", "q6", "f32", "q8", "q5"],
}


@dataclass(frozen=True)
class Mixture:
    """Experts whose weights are of these formats, in turn; a row's first numbers are its scores."""

    formats: "list[WeightFormat]"
    num_experts: int = 6
    top_k: int = TOP_K
    is_normalized: bool = True

    @property
    def experts(self) -> list[tuple[Matrix, Matrix, Matrix]]:
        """gate, up and down of each; all differ."""
        formats = list(islice(cycle(self.formats), 3 * self.num_experts))
        shapes = [(WIDTH, HIDDEN), (WIDTH, HIDDEN), (HIDDEN, WIDTH)] * self.num_experts
        parts = [
            scaled(matrix(each, outputs, inputs), index)
            for index, (each, (outputs, inputs)) in enumerate(zip(formats, shapes, strict=True))
        ]
        return list(zip(parts[::3], parts[1::3], parts[2::3], strict=True))

    def record(self, device: "Device", tape: "Tape", x: int) -> int:
        router = device.pack("f32", np.eye(self.num_experts, HIDDEN, dtype=np.float32))
        packed = [[part.packed(device) for part in expert] for expert in self.experts]
        gate_ups = tuple((gate, up) for gate, up, _ in packed)
        downs = tuple((down,) for _, _, down in packed)
        return tape.experts(
            x, tape.linear(x, router), gate_ups, downs, self.top_k, self.is_normalized, "silu"
        )

    def apply(self, device: "Device", x: np.ndarray) -> np.ndarray:
        return apply(device, x, lambda tape, value: self.record(device, tape, value))

    def routed(self, row: np.ndarray) -> list[tuple[int, float]]:
        """The experts of a row and their shares."""
        scores = row[: self.num_experts].astype(np.float64)
        shares = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
        chosen = sorted(range(self.num_experts), key=lambda expert: (-scores[expert], expert))[: self.top_k]
        total = shares[chosen].sum() if self.is_normalized else 1
        return [(expert, shares[expert] / total) for expert in chosen]


def scaled(weight: Matrix, index: int) -> Matrix:
    """Another matrix for each index, of the same integers or bits: its rows in another order."""
    order = np.roll(np.arange(len(weight.exact)), index)
    parts = [
        None if each is None else each[order] for each in (weight.values, weight.scales, weight.minimums)
    ]
    assert parts[0] is not None
    return Matrix(weight.format, parts[0], parts[1], parts[2], weight.exact[order])


def rows_of(num_rows: int = 9) -> np.ndarray:
    """All rows go to expert ALL, the first to ONE besides, the others to 0 or 5."""
    x = random_rows(num_rows, HIDDEN)
    x[:, :6] = -2
    x[:, ALL] = 1.5
    x[:, 0] = np.where(np.arange(num_rows) % 2, 0.5, 2.5)
    x[:, 5] = np.where(np.arange(num_rows) % 2, 1.0, -1.0)
    x[0, ONE] = 3
    return x


@pytest.mark.parametrize("formats", FORMATS)
@pytest.mark.parametrize("is_normalized", [True, False])
def test_a_row_is_the_weighed_sum_of_its_experts(device: "Device", formats: str, is_normalized: bool) -> None:
    mixture, x = Mixture(FORMATS[formats], is_normalized=is_normalized), rows_of()
    used = {expert for row in x for expert, _ in mixture.routed(row)}
    assert used == {0, ALL, ONE, 5}
    wanted = np.zeros(x.shape)
    for row in range(len(x)):
        for expert, share in mixture.routed(x[row]):
            gate, up, down = mixture.experts[expert]
            inputs = [as_multiplied(x[[row]], each.format, device.isa) for each in (gate, up)]
            hidden = silu_mul(inputs[0] @ gate.exact.T, inputs[1] @ up.exact.T).astype(np.float32)
            wanted[row] += share * (as_multiplied(hidden, down.format, device.isa) @ down.exact.T)[0]
    bound = 1e-5 if formats in FLOATS else 1e-3  # a hidden number may be rounded the other way to 8 bits
    assert relative_error(mixture.apply(device, x), wanted) < bound


@pytest.mark.parametrize("formats", FORMATS)
def test_an_expert_computes_what_products_and_an_activation_do(device: "Device", formats: str) -> None:
    mixture, x = Mixture(FORMATS[formats], num_experts=3, top_k=1), random_rows(7, HIDDEN)
    found = mixture.apply(device, x)
    for row in range(len(x)):
        [(expert, _)] = mixture.routed(x[row])
        gate, up, down = (each.packed(device) for each in mixture.experts[expert])
        both = np.concatenate([product(device, x[[row]], each) for each in (gate, up)], axis=1)
        hidden = apply(device, both, lambda tape, value: tape.activate(value, "silu", is_gated=True))
        assert np.array_equal(found[[row]], product(device, hidden, down))


@pytest.mark.parametrize("formats", ["f32", "bf16", "q4", "q6", "q8", "mixed"])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_bits_of_a_row_do_not_depend_on_who_shares_its_experts(
    device: "Device", formats: str, num_threads: int
) -> None:
    mixture, x = Mixture(FORMATS[formats], top_k=3), random_rows(23, HIDDEN)
    alone = [mixture.apply(device, row[None]) for row in x]
    other = open_or_fail(num_threads, device.isa)
    for start in (0, 9, 22):
        assert mixture.apply(other, x[start:]).tobytes() == np.concatenate(alone[start:]).tobytes()


def test_of_equal_scores_the_first_experts_are_taken(device: "Device") -> None:
    mixture, x = Mixture(["f32"]), rows_of(3)
    x[:, :6] = [1, 7, 7, 1, 7, 7]
    wanted = np.zeros(x.shape)
    for gate, up, down in mixture.experts[1:3]:
        wanted += 0.5 * (silu_mul(x @ gate.exact.T, x @ up.exact.T) @ down.exact.T)
    assert relative_error(mixture.apply(device, x), wanted) < 1e-5


@pytest.mark.parametrize("score", [np.nan, np.inf])
def test_a_score_that_is_no_number_spoils_its_row_alone(device: "Device", score: float) -> None:
    mixture, x = Mixture(["f32"], is_normalized=False), rows_of()
    whole = mixture.apply(device, x)
    x[4, 3] = score
    found = mixture.apply(device, x)
    assert np.isnan(found[4]).all()
    others = np.arange(len(x)) != 4
    assert found[others].tobytes() == whole[others].tobytes()


def test_what_does_not_fit_is_refused_while_recording(device: "Device") -> None:
    tape = device.tape(device.kv_store(1, 1, 1, 1, 32, "f32"), 4, 4)
    x = tape.embedding(device.pack("f32", random_rows(4, HIDDEN)))
    scores = tape.linear(x, device.pack("f32", random_rows(2, HIDDEN)))
    inward, outward = device.pack("f32", random_rows(8, HIDDEN)), device.pack("f32", random_rows(HIDDEN, 8))
    pair, downs = ((inward, inward),) * 2, ((outward,),) * 2
    with pytest.raises(ValueError, match="width of the scores: 2, must be 3"):
        tape.experts(x, scores, (*pair, pair[0]), (*downs, downs[0]), 1, True, "silu")
    with pytest.raises(ValueError, match="downs: 1 entries, must be 2"):
        tape.experts(x, scores, pair, downs[:1], 1, True, "silu")
    with pytest.raises(ValueError, match="top_k: 3, must be 1 to 2"):
        tape.experts(x, scores, pair, downs, 3, True, "silu")
    with pytest.raises(ValueError, match="outputs of an expert: 8, must be 16"):
        tape.experts(x, scores, (pair[0], (inward,)), downs, 1, True, "silu")
    with pytest.raises(ValueError, match="inputs of the weight"):
        tape.experts(x, scores, pair, ((inward,),) * 2, 1, True, "silu")
