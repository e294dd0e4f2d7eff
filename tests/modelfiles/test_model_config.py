"""Settings of a model: read from either format, and nothing that would change the computation is ignored."""

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from legato.backends.backend import KVLayout
from legato.core.errors import ModelError
from legato.modelfiles.catalog import resolve
from legato.modelfiles.model_config import ModelConfig, read_model_config
from legato.models.registry import build_model, build_program
from legato.models.rope import plain_rope
from legato.program.ops import Attention, Rope, weights_of
from tests.model_builders import TINY_GGUF, TINY_LLAMA, gguf_bytes, write_json

EMBEDDING = {"token_embd.weight": ((16, 8), "F32", bytes(512))}
OUTPUT = {"output.weight": ((16, 8), "F32", bytes(512))}


def read_folder(folder: Path, **files: dict[str, Any]) -> ModelConfig:
    for name, value in files.items():
        write_json(folder / f"{name}.json", value)
    return read_model_config(folder)


def attention_of(config: ModelConfig) -> Attention:
    """The first of the program that the config becomes."""
    return next(op for op in build_program(config).ops if isinstance(op, Attention))


def read_gguf(folder: Path, metadata: dict[str, Any], tensors: dict[str, Any] | None = None) -> ModelConfig:
    path = folder / "model.gguf"
    path.write_bytes(gguf_bytes(metadata, EMBEDDING | (tensors or {})))
    return read_model_config(path)


def test_folder_and_gguf_of_the_same_model_say_the_same(tmp_path: Path) -> None:
    config = read_folder(tmp_path, config=TINY_LLAMA)
    other = read_gguf(tmp_path, TINY_GGUF, OUTPUT)
    assert build_program(config) == build_program(other)
    for each in (config, other):
        assert (each.vocab_size, each.eos_ids, each.bos_id) == (16, frozenset({2}), 1)
        attention = attention_of(each)
        assert (attention.num_heads, attention.num_kv_heads, attention.head_dim) == (2, 1, 4)
        assert build_model(each).max_position == 64


def test_chat_model_in_a_gguf_file_ends_a_turn_by_the_names_of_its_tokens(tmp_path: Path) -> None:
    tokens = ["a", "<bos>", "<eos>", "<|end|>", "x<end_of_turn>", "<end_of_turn>", *map(str, range(10))]
    metadata = TINY_GGUF | {
        "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [1, 3, 3, 1, 3, 3, *[1] * 10],
    }  # fmt: skip
    assert read_gguf(tmp_path, metadata).eos_ids == {2}
    assert read_gguf(tmp_path, metadata | {"tokenizer.chat_template": "x"}).eos_ids == {2, 5}


def test_gguf_without_output_weight_is_tied(tmp_path: Path) -> None:
    program = build_program(read_gguf(tmp_path, TINY_GGUF))
    assert [weight.name for weight in weights_of(program.ops[-1])] == ["embed_tokens"]


def test_explicit_head_dim_wins(tmp_path: Path) -> None:
    assert attention_of(read_folder(tmp_path, config=TINY_LLAMA | {"head_dim": 6})).head_dim == 6
    metadata = TINY_GGUF | {
        "llama.attention.key_length": 6, "llama.attention.value_length": 6, "llama.rope.dimension_count": 6,
    }  # fmt: skip
    assert attention_of(read_gguf(tmp_path, metadata)).head_dim == 6


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


@pytest.mark.parametrize("change", [
    {"vocab_size": None}, {"vocab_size": "many"}, {"eos_token_id": "2"},
    {"architectures": [], "model_type": None},
])  # fmt: skip
def test_folder_that_says_too_little_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=f"{tmp_path}.*({'|'.join(change)})"):
        read_folder(tmp_path, config=TINY_LLAMA | change)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"llama.attention.max_alibi_bias": 8.0}, "llama.attention.max_alibi_bias = 8.0"),
        ({"llama.rope.scale_linear": 4.0}, "llama.rope.scale_linear"),
        ({"llama.expert_count": "many"}, "llama.expert_count is 'many'"),
        ({"llama.expert_shared_count": 1}, "llama.expert_shared_count = 1"),
        ({"llama.expert_gating_func": 2}, "llama.expert_gating_func = 2"),
        ({"llama.block_count": "many"}, "llama.block_count is 'many'"),
        ({"llama.attention.head_count": 0}, "llama.attention.head_count is 0"),
        ({"llama.attention.head_count": 1 << 20}, "head_count is 1048576, more than there are inputs"),
        ({"llama.rope.dimension_count": "all"}, "llama.rope.dimension_count is 'all'"),
        ({"tokenizer.ggml.eos_token_id": [2, 3]}, r"eos_token_id is \[2, 3\], not a token id"),
        ({"llama.attention.head_count_kv": 0}, "head_count_kv is 0"),
    ],
)  # fmt: skip
def test_gguf_that_cannot_be_served_is_refused(
    tmp_path: Path, change: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ModelError, match=complaint) as refusal:
        read_gguf(tmp_path, TINY_GGUF | change)
    assert str(tmp_path) in str(refusal.value)


@pytest.mark.parametrize(
    ("file", "settings", "complaint"),
    [
        ("tokenizer_config", {"added_tokens_decoder": [1]}, "added_tokens_decoder is [1], not an object"),
        ("tokenizer_config", {"added_tokens_decoder": {"-1": "x"}}, "gives a token the id '-1'"),
        ("tokenizer", {"added_tokens": {"x": 1}}, "added_tokens is {'x': 1}, not a list of objects"),
        ("tokenizer", {"added_tokens": [{"content": "x"}]}, "gives a token the id None"),
        ("tokenizer", {"model": [1]}, "model is [1], not an object"),
        ("vocab", {"x": [2]}, "gives a token the id [2]"),
        ("generation_config", {"eos_token_id": "x"}, "eos_token_id is 'x'"),
    ],
)
def test_settings_that_say_no_end_are_named(
    tmp_path: Path, file: str, settings: dict[str, Any], complaint: str
) -> None:
    files: dict[str, Any] = {"config": TINY_LLAMA, "special_tokens_map": {"eos_token": "x"}, file: settings}
    with pytest.raises(ModelError, match=re.escape(complaint)) as refusal:
        read_folder(tmp_path, **files)
    assert f"{file}.json" in str(refusal.value)


def test_a_vocabulary_that_is_a_list_is_not_searched_for_the_end(tmp_path: Path) -> None:
    unigram = {"model": {"type": "Unigram", "vocab": [["x", 0.0]]}}
    folder = read_folder(
        tmp_path, config=TINY_LLAMA, tokenizer=unigram, special_tokens_map={"eos_token": "x"}
    )
    assert folder.eos_ids == {TINY_LLAMA["eos_token_id"]}


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
    program = build_program(config)
    kv = KVLayout.of(program, 1, 1)
    assert (kv.num_layers, kv.num_kv_heads, kv.head_dim, attention_of(config).num_heads) == (30, 3, 64, 9)
    assert (config.vocab_size, build_model(config).max_position) == (49152, 8192)
    assert next(op.rope for op in program.ops if isinstance(op, Rope)) == plain_rope(64, 100_000.0, 8192)
    assert [weight.name for weight in weights_of(program.ops[-1])] == ["embed_tokens"]
    assert config.eos_ids == {2}
