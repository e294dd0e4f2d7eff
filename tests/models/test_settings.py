"""Settings of the llama family that become a program, and those that are refused by name."""

import logging
from pathlib import Path
from typing import Any

import pytest

from legato.core.errors import ModelError
from legato.modelfiles.model_config import read_model_config
from legato.models.registry import build_program
from legato.program.ops import Program, Rope
from tests.model_builders import TINY_LLAMA, write_json


def program_with(folder: Path, change: dict[str, Any]) -> Program:
    write_json(folder / "config.json", TINY_LLAMA | change)
    return build_program(read_model_config(folder))


@pytest.mark.parametrize("spelling", [
    {"rope_theta": 16.0},
    {"rope_theta": None, "rope_parameters": {"rope_theta": 16.0, "rope_type": "default"}},
    {"rope_theta": 16.0, "rope_scaling": None},
    {"rope_theta": 16.0, "rope_scaling": {"type": "default"}},
])  # fmt: skip
def test_rope_theta_is_read_in_every_spelling(tmp_path: Path, spelling: dict[str, Any]) -> None:
    ropes = {op.rope for op in program_with(tmp_path, spelling).ops if isinstance(op, Rope)}
    assert [rope.frequencies for rope in ropes] == [(1.0, 0.25)]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"architectures": ["AbacusForCausalLM"]}, "AbacusForCausalLM' is not supported; all that are"),
        ({"architectures": ["DeepseekV3ForCausalLM"]}, "is not supported; all that are"),
        ({"architectures": ["Gemma3nForConditionalGeneration"]}, "nearest that is: Gemma3For"),
        ({"architectures": None, "model_type": "lama"}, "nearest that is: llama;"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor is missing"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "two"}}, "factor is 'two'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "twist": 3}}, "twist = 3 is not supported"),
        ({"rope_scaling": {"type": "helix"}}, "rope_scaling: rope_type = 'helix' is not supported, only"),
        ({"rope_parameters": {"type": "helix"}}, "json: rope_parameters: rope_type = 'helix'"),
        ({"rope_scaling": "yarn"}, "rope_scaling = 'yarn'"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "full_attention"),
        ({"partial_rotary_factor": 0.25}, "partial_rotary_factor = 0.25 is not supported, only 1"),
        ({"attention_bias": "yes"}, "attention_bias is 'yes'"),
        ({"sliding_window": 4096}, "sliding_window = 4096"),
        ({"clip_qkv": 8.0}, "clip_qkv = 8.0 is not supported"),
        ({"hidden_act": "tanh"}, "hidden_act = 'tanh'"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": 9}, "hidden_size 9 does not divide"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers is 'two'"),
        ({"num_key_value_heads": 3}, "2 heads cannot share 3"),
        ({"head_dim": 5}, "head_dim is 5"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_honoured_are_refused_by_name(
    tmp_path: Path, change: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ModelError, match=complaint) as refusal:
        program_with(tmp_path, change)
    assert str(tmp_path / "config.json") in str(refusal.value)


def test_settings_that_nobody_knows_are_told_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        program_with(tmp_path, {"favourite_colour": "blue", "use_cache": True})
    assert "settings that legato does not know: favourite_colour" in caplog.text
