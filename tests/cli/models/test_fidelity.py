"""The measures themselves, on distributions and weights whose errors are known."""

import math

import numpy as np
import pytest

from legato.backends.backend import ForwardInputs, KVLayout
from legato.backends.reference import ReferenceBackend
from legato.backends.stored_weight import StoredWeight, as_stored
from legato.cli.models.fidelity import compare, log_probabilities, relative_error, weight_errors
from legato.core.errors import ModelError
from legato.models.registry import build_program
from legato.weights.quantization import quantize_weights
from tests.backends.steps import Chunk, make_inputs
from tests.fakes import random_model


def logs(*rows: list[float]) -> np.ndarray:
    return np.log(np.array(rows, np.float32))


def test_divergence_perplexity_and_agreement_of_two_positions() -> None:
    exact = logs([0.5, 0.25, 0.25], [0.2, 0.2, 0.6])
    kept = logs([0.25, 0.5, 0.25], [0.2, 0.2, 0.6])
    found = compare([exact[:1], exact[1:]], [kept[:1], kept[1:]], token_ids=[0, 1])
    divergence = 0.5 * math.log(2) - 0.25 * math.log(2)
    assert found.num_tokens == 2
    assert found.mean_kl == pytest.approx(divergence / 2, abs=1e-6)
    assert found.max_kl == pytest.approx(divergence, abs=1e-6)
    assert found.exact_perplexity == pytest.approx(4)  # token 1 came after the first position, at 0.25
    assert found.perplexity == pytest.approx(2)
    assert found.agreement == 0.5


def test_log_probabilities_are_those_of_the_whole_text_at_once() -> None:
    config, values = random_model(seed=4, vocab_size=300)
    ids = [int(each) for each in np.random.default_rng(0).integers(3, 300, 150)]  # a chunk and a part of one
    kv = KVLayout.of(build_program(config), 10, 16)
    model = ReferenceBackend().compile(build_program(config), values, kv)
    chunks = list(log_probabilities(model, ids))
    assert [len(chunk) for chunk in chunks] == [128, 22]
    rows = np.concatenate(chunks)
    logits = model.forward(make_inputs(Chunk(ids, 0, range(10)))).astype(np.float64)
    assert np.allclose(np.exp(rows).sum(axis=-1), 1, atol=1e-5)
    assert np.allclose(rows - rows[:, :1], logits - logits[:, :1], atol=1e-4)


class Overflowing:
    def forward(self, inputs: ForwardInputs) -> np.ndarray:
        return np.full((len(inputs.sample_rows), 4), np.inf, np.float32)


def test_logits_that_are_not_finite_are_an_error_with_the_place() -> None:
    with pytest.raises(ModelError, match="not finite in tokens 0 to 2"):
        next(log_probabilities(Overflowing(), [1, 2, 3]))


def test_relative_error_is_that_of_the_norms() -> None:
    exact = as_stored(np.array([[3.0, 4.0]]))
    assert relative_error(as_stored(np.array([[3.0, 3.5]])), exact) == pytest.approx(0.1)
    assert relative_error(exact, exact) == 0
    nothing = as_stored(np.zeros((1, 2)))
    assert relative_error(as_stored(np.zeros((1, 2))), nothing) == 0


def test_weight_errors_stand_by_kind_with_the_formats_that_were_kept() -> None:
    config, values = random_model(seed=4, vocab_size=64)
    exact: dict[str, StoredWeight] = {name: as_stored(array) for name, array in values.items()}
    kept = quantize_weights(exact, "int4")
    kept = {**kept, "layers.1.q_proj": exact["layers.1.q_proj"]}
    found = {
        each.kind: each for each in weight_errors(ReferenceBackend(), build_program(config), exact, kept)
    }
    kinds = "embed_tokens q_proj k_proj v_proj o_proj gate_proj up_proj down_proj lm_head"
    assert list(found) == kinds.split()
    assert found["q_proj"].mean == pytest.approx(found["q_proj"].max / 2)  # the other layer is exact
    assert 0.05 < found["down_proj"].mean <= found["down_proj"].max < 0.1
    assert 0 < found["lm_head"].max < 0.01
    assert found["q_proj"].formats == ("f32",)  # the reference decodes
