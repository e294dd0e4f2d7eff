"""Made-up weights: those of the program, the same each time, and of a size that keeps numbers finite."""

from pathlib import Path

import numpy as np

from legato.modelfiles.model_config import read_model_config
from legato.models.registry import build_model
from legato.program.ops import Program
from legato.weights.dummy import dummy_weights
from tests.model_builders import TINY_LLAMA, write_json


def make_program(folder: Path) -> Program:
    write_json(folder / "config.json", TINY_LLAMA | {"hidden_size": 64, "intermediate_size": 256})
    return build_model(read_model_config(folder)).program


def test_every_weight_is_there_and_the_same_each_time(tmp_path: Path) -> None:
    program = make_program(tmp_path)
    weights, again = dummy_weights(program), dummy_weights(program)
    assert weights["layers.1.down_proj"].shape == (64, 256)
    for name, weight in weights.items():
        assert weight.num_bytes == weights.headers[name].num_bytes
        assert np.array_equal(weight.values, again[name].values), name
    assert not np.array_equal(weights["layers.0.up_proj"].values, weights["layers.1.up_proj"].values)


def test_products_keep_the_size_of_what_they_are_given(tmp_path: Path) -> None:
    weights = dummy_weights(make_program(tmp_path))
    matrix = weights["layers.0.down_proj"].float32()
    assert 0.5 < np.sqrt((matrix**2).sum(axis=1).mean()) < 2
    assert abs(matrix.mean()) < matrix.std() / 10
    assert (weights["final_norm"].float32() == 1).all()
