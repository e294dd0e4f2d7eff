"""Directories quantised by GPTQ, AWQ and compressed-tensors: weights have their scheme's values."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from legato.core.config import EngineConfig
from legato.core.errors import ModelError
from legato.engine.assembly import load_engine
from legato.weights.folder_tensors import open_folder
from legato.weights.quantized_folder import QuantizedFolder, open_quantized
from tests.model_builders import TINY_LLAMA, random_tensors, write_json
from tests.tiny_model import MIXTRAL

Arrays = dict[str, np.ndarray]

INPUTS, OUTPUTS = 256, 24
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
INT8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"},
            "input_activations": {"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token"},
        }
    },
    "ignore": ["lm_head"],
}


def write(folder: Path, tensors: Arrays, config: dict[str, Any]) -> QuantizedFolder:
    write_json(folder / "config.json", {"quantization_config": config})
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    return open_quantized(folder, open_folder(folder))


def draw(
    group_len: int, inputs: int = INPUTS, outputs: int = OUTPUTS
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q [inputs, outputs] of 4 bits, zeros [groups, outputs] from 1 to 15, and scales in halves."""
    random = np.random.default_rng(group_len)
    groups = inputs // group_len
    scales = random.uniform(0.001, 0.02, (groups, outputs)).astype(np.float16)
    return random.integers(0, 16, (inputs, outputs)), random.integers(1, 16, (groups, outputs)), scales


def packed(numbers: np.ndarray, order: list[int]) -> np.ndarray:
    """[rows, 8 n] to int32 [rows, n]: number `order[i]` of 8 stands at bit 4 i."""
    eights = numbers.reshape(len(numbers), -1, 8).astype(np.uint32)
    words = sum(eights[..., number] << np.uint32(4 * place) for place, number in enumerate(order))
    return np.ascontiguousarray(words, np.uint32).view(np.int32)


def gptq(q: np.ndarray, zeros: np.ndarray, scales: np.ndarray, zero_offset: int = 1) -> Arrays:
    in_order = list(range(8))
    return {
        "x.qweight": np.ascontiguousarray(packed(q.T, in_order).T),
        "x.qzeros": packed(zeros - zero_offset, in_order),
        "x.scales": scales,
    }


def awq(q: np.ndarray, zeros: np.ndarray, scales: np.ndarray) -> Arrays:
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    return {"x.qweight": packed(q, order), "x.qzeros": packed(zeros, order), "x.scales": scales}


def defined(q: np.ndarray, zeros: np.ndarray, scales: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The scheme: (q - zero) * scale, [outputs, inputs]."""
    return ((q - zeros[groups]) * scales.astype(np.float64)[groups]).T


@pytest.mark.parametrize("group_len", [32, 64, 128, 256])
@pytest.mark.parametrize(
    ("config", "make"),
    [
        (GPTQ, gptq),
        (GPTQ | {"checkpoint_format": "gptq_v2"}, lambda *numbers: gptq(*numbers, zero_offset=0)),
        (AWQ, awq),
    ],
    ids=["gptq", "gptq_v2", "awq"],
)
def test_four_bits_are_kept_with_the_schemes_exact_values(
    tmp_path: Path, config: dict[str, Any], make: Any, group_len: int
) -> None:
    q, zeros, scales = draw(group_len)
    folder = write(tmp_path, make(q, zeros, scales), config)
    weight = folder.read("x.weight")
    assert list(folder.headers) == ["x.weight"]
    assert (weight.format, weight.shape, folder.headers["x.weight"].shape) == ("q4", (24, 256), (24, 256))
    assert np.array_equal(weight.float32(), defined(q, zeros, scales, np.arange(INPUTS) // group_len))


def test_gptqs_inputs_in_another_order_become_halves(tmp_path: Path) -> None:
    q, zeros, scales = draw(64)
    groups = np.random.default_rng(0).permutation(np.arange(INPUTS) // 64).astype(np.int32)
    tensors = gptq(q, zeros, scales) | {"x.g_idx": groups}
    weight = write(tmp_path, tensors, GPTQ | {"desc_act": True}).read("x.weight")
    assert weight.format == "f16"
    expected = defined(q, zeros, scales, groups).astype(np.float32).astype(np.float16)
    assert np.array_equal(weight.float32(), expected.astype(np.float32))


def test_order_that_changes_nothing_keeps_four_bits(tmp_path: Path) -> None:
    tensors = gptq(*draw(64)) | {"x.g_idx": (np.arange(INPUTS) // 64).astype(np.int32)}
    assert write(tmp_path, tensors, GPTQ).read("x.weight").format == "q4"


@pytest.mark.parametrize("num_scales", [1, OUTPUTS])
def test_int8_is_kept_with_its_scales(tmp_path: Path, num_scales: int) -> None:
    random = np.random.default_rng(num_scales)
    q = random.integers(-128, 128, (OUTPUTS, INPUTS)).astype(np.int8)
    scales = random.uniform(0.001, 0.01, (num_scales, 1)).astype(np.float32)
    folder = write(tmp_path, {"x.weight": q, "x.weight_scale": scales, "y.weight": scales}, INT8)
    weight = folder.read("x.weight")
    assert sorted(folder.headers) == ["x.weight", "y.weight"]
    assert weight.format == "q8"
    assert np.array_equal(weight.float32(), q.astype(np.float32) * scales)
    assert np.array_equal(folder.read("y.weight").float32(), scales)


def packed_config(**weights: Any) -> dict[str, Any]:
    described = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 64}
    return INT8 | {"format": "pack-quantized", "config_groups": {"group_0": {"weights": described | weights}}}


def pack_quantized(q: np.ndarray, zeros: np.ndarray | None, scales: np.ndarray) -> Arrays:
    """compressed-tensors' names and order; its scales lie [outputs, groups]."""
    in_order = list(range(8))
    tensors = {
        "x.weight_packed": packed(q.T, in_order),
        "x.weight_scale": np.ascontiguousarray(scales.T),
        "x.weight_shape": np.array([q.shape[1], q.shape[0]], np.int64),
    }
    if zeros is not None:
        tensors["x.weight_zero_point"] = np.ascontiguousarray(packed(zeros, in_order).T)
    return tensors


@pytest.mark.parametrize("group_len", [32, 128, 256])
@pytest.mark.parametrize("is_symmetric", [True, False])
def test_packed_four_bits_are_kept_with_the_schemes_exact_values(
    tmp_path: Path, group_len: int, is_symmetric: bool
) -> None:
    q, zeros, scales = draw(group_len)
    strategy = "channel" if group_len == INPUTS else "group"
    config = packed_config(symmetric=is_symmetric, strategy=strategy, group_size=group_len)
    folder = write(tmp_path, pack_quantized(q, None if is_symmetric else zeros, scales), config)
    if is_symmetric:
        zeros = np.full_like(zeros, 8)
    weight = folder.read("x.weight")
    assert list(folder.headers) == ["x.weight"]
    assert (weight.format, weight.shape, folder.headers["x.weight"].shape) == ("q4", (24, 256), (24, 256))
    assert np.array_equal(weight.float32(), defined(q, zeros, scales, np.arange(INPUTS) // group_len))


def test_packed_inputs_in_another_order_become_halves(tmp_path: Path) -> None:
    q, zeros, scales = draw(64)
    groups = np.random.default_rng(0).permutation(np.arange(INPUTS) // 64).astype(np.int32)
    tensors = pack_quantized(q, zeros, scales) | {"x.weight_g_idx": groups}
    weight = write(tmp_path, tensors, packed_config(symmetric=False, actorder="group")).read("x.weight")
    expected = defined(q, zeros, scales, groups).astype(np.float32).astype(np.float16)
    assert np.array_equal(weight.float32(), expected.astype(np.float32))


PACKED_SPOILT: dict[str, tuple[Arrays, str]] = {
    "fewer scales": ({"x.weight_scale": np.ones((3, 2), np.float16)}, "do not belong together"),
    "fewer zeros": ({"x.weight_zero_point": np.zeros((1, 2), np.int32)}, "do not belong together"),
    "groups of 16": (
        {"x.weight_scale": np.ones((24, 16), np.float16), "x.weight_zero_point": np.zeros((3, 16), np.int32)},
        "no multiple of 32",
    ),
    "short order": ({"x.weight_g_idx": np.zeros(3, np.int32)}, "does not give each of 256 inputs a group"),
    "wrong type": ({"x.weight_packed": np.zeros((24, 32), np.float32)}, "no matrix of I32"),
}


@pytest.mark.parametrize("name", PACKED_SPOILT)
def test_packed_tensors_that_do_not_fit_are_named(tmp_path: Path, name: str) -> None:
    spoilt, complaint = PACKED_SPOILT[name]
    with pytest.raises(ModelError, match=rf"model\.safetensors: x\.weight_.*{complaint}"):
        write(tmp_path, pack_quantized(*draw(128)) | spoilt, packed_config(symmetric=False, group_size=128))


WITHOUT_ZEROS = (None, "groups of 64 inputs without weight_zero_point")
WITH_ZEROS = (np.full((4, OUTPUTS), 8), "groups of 64 inputs with weight_zero_point")


@pytest.mark.parametrize(
    ("described", "made", "wanted"),
    [
        ({"symmetric": False}, WITHOUT_ZEROS, "groups of 64 inputs with weight_zero_point"),
        ({"symmetric": True}, WITH_ZEROS, "groups of 64 inputs without weight_zero_point"),
        ({"group_size": 128}, WITHOUT_ZEROS, "groups of 128 inputs without"),
        ({"group_size": None}, WITHOUT_ZEROS, "groups of None inputs without"),
        ({"strategy": "channel"}, WITHOUT_ZEROS, "groups of 256 inputs without"),
    ],
)
def test_packed_tensors_that_the_config_describes_otherwise_are_named(
    tmp_path: Path, described: dict[str, Any], made: tuple[np.ndarray | None, str], wanted: str
) -> None:
    q, _, scales = draw(64)
    zeros, found = made
    with pytest.raises(ModelError, match=rf"x\.weight_packed has {found}, and .*config_groups says {wanted}"):
        write(tmp_path, pack_quantized(q, zeros, scales), packed_config(**described))


def test_module_may_be_as_any_group_says(tmp_path: Path) -> None:
    config = packed_config(group_size=128)
    config["config_groups"] |= {"group_1": packed_config()["config_groups"]["group_0"]}
    q, _, scales = draw(64)
    weight = write(tmp_path, pack_quantized(q, None, scales), config).read("x.weight")
    expected = defined(q, np.full((4, OUTPUTS), 8), scales, np.arange(INPUTS) // 64)
    assert np.array_equal(weight.float32(), expected)


def test_packed_shape_that_is_another_is_refused_when_it_is_read(tmp_path: Path) -> None:
    q, _, scales = draw(64)
    tensors = pack_quantized(q, None, scales) | {"x.weight_shape": np.array([9, 9])}
    with pytest.raises(ModelError, match=r"x\.weight_shape is not the packed \[24, 256\]"):
        write(tmp_path, tensors, packed_config()).read("x.weight")


@pytest.mark.parametrize(
    ("make", "config", "mark"),
    [(gptq, GPTQ, "qweight"), (pack_quantized, packed_config(symmetric=False), "weight_packed")],
)
def test_module_that_is_there_twice_is_named(
    tmp_path: Path, make: Any, config: dict[str, Any], mark: str
) -> None:
    tensors = make(*draw(64)) | {"x.weight": np.ones((OUTPUTS, INPUTS), np.float32)}
    with pytest.raises(ModelError, match=rf"x\.weight is there twice, as floats and as x\.{mark}"):
        write(tmp_path, tensors, config)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "fp8": ({"quant_method": "fp8"}, r"quant_method is 'fp8', .*--quantization int8 or int4"),
    "bitsandbytes": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "'bitsandbytes'"),
    "none": ({}, "quant_method is None"),
    "3 bits": (GPTQ | {"bits": 3}, "bits is 3, and only 4"),
    "marlin": (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
    "gemv": (AWQ | {"version": "gemv"}, "version is 'gemv'"),
    "marlin of 24": (INT8 | {"format": "marlin-24"}, "format is 'marlin-24'"),
    "packed 8 bits": (packed_config(num_bits=8), "group_0.weights.num_bits is 8, and only 4"),
    "packed floats": (packed_config(type="float"), "group_0.weights.type is 'float'"),
    "packed blocks": (packed_config(strategy="block"), "group_0.weights.strategy is 'block'"),
    "groups in a list": (INT8 | {"config_groups": [7]}, r"config_groups is \[7\], not an object"),
    "rotated": (packed_config() | {"transform_config": {"config_groups": {"u": {}}}}, "transform_config is"),
    "int4 in int8's format": (
        INT8 | {"config_groups": {"g": {"weights": {"num_bits": 4, "type": "int"}}}},
        "config_groups.g.weights.num_bits is 4",
    ),
    "asymmetric": (
        INT8 | {"config_groups": {"g": {"weights": {"num_bits": 8, "type": "int", "symmetric": False}}}},
        "weights.symmetric is False",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_way_of_quantising_is_refused_by_name(tmp_path: Path, name: str) -> None:
    config, complaint = REFUSED[name]
    with pytest.raises(ModelError, match=rf"config\.json: quantization_config.*{complaint}"):
        write(tmp_path, {"x.weight": np.zeros(1, np.float32)}, config)


SPOILT: dict[str, tuple[Arrays, str]] = {
    "no scales": ({"x.scales": np.zeros(0, np.float16)}, "do not belong together"),
    "fewer zeros": ({"x.qzeros": np.zeros((1, 3), np.int32)}, "do not belong together"),
    "wrong type": ({"x.qzeros": np.zeros((2, 3), np.float32)}, "do not belong together"),
    "groups of 16": (
        {"x.scales": np.ones((16, 24), np.float16), "x.qzeros": np.zeros((16, 3), np.int32)},
        "no multiple of 32",
    ),
    "short order": ({"x.g_idx": np.zeros(3, np.int32)}, "g_idx does not give each of 256 inputs a group"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, name: str) -> None:
    spoilt, complaint = SPOILT[name]
    with pytest.raises(ModelError, match=rf"model\.safetensors: x\..*{complaint}"):
        write(tmp_path, gptq(*draw(128)) | spoilt, GPTQ)


def test_missing_zeros_are_named(tmp_path: Path) -> None:
    tensors = gptq(*draw(128))
    del tensors["x.qzeros"]
    with pytest.raises(ModelError, match=r"x\.qweight lacks its qzeros or scales"):
        write(tmp_path, tensors, GPTQ)


def test_group_that_there_is_not_is_refused_when_it_is_read(tmp_path: Path) -> None:
    tensors = gptq(*draw(128)) | {"x.g_idx": np.full(INPUTS, 2, np.int32)}
    with pytest.raises(ModelError, match=r"x\.g_idx names a group"):
        write(tmp_path, tensors, GPTQ).read("x.weight")


DENSE = {"mlp.gate_proj": (128, 64), "mlp.up_proj": (128, 64), "mlp.down_proj": (64, 128)}
EXPERTS = {
    f"block_sparse_moe.experts.{expert}.{part}": shape
    for expert in range(4)
    for part, shape in {"w1": (128, 64), "w3": (128, 64), "w2": (64, 128)}.items()
}


@pytest.mark.parametrize(("family", "mlp"), [({}, DENSE), (MIXTRAL, EXPERTS)], ids=["llama", "mixtral"])
@pytest.mark.parametrize(("make", "scheme"), [(awq, AWQ), (gptq, GPTQ)], ids=["awq", "gptq"])
def test_model_quantised_to_4_bits_is_served(
    tmp_path: Path, make: Any, scheme: dict[str, Any], family: dict[str, Any], mlp: dict[str, tuple[int, int]]
) -> None:
    """All products of its layers are in 4 bits; embeddings, norms, routers and the head are floats."""
    config = (
        TINY_LLAMA
        | family
        | {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 1,
            "vocab_size": 32,
        }
    )
    shapes = {
        "self_attn.q_proj": (64, 64), "self_attn.k_proj": (32, 64), "self_attn.v_proj": (32, 64),
        "self_attn.o_proj": (64, 64), **mlp,
    }  # fmt: skip
    tensors: Arrays = random_tensors({
        "model.embed_tokens.weight": (32, 64), "lm_head.weight": (32, 64), "model.norm.weight": (64,),
        "model.layers.0.input_layernorm.weight": (64,),
        "model.layers.0.post_attention_layernorm.weight": (64,),
    })  # fmt: skip
    for module, (outputs, inputs) in shapes.items():
        made = make(*draw(32, inputs, outputs))
        tensors |= {name.replace("x.", f"model.layers.0.{module}."): each for name, each in made.items()}
    if family:
        tensors |= random_tensors({"model.layers.0.block_sparse_moe.gate.weight": (4, 64)})
    write(tmp_path, tensors, scheme)
    write_json(tmp_path / "config.json", config | {"quantization_config": scheme})
    engine_config = EngineConfig(model=str(tmp_path), num_pages=8, packed_cache=False)
    assert load_engine(engine_config, lambda *_: None).max_model_len == 64
