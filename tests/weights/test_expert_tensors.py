"""Experts by their names in the program, however a file lays them out: one by one, stacked, or fused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from legato.backends.stored_weight import StoredWeights
from legato.core.errors import ModelError
from legato.modelfiles.model_config import read_model_config
from legato.models.registry import build_model
from legato.program.ops import weights_of
from legato.weights.loader import load_weights
from legato.weights.quantization import quantize_weights
from tests.model_builders import TINY_GGUF, TINY_LLAMA, gguf_bytes, random_tensors, write_json
from tests.weights.blocks import weight_blocks
from tests.weights.test_loader import interleave_halves

Arrays = dict[str, np.ndarray]

NUM_EXPERTS, HIDDEN, WIDTH = 4, 8, 12
MIXTRAL = TINY_LLAMA | {
    "architectures": ["MixtralForCausalLM"],
    "num_hidden_layers": 1,
    "num_local_experts": NUM_EXPERTS,
    "num_experts_per_tok": 2,
}
QWEN3_MOE = TINY_LLAMA | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_hidden_layers": 2,
    "mlp_only_layers": [0],
    "num_experts": NUM_EXPERTS,
    "num_experts_per_tok": 2,
    "intermediate_size": 16,
    "moe_intermediate_size": WIDTH,
}
GGUF = TINY_GGUF | {
    "llama.block_count": 1,
    "llama.expert_count": NUM_EXPERTS,
    "llama.expert_used_count": 2,
}
PARTS = ("gate", "up", "down")


def load(path: Path) -> StoredWeights:
    model = build_model(read_model_config(path))
    return load_weights(path, model.program, model.tensors)


def write_folder(folder: Path, config: dict[str, Any], tensors: Arrays) -> Path:
    write_json(folder / "config.json", config)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    return folder


def made(folder: Path, config: dict[str, Any]) -> tuple[Arrays, Arrays]:
    """Random weights by the names in the program, and by those of Hugging Face's files."""
    write_json(folder / "config.json", config)
    model = build_model(read_model_config(folder))
    arrays = random_tensors({each.name: each.shape for op in model.program.ops for each in weights_of(op)})
    return arrays, {model.tensors.of(name, "model.").name: array for name, array in arrays.items()}


def fused(arrays: Arrays, stored: Arrays, layer: int) -> Arrays:
    """The experts of a layer as two tensors."""
    names = [f"layers.{layer}.experts.{expert}." for expert in range(NUM_EXPERTS)]
    gate_ups = [np.concatenate([arrays[f"{name}gate_proj"], arrays[f"{name}up_proj"]]) for name in names]
    stem = f"model.layers.{layer}.mlp"
    rest = {
        name.replace("block_sparse_moe.gate", "mlp.gate"): array
        for name, array in stored.items()
        if ".experts." not in name
    }
    return rest | {
        f"{stem}.experts.gate_up_proj": np.stack(gate_ups),
        f"{stem}.experts.down_proj": np.stack([arrays[f"{name}down_proj"] for name in names]),
    }


def gguf_tensors(arrays: Arrays, *, is_stacked: bool) -> dict[str, tuple[tuple[int, ...], str, bytes]]:
    names = {
        "embed_tokens": "token_embd", "final_norm": "output_norm", "lm_head": "output",
        "layers.0.input_norm": "blk.0.attn_norm", "layers.0.mlp_norm": "blk.0.ffn_norm",
        "layers.0.q_proj": "blk.0.attn_q", "layers.0.k_proj": "blk.0.attn_k",
        "layers.0.v_proj": "blk.0.attn_v", "layers.0.o_proj": "blk.0.attn_output",
        "layers.0.router": "blk.0.ffn_gate_inp",
    }  # fmt: skip
    heads = {"layers.0.q_proj": 2, "layers.0.k_proj": 1}
    found = {
        theirs: interleave_halves(arrays[ours], heads[ours]) if ours in heads else arrays[ours]
        for ours, theirs in names.items()
    }
    for part in PARTS:
        of_part = [arrays[f"layers.0.experts.{expert}.{part}_proj"] for expert in range(NUM_EXPERTS)]
        if is_stacked:
            found[f"blk.0.ffn_{part}_exps"] = np.stack(of_part)
        else:
            found |= {f"blk.0.ffn_{part}.{expert}": array for expert, array in enumerate(of_part)}
    return {f"{name}.weight": (array.shape, "F32", array.tobytes()) for name, array in found.items()}


def assert_same(found: StoredWeights, wanted: Arrays) -> None:
    assert found.keys() == wanted.keys()
    for name, array in found.items():
        assert np.array_equal(array.values, wanted[name]), name
        assert array.shape == found.headers[name].shape
        assert array.num_bytes == found.headers[name].num_bytes


@pytest.mark.parametrize(("config", "layer"), [(MIXTRAL, 0), (QWEN3_MOE, 1)], ids=["mixtral", "qwen3 moe"])
@pytest.mark.parametrize("layout", ["one by one", "fused", "fused, in a .bin"])
def test_folder_gives_every_expert(tmp_path: Path, config: dict[str, Any], layer: int, layout: str) -> None:
    arrays, stored = made(tmp_path, config)
    assert f"layers.{layer}.experts.3.down_proj" in arrays
    tensors = stored if layout == "one by one" else fused(arrays, stored, layer)
    if layout == "fused, in a .bin":
        torch.save(
            {name: torch.tensor(each) for name, each in tensors.items()}, tmp_path / "pytorch_model.bin"
        )
    else:
        write_folder(tmp_path, config, tensors)
    assert_same(load(tmp_path), arrays)


@pytest.mark.parametrize("is_stacked", [True, False])
def test_gguf_gives_every_expert(tmp_path: Path, is_stacked: bool) -> None:
    arrays, _ = made(tmp_path, MIXTRAL)
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes(GGUF, gguf_tensors(arrays, is_stacked=is_stacked)))
    assert read_model_config(path).architecture == "mixtral"
    assert_same(load(path), arrays)


@pytest.mark.parametrize("kind", ["Q4_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K", "Q2_K"])
def test_an_expert_of_quantised_ones_is_what_it_is_by_itself(tmp_path: Path, kind: str) -> None:
    width = 256
    sizes = {"hidden_size": width, "intermediate_size": width}
    arrays, _ = made(tmp_path, MIXTRAL | sizes)
    path, alone = tmp_path / "model.gguf", tmp_path / "alone.gguf"
    metadata = GGUF | {
        "llama.embedding_length": width,
        "llama.feed_forward_length": width,
        "llama.rope.dimension_count": 128,
    }
    blocks = {
        (part, expert): weight_blocks(kind, width * width, 0.1, 10 * expert + PARTS.index(part))
        for part in PARTS
        for expert in range(NUM_EXPERTS)
    }
    stacked = {
        f"blk.0.ffn_{part}_exps.weight": (
            (NUM_EXPERTS, width, width),
            kind,
            b"".join(blocks[part, expert] for expert in range(NUM_EXPERTS)),
        )
        for part in PARTS
    }
    single = {
        f"blk.0.ffn_{part}.{expert}.weight": ((width, width), kind, each)
        for (part, expert), each in blocks.items()
    }
    path.write_bytes(gguf_bytes(metadata, gguf_tensors(arrays, is_stacked=True) | stacked))
    alone.write_bytes(gguf_bytes(metadata, gguf_tensors(arrays, is_stacked=False) | single))
    weights, wanted = load(path), load(alone)
    assert weights.keys() == wanted.keys()
    for name in weights:
        assert weights[name].num_bytes == wanted[name].num_bytes
        assert np.array_equal(weights[name].float32(), wanted[name].float32()), name
        assert weights.headers[name].num_bytes == wanted.headers[name].num_bytes


def without(name: str) -> Any:
    return lambda tensors: {each: array for each, array in tensors.items() if each != name}


def of_fewer(name: str) -> Any:
    return lambda tensors: tensors | {name: tensors[name][:-1]}


FAULTS: dict[str, tuple[bool, Any, str]] = {  # whether fused, what is done to it, what is said
    "missing": (
        False,
        without("model.layers.1.mlp.experts.2.up_proj.weight"),
        r"tensor 'model\.layers\.1\.mlp\.experts\.2\.up_proj\.weight' is missing",
    ),
    "missing, fused": (
        True,
        without("model.layers.1.mlp.experts.down_proj"),
        r"tensor 'model\.layers\.1\.mlp\.experts\.down_proj' is missing",
    ),
    "fewer, fused": (
        True,
        of_fewer("model.layers.1.mlp.experts.gate_up_proj"),
        r"gate_up_proj' has shape \[3, 24, 8\]; its configuration says \[4, 24, 8\]",
    ),
    "a router of fewer": (
        False,
        of_fewer("model.layers.1.mlp.gate.weight"),
        r"'model\.layers\.1\.mlp\.gate\.weight' has shape \[3, 8\]; .* \[4, 8\]",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_experts_that_are_not_there_are_named(tmp_path: Path, fault: str) -> None:
    is_fused, spoil, complaint = FAULTS[fault]
    arrays, stored = made(tmp_path, QWEN3_MOE)
    tensors = fused(arrays, stored, 1) if is_fused else stored
    with pytest.raises(ModelError, match=complaint):
        load(write_folder(tmp_path, QWEN3_MOE, spoil(tensors)))


def test_gguf_of_fewer_experts_than_its_header_says_is_named(tmp_path: Path) -> None:
    arrays, _ = made(tmp_path, MIXTRAL)
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes(GGUF | {"llama.expert_count": 5}, gguf_tensors(arrays, is_stacked=True)))
    with pytest.raises(ModelError, match=r"'blk\.0\.ffn_gate_inp\.weight' has shape \[4, 8\]; .* \[5, 8\]"):
        load(path)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"num_experts_per_tok": 5}, "num_experts_per_tok is 5, not a whole number from 1 to 4"),
        ({"num_experts_per_tok": None}, "num_experts_per_tok is 8, not a whole number from 1 to 4"),
        ({"num_local_experts": 5}, "num_experts = 4 is not supported, only 5"),
        ({"num_experts": 2**16}, "num_experts is 65536 in 2 layers: more than 65536 in all"),
        ({"mlp_only_layers": 1}, "mlp_only_layers is 1, no list of layers"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
        ({"norm_topk_prob": "yes"}, "norm_topk_prob is 'yes'"),
    ],
)
def test_settings_of_experts_that_make_no_sense_are_named(
    tmp_path: Path, change: dict[str, Any], complaint: str
) -> None:
    write_json(tmp_path / "config.json", QWEN3_MOE | change)
    with pytest.raises(ModelError, match=complaint):
        build_model(read_model_config(tmp_path))


def test_settings_of_experts_are_refused_where_there_are_none(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", TINY_LLAMA | {"num_local_experts": 8})
    with pytest.raises(ModelError, match="num_local_experts = 8 is not supported"):
        build_model(read_model_config(tmp_path))


def test_router_stays_as_it_is_when_experts_are_quantised(tmp_path: Path) -> None:
    config = MIXTRAL | {"hidden_size": 64, "intermediate_size": 96}
    _, stored = made(tmp_path, config)
    weights = quantize_weights(load(write_folder(tmp_path, config, stored)), "int4")
    assert weights["layers.0.router"].format == "f32"
    assert {weights[f"layers.0.experts.2.{part}_proj"].format for part in PARTS} == {"q4"}
