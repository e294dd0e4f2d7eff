"""Architectures that are served, and those that are not."""

from dataclasses import replace

import pytest

from legato.core.errors import ModelError
from legato.models.registry import build_program
from legato.program.ops import Attention, Linear, Rope, Select, weights_of
from tests.fakes import random_model

CONFIG, _ = random_model(0, vocab_size=16)


def test_an_unknown_architecture_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ModelError, match="architecture 'abacus' is not supported; these are: llama"):
        build_program(replace(CONFIG, architecture="abacus"))


def test_every_layer_attends_once_with_the_heads_of_the_config() -> None:
    attentions = [op for op in build_program(CONFIG).ops if isinstance(op, Attention)]

    assert [op.layer for op in attentions] == [0, 1]
    assert {(op.num_heads, op.num_kv_heads, op.head_dim, op.scale) for op in attentions} == {
        (9, 3, 64, 1 / 8)
    }


def test_rotation_has_the_configs_base() -> None:
    program = build_program(replace(CONFIG, rope_theta=12345.0))

    assert {op.rope.theta for op in program.ops if isinstance(op, Rope)} == {12345.0}


def test_only_rows_that_sample_meet_the_vocabulary() -> None:
    program = build_program(CONFIG)

    assert [type(op) for op in program.ops].count(Select) == 1
    assert program.logits.width == 16
    last = program.ops[-1]
    assert isinstance(last, Linear)
    assert last.x.rows == "samples"


@pytest.mark.parametrize(("is_tied", "head"), [(True, "embed_tokens"), (False, "lm_head")])
def test_tied_embeddings_are_the_output_matrix_too(is_tied: bool, head: str) -> None:
    program = build_program(replace(CONFIG, tie_word_embeddings=is_tied))

    assert weights_of(program.ops[-1])[0].name == head
    assert ("lm_head" in {w.name for op in program.ops for w in weights_of(op)}) is not is_tied
