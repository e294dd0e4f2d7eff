"""Settings of a model: read from either format, and nothing that would change the computation is ignored."""

import logging
from pathlib import Path
from typing import Any

import pytest

from legato.core.errors import ModelError
from legato.modelfiles.catalog import resolve
from legato.modelfiles.model_config import ModelConfig, read_model_config
from tests.model_builders import TINY_GGUF, TINY_LLAMA, gguf_bytes, write_json

EMBEDDING = {"token_embd.weight": ((16, 8), "F32", bytes(512))}
OUTPUT = {"output.weight": ((16, 8), "F32", bytes(512))}


def read_folder(folder: Path, **files: dict[str, Any]) -> ModelConfig:
    for name, value in files.items():
        write_json(folder / f"{name}.json", value)
    return read_model_config(folder)


def read_gguf(folder: Path, metadata: dict[str, Any], tensors: dict[str, Any] | None = None) -> ModelConfig:
    path = folder / "model.gguf"
    path.write_bytes(gguf_bytes(metadata, EMBEDDING | (tensors or {})))
    return read_model_config(path)


def test_folder_and_gguf_of_the_same_model_say_the_same(tmp_path: Path) -> None:
    config = read_folder(tmp_path, config=TINY_LLAMA)
    assert config == read_gguf(tmp_path, TINY_GGUF, OUTPUT)
    assert config == ModelConfig(
        architecture="llama",
        hidden_size=8,
        intermediate_size=12,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        vocab_size=16,
        max_position=64,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        tie_word_embeddings=False,
        eos_ids=frozenset({2}),
        bos_id=1,
    )


def test_gguf_without_output_weight_is_tied(tmp_path: Path) -> None:
    assert read_gguf(tmp_path, TINY_GGUF).tie_word_embeddings


def test_explicit_head_dim_wins(tmp_path: Path) -> None:
    assert read_folder(tmp_path, config=TINY_LLAMA | {"head_dim": 6}).head_dim == 6
    assert read_gguf(tmp_path, TINY_GGUF | {
        "llama.attention.key_length": 6, "llama.attention.value_length": 6, "llama.rope.dimension_count": 6,
    }).head_dim == 6  # fmt: skip


def test_every_source_of_end_ids_counts(tmp_path: Path) -> None:
    config = read_folder(
        tmp_path,
        config=TINY_LLAMA | {"eos_token_id": 2},
        generation_config={"eos_token_id": [3, 4]},
        tokenizer_config={"eos_token": {"content": "<end>"}},
        tokenizer={"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 7, "content": "<end>"}]},
    )
    assert config.eos_ids == {2, 3, 4, 7}
    metadata = TINY_GGUF | {"tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.eom_token_id": 6}
    assert read_gguf(tmp_path, metadata).eos_ids == {2, 5, 6}


def test_end_token_is_found_among_the_tokenizer_settings_first(tmp_path: Path) -> None:
    settings = {"eos_token": "</s>", "added_tokens_decoder": {"9": {"content": "</s>"}}}
    config = read_folder(tmp_path, config=TINY_LLAMA | {"eos_token_id": None}, tokenizer_config=settings)
    assert config.eos_ids == {9}


def test_recommended_sampling_is_read_and_what_does_not_fit_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    generation = {"temperature": 0.6, "top_p": 0.9, "top_k": None, "min_p": 7, "do_sample": True}
    with caplog.at_level(logging.WARNING):
        config = read_folder(tmp_path, config=TINY_LLAMA, generation_config=generation)
    assert config.sampling_defaults == {"temperature": 0.6, "top_p": 0.9}
    assert "min_p is left out" in caplog.text


@pytest.mark.parametrize("spelling", [
    {"rope_theta": 500.0},
    {"rope_theta": None, "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}},
    {"rope_theta": 500.0, "rope_scaling": None},
    {"rope_theta": 500.0, "rope_scaling": {"type": "default"}},
])  # fmt: skip
def test_rope_theta_is_read_in_every_spelling(tmp_path: Path, spelling: dict[str, Any]) -> None:
    assert read_folder(tmp_path, config=TINY_LLAMA | spelling).rope_theta == 500.0


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"architectures": ["OPTForCausalLM"]}, "OPTForCausalLM; only LlamaForCausalLM"),
        ({"architectures": None, "model_type": "gpt2"}, "gpt2; only LlamaForCausalLM"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling = .*linear"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling = .*llama3"),
        ({"rope_scaling": "yarn"}, "rope_scaling = 'yarn'"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_parameters = .*yarn"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope_parameters"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_parameters = .*partial_rotary_factor"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"sliding_window": 4096}, "sliding_window = 4096"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"hidden_size": None}, "does not say hidden_size"),
        ({"hidden_size": 9}, "hidden_size 9 does not divide"),
        ({"num_hidden_layers": 0}, "num_layers is 0"),
        ({"num_hidden_layers": "two"}, "num_layers is 'two'"),
        ({"num_key_value_heads": 3}, "2 heads cannot share 3"),
        ({"head_dim": 5}, "head_dim is 5"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"eos_token_id": "2"}, "eos_token_id is '2'"),
    ],
)  # fmt: skip
def test_folder_that_cannot_be_served_is_refused(
    tmp_path: Path, change: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ModelError, match=complaint) as refusal:
        read_folder(tmp_path, config=TINY_LLAMA | change)
    assert str(tmp_path) in str(refusal.value)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"general.architecture": "qwen2"}, "'qwen2'; of .gguf files only llama"),
        ({"llama.rope.scaling.type": "yarn"}, "llama.rope.scaling.type = 'yarn'"),
        ({"llama.rope.scale_linear": 4.0}, "llama.rope.scale_linear"),
        ({"llama.rope.dimension_count": 2}, "llama.rope.dimension_count = 2"),
        ({"llama.attention.sliding_window": 128}, "sliding_window = 128"),
        ({"llama.expert_count": 8}, "llama.expert_count = 8"),
        ({"llama.block_count": "many"}, "llama.block_count is 'many'"),
        ({"llama.attention.head_count": 0}, "llama.attention.head_count is 0"),
        ({"tokenizer.ggml.eos_token_id": [2, 3]}, r"eos_token_id is \[2, 3\], not a token id"),
        ({"llama.attention.head_count_kv": 0}, "num_kv_heads is 0"),
    ],
)  # fmt: skip
def test_gguf_that_cannot_be_served_is_refused(
    tmp_path: Path, change: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ModelError, match=complaint) as refusal:
        read_gguf(tmp_path, TINY_GGUF | change)
    assert str(tmp_path) in str(refusal.value)


@pytest.mark.parametrize("name", ["rope_freqs.weight", "blk.0.attn_q.bias"])
def test_gguf_with_a_tensor_of_another_computation_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError, match=name):
        read_gguf(tmp_path, TINY_GGUF, {name: ((8,), "F32", bytes(32))})


def test_tokenizer_settings_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="do not list their added tokens"):
        read_folder(
            tmp_path, config=TINY_LLAMA, tokenizer_config={"eos_token": "x", "added_tokens_decoder": [1]}
        )


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100_000])
def test_config_that_is_no_json_object_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config\.json"):
        read_model_config(tmp_path)


def test_folder_without_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json: .*safetensors.*Hugging Face layout.*\.gguf"):
        read_model_config(tmp_path)


@pytest.mark.model
def test_default_model() -> None:
    config = read_model_config(resolve("smollm2-135m-instruct").path)
    assert (config.hidden_size, config.num_layers, config.num_heads, config.num_kv_heads) == (576, 30, 9, 3)
    assert (config.head_dim, config.vocab_size, config.max_position) == (64, 49152, 8192)
    assert config.rope_theta == 100000.0
    assert config.tie_word_embeddings
    assert config.eos_ids == {2}
