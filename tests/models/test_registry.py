"""Architectures that are served, and those that are not."""

from dataclasses import replace
from typing import Any

import pytest

from legato.core.errors import ModelError
from legato.modelfiles.model_config import ModelConfig
from legato.models.registry import build_program
from legato.program.ops import Attention, Linear, Rope, Select, weights_of
from tests.fakes import random_model

CONFIG, _ = random_model(0, vocab_size=16)


def with_settings(**changes: Any) -> ModelConfig:
    return replace(CONFIG, settings={**CONFIG.settings, **changes})


def test_an_unknown_architecture_is_refused_with_the_nearest() -> None:
    with pytest.raises(ModelError, match=r"'LamaForCausalLM' is not supported; .* is: LlamaForCausalLM; all"):
        build_program(replace(CONFIG, architecture="LamaForCausalLM"))


def test_every_layer_attends_once_with_the_heads_of_the_config() -> None:
    attentions = [op for op in build_program(CONFIG).ops if isinstance(op, Attention)]

    assert [op.layer for op in attentions] == [0, 1]
    assert {(op.num_heads, op.num_kv_heads, op.head_dim, op.scale) for op in attentions} == {
        (9, 3, 64, 1 / 8)
    }


def test_rotation_has_the_configs_base() -> None:
    program = build_program(with_settings(rope_theta=16.0))

    ropes = {op.rope for op in program.ops if isinstance(op, Rope)}
    assert {rope.frequencies[:32:8] for rope in ropes} == {(1.0, 0.5, 0.25, 0.125)}


def test_only_rows_that_sample_meet_the_vocabulary() -> None:
    program = build_program(CONFIG)

    assert [type(op) for op in program.ops].count(Select) == 1
    assert program.logits.width == 16
    last = program.ops[-1]
    assert isinstance(last, Linear)
    assert last.x.rows == "samples"


@pytest.mark.parametrize(("is_tied", "head"), [(True, "embed_tokens"), (False, "lm_head")])
def test_tied_embeddings_are_the_output_matrix_too(is_tied: bool, head: str) -> None:
    program = build_program(with_settings(tie_word_embeddings=is_tied))

    assert weights_of(program.ops[-1])[0].name == head
    assert ("lm_head" in {w.name for op in program.ops for w in weights_of(op)}) is not is_tied
