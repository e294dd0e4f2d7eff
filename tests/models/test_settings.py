"""Settings of the llama family that become a program, and those that are refused by name."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from legato.core.errors import ModelError
from legato.modelfiles.model_config import ModelConfig, read_model_config
from legato.models.families.qwen3_moe import QWEN3_MOE
from legato.models.registry import FAMILIES, build_program
from legato.models.rope import FULL
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
        ({"architectures": ["BloomForCausalLM"]}, "all that are: GPT2LMHeadModel, Gemma2ForCausalLM, "),
        ({"architectures": ["X"]}, "Gemma3ForConditionalGeneration, .*, Mistral3ForConditionalGeneration, "),
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


MINIMAL = {  # settings that no family reads but with others of them absent
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 16,
    "ffn_dim": 16,
    "vocab_size": 20,
}
MORE = [  # what makes a family read more
    ("Gemma3ForCausalLM", {"rope_parameters": {"full_attention": {"rope_theta": 5.0}}}),
    ("LlamaForCausalLM", {"rope_scaling": {"type": "yarn", "factor": 2.0, "mscale": 1, "mscale_all_dim": 1}}),
    (
        "Phi3ForCausalLM",
        {"rope_scaling": {"type": "longrope", "short_factor": [1, 1], "long_factor": [1, 1]}},
    ),
    ("Qwen2ForCausalLM", {"use_sliding_window": True, "max_window_layers": 0, "sliding_window": 4}),
    ("Qwen3MoeForCausalLM", {"num_experts": 2, "num_experts_per_tok": 1}),
]
ODD = (True, -1, 0.5, float("inf"), 10**400, "x", [7], [[], []], [{}, {}], {"rope_type": []}, {FULL: 7})


class Read(dict[str, Any]):
    """Settings that remember which of them were asked for."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.names: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)


def build(architecture: str, settings: Mapping[str, Any]) -> None:
    build_program(
        ModelConfig(
            architecture=architecture, file_format="hf", source="it", settings=settings, vocab_size=20
        )
    )


@pytest.mark.parametrize(
    ("architecture", "more"), [*((each.hf_names[0], {}) for each in FAMILIES if each is not QWEN3_MOE), *MORE]
)
def test_a_value_of_any_kind_is_read_or_refused(architecture: str, more: dict[str, Any]) -> None:
    read = Read(MINIMAL | more)
    build(architecture, read)
    for name in sorted(read.names):
        for odd in ODD:
            with suppress(ModelError):
                build(architecture, MINIMAL | more | {name: odd})


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("layer_types", 7, "layer_types is no list of 'full_attention' and 'sliding_attention': 7"),
        ("layer_types", [[], []], r"layer_types is no list of .*: \[\[\], \[\]\]"),
        ("layer_types", ["full_attention"], "layer_types is of 1 layers, not 2"),
        ("rope_parameters", {"full_attention": 1e308}, "rope_parameters: full_attention = 1e.308 is not"),
        ("rope_parameters", {"sliding_attention": "x"}, "rope_parameters: sliding_attention = 'x' is not"),
        ("rope_parameters", {"full_attention": {"rope_theta": []}}, r"rope_theta is \[\], not a positive"),
    ],
)  # fmt: skip
def test_a_value_of_another_kind_is_named(tmp_path: Path, name: str, value: Any, complaint: str) -> None:
    gemma = MINIMAL | {"architectures": ["Gemma3ForCausalLM"], name: value}
    with pytest.raises(ModelError, match=r"config\.json: .*" + complaint):
        program_with(tmp_path, gemma)
