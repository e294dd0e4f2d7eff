"""Every setting of transformers' configuration classes is honoured as there, refused by name, or harmless."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from legato.core.errors import ModelError
from legato.modelfiles.model_config import read_model_config
from legato.models.registry import build_program
from legato.models.settings import HARMLESS
from tests.model_builders import write_json
from tests.models.families import (
    FAMILIES,
    LAYERS,
    SCALED_TO,
    head_class,
    make_with,
    rope,
)
from tests.models.test_hf_parity import (
    TOLERANCE,
    compile_model,
    hf_logits,
    our_logits,
    random_ids,
    worst_difference,
)

pytestmark = pytest.mark.oracle

PROMPT = random_ids(70, 96)
LOCAL, FULL = "sliding_attention", "full_attention"
Changes = list[dict[str, Any]]

EPS: Changes = [{"rms_norm_eps": 0.5}]
ACTIVATIONS: Changes = [{"hidden_act": name} for name in ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu")]
BIASES: Changes = [{"attention_bias": True}, {"mlp_bias": True}]
ROPES: Changes = [
    rope("default", rope_theta=20.0),
    rope("linear", factor=2.0),
    rope("yarn", **SCALED_TO),
    rope("yarn", **SCALED_TO, beta_fast=2.0, beta_slow=0.5),
    rope("yarn", **SCALED_TO, attention_factor=2.0),
    rope("yarn", **SCALED_TO, mscale=2.0, mscale_all_dim=0.5),
    rope("yarn", **SCALED_TO, truncate=False),
    rope("llama3", **SCALED_TO, low_freq_factor=1.0, high_freq_factor=4.0),
    rope("llama3", **SCALED_TO, low_freq_factor=0.1, high_freq_factor=9.0),
]
PARTIAL = rope("default", partial_rotary_factor=0.5)
DECODER: Changes = [*EPS, *ACTIVATIONS, *ROPES, {"num_key_value_heads": 1}, {"head_dim": 16}]
WINDOWED: Changes = [
    {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 3},
    {"use_sliding_window": True, "sliding_window": 5, "layer_types": [FULL, LOCAL, LOCAL, FULL]},
]
GEMMAS: Changes = [
    *EPS,
    {"final_logit_softcapping": 0.5},
    {"hidden_activation": "relu"},
    {"attention_bias": True},
    {"query_pre_attn_scalar": 1},
    {"sliding_window": 5},
    {"layer_types": [FULL] * LAYERS},
    {"tie_word_embeddings": False},
]
BY_KIND = {"rope_type": "default", "rope_theta": 100.0}
HONOURED: dict[str, Changes] = {
    "llama": [*DECODER, *BIASES],
    "mistral": [*DECODER, {"sliding_window": 5}, {"sliding_window": None}],
    "qwen2": [*DECODER[:-1], *WINDOWED, {"tie_word_embeddings": False}],
    "qwen3": [*DECODER[:-1], *WINDOWED, {"attention_bias": True}, {"tie_word_embeddings": True}],
    "qwen3 moe": [
        *DECODER[:-1],
        {"use_sliding_window": True, "sliding_window": 5},
        {"attention_bias": True},
        {"tie_word_embeddings": True},
        {"num_local_experts": 4},
        {"num_experts_per_tok": 1},
        {"moe_intermediate_size": 24},
        {"norm_topk_prob": False},
        {"decoder_sparse_step": 3},
        {"mlp_only_layers": [0, 2]},
    ],
    "mixtral": [*DECODER, {"sliding_window": 5}, {"num_local_experts": 4}, {"num_experts_per_tok": 1}],
    "gemma2": [*GEMMAS, {"attn_logit_softcapping": 0.5}, rope("default", rope_theta=20.0)],
    "gemma3": [
        *GEMMAS,
        {"rope_parameters": {LOCAL: BY_KIND, FULL: BY_KIND}},
        {"rope_parameters": {LOCAL: BY_KIND, FULL: BY_KIND | {"rope_type": "linear", "factor": 8.0}}},
    ],
    "phi3": [*EPS, *ACTIVATIONS, {"sliding_window": 5}, {"sliding_window": None}, ROPES[0], PARTIAL],
    "smollm3": [
        *EPS, *ACTIVATIONS, *ROPES[:2], *BIASES,
        {"no_rope_layers": [0, 0, 1, 1]},
        {"no_rope_layers": None, "no_rope_layer_interval": 2},
        {"use_sliding_window": True, "sliding_window": 5},
        {"use_sliding_window": True, "sliding_window": 5, "layer_types": [FULL, LOCAL, LOCAL, FULL]},
        {"tie_word_embeddings": False},
    ],
    "granite": [
        *EPS, *ACTIVATIONS, *ROPES[:2], *BIASES,
        {"embedding_multiplier": 9.0},
        {"attention_multiplier": 2.0},
        {"residual_multiplier": 2.0},
        {"logits_scaling": 5.0},
    ],
    "opt": [
        {"num_attention_heads": 2},
        {"activation_function": "gelu"},
        {"do_layer_norm_before": False},
        {"enable_bias": False},
        {"word_embed_proj_dim": 20},
        {"tie_word_embeddings": False},
    ],
    "gpt2": [
        {"n_head": 2},
        {"n_inner": 48},
        {"activation_function": "relu"},
        {"layer_norm_epsilon": 0.5},
        {"tie_word_embeddings": False},
    ],
}  # fmt: skip
LLAMAS = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3 moe", "smollm3", "granite")
REFUSED: dict[str, Changes] = {
    **{name: [{"hidden_act": "quick_gelu"}, PARTIAL, {"partial_rotary_factor": 0.5}] for name in LLAMAS},
    "gemma2": [{"use_bidirectional_attention": True}, {"hidden_activation": "tanh"}],
    "gemma3": [{"use_bidirectional_attention": True}, {"attn_logit_softcapping": 0.5}],
    "phi3": [{"hidden_act": "quick_gelu"}, rope("helix")],
    "opt": [{"layer_norm_elementwise_affine": False}, {"_remove_final_layer_norm": True}],
    "gpt2": [
        {"scale_attn_weights": False},
        {"scale_attn_by_inverse_layer_idx": True},
        {"reorder_and_upcast_attn": True},
    ],
}
# Of these a change changes the shapes of tensors, which are checked; and the length of a context no number.
SIZES = {
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "ffn_dim", "n_embd", "n_head", "n_layer", "n_positions",
    "max_position_embeddings", "original_max_position_embeddings",
}  # fmt: skip
UNUSED = {"_sliding_window_pattern"}  # by transformers too, where layer_types says it


def logits_of(family: str, settings: dict[str, Any], folder: Path) -> np.ndarray:
    model = make_with(family, settings)
    model.save_pretrained(folder)
    return hf_logits(model, PROMPT)


@pytest.mark.parametrize("name", HONOURED)
def test_settings_change_logits_as_they_do_in_transformers(name: str, tmp_path: Path) -> None:
    family, settings = FAMILIES[name]
    usual = logits_of(family, settings, tmp_path / "usual")
    for index, change in enumerate(HONOURED[name]):
        folder = tmp_path / str(index)
        wanted = logits_of(family, settings | change, folder)
        assert worst_difference(wanted, usual) > 10 * TOLERANCE, f"{change} changes nothing"
        found = our_logits(compile_model(folder, "cpu"), PROMPT)
        assert worst_difference(found, wanted) <= TOLERANCE, change


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_are_not_honoured_are_refused_by_name(name: str, tmp_path: Path) -> None:
    family, settings = FAMILIES[name]
    config = type(make_with(family, settings).config)(**settings).to_dict()
    for change in REFUSED[name]:
        write_json(tmp_path / "config.json", config | {"architectures": [head_class(family)]} | change)
        with pytest.raises(ModelError, match=next(iter(change))):
            build_program(read_model_config(tmp_path))


@pytest.mark.parametrize("name", HONOURED)
def test_no_setting_of_transformers_is_left_out_here(name: str) -> None:
    family, settings = FAMILIES[name]
    known = set(transformers.PreTrainedConfig().to_dict()) - {"tie_word_embeddings"}
    fields = set(type(make_with(family, settings).config)().to_dict()) - known - HARMLESS - SIZES - UNUSED
    tried = {setting for change in HONOURED[name] + REFUSED[name] for setting in change}
    assert fields - tried - {"tie_word_embeddings"} == set()


@pytest.mark.parametrize("name", HONOURED)
def test_a_setting_that_is_left_out_means_what_it_means_to_transformers(name: str, tmp_path: Path) -> None:
    family, settings = FAMILIES[name]
    usual = type(make_with(family, settings).config)().to_dict() | {"architectures": [head_class(family)]}

    def program(values: dict[str, Any]) -> Any:
        write_json(tmp_path / "config.json", values)
        return build_program(read_model_config(tmp_path))

    wanted = program(usual)
    for setting in usual.keys() - {"architectures"} - SIZES:
        found = program({key: value for key, value in usual.items() if key != setting})
        assert found == wanted, setting


ON_THE_HUB: dict[str, dict[str, Any]] = {  # what published files say beside, to no effect
    "gemma2": {"hidden_act": "gelu_pytorch_tanh", "cache_implementation": "hybrid"},
    "gemma3": {"cache_implementation": "hybrid", "sliding_window_pattern": 6, "_sliding_window_pattern": 6},
    "phi3": {"full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False, "mlp_bias": False},
    "qwen2": {"use_mrope": False, "max_window_layers": 28},
    "qwen3 moe": {"max_window_layers": 48, "num_experts": 8, "output_router_logits": False},
    "mixtral": {"router_jitter_noise": 0.0, "router_aux_loss_coef": 0.02},
    "gpt2": {"n_ctx": 1024, "_num_labels": 1, "task_specific_params": {"text-generation": {}}},
    "opt": {"prefix": "</s>", "activation_dropout": 0.0},
    "llama": {"rope_interleaved": False, "is_llama_config": True, "pretraining_tp": 1},
}


@pytest.mark.parametrize("name", ON_THE_HUB)
def test_settings_of_published_files_are_not_warned_of(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    family, settings = FAMILIES[name]
    config = make_with(family, settings).config.to_dict() | {"architectures": [head_class(family)]}
    write_json(tmp_path / "config.json", config)
    wanted = build_program(read_model_config(tmp_path))
    write_json(tmp_path / "config.json", config | ON_THE_HUB[name])
    assert build_program(read_model_config(tmp_path)) == wanted
    assert caplog.text == ""
