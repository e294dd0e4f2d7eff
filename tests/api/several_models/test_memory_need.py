"""Memory that a model needs, known from its files, and what an engine then takes."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from legato.api.several_models.memory_need import GIB, MIB, PROCESS_BYTES, needs_of, weight_bytes
from legato.core.config import EngineConfig
from legato.core.errors import ConfigError, ModelError

LIMIT_BYTES = 1024 * MIB


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    """A model of float16 weights in two shards: 100 000 values, about."""
    tensors = {
        name: array.astype(np.float16) for name, array in load_file(tiny_model / "model.safetensors").items()
    }
    names = sorted(tensors)
    shards = {f"model-{i}.safetensors": names[i::2] for i in range(2)}
    for file, held in shards.items():
        save_file({name: tensors[name] for name in held}, tmp_path / file)
    weight_map = {name: file for file, held in shards.items() for name in held}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    for file in ("config.json", "tokenizer.json"):
        (tmp_path / file).write_bytes((tiny_model / file).read_bytes())
    return tmp_path


@pytest.mark.parametrize(
    ("settings", "bytes_per_value"),
    [({}, 2), ({"dtype": "bfloat16"}, 2), ({"dtype": "float32"}, 4), ({"backend": "reference"}, 4)],
)
def test_weights_take_what_their_values_take_as_they_are_kept(
    tiny_model: Path, model: Path, settings: dict[str, str], bytes_per_value: int
) -> None:
    num_values = sum(array.size for array in load_file(tiny_model / "model.safetensors").values())
    config = EngineConfig(**settings)  # type: ignore[arg-type]
    for path in (model, tiny_model):  # float16, and float32 that becomes bfloat16
        needed = weight_bytes(path, config)
        assert bytes_per_value * num_values <= needed < bytes_per_value * num_values * 1.1


def test_pool_is_no_more_than_an_equal_part_of_half_of_the_limit(model: Path) -> None:
    config = EngineConfig(model=str(model))
    for num_models, pool_bytes in ((1, (LIMIT_BYTES - PROCESS_BYTES) // 2), (2, 256 * MIB), (4, 128 * MIB)):
        needs = needs_of([config] * num_models, LIMIT_BYTES)
        for need in needs:
            assert need.config.kv_cache_memory_bytes == pytest.approx(pool_bytes, abs=MIB)
            assert (
                need.num_bytes
                == PROCESS_BYTES + weight_bytes(model, config) + need.config.kv_cache_memory_bytes
            )
    [need] = needs_of([config], 64 * GIB)
    assert need.config.kv_cache_memory_bytes == GIB


def test_pool_of_a_given_size_is_taken_as_it_is(model: Path) -> None:
    config = EngineConfig(model=str(model), kv_cache_memory_bytes=7 * MIB)
    assert [need.config for need in needs_of([config, config], LIMIT_BYTES)] == [config, config]


def test_model_that_can_never_fit_is_told_with_both_numbers(model: Path) -> None:
    config = EngineConfig(model=str(model), kv_cache_memory_bytes=LIMIT_BYTES, served_model_name=("big",))
    with pytest.raises(ConfigError, match=r"^big needs about 1120 MiB.* 1024 MiB.* may take 1024 MiB in all"):
        needs_of([replace(config, kv_cache_memory_bytes=MIB), config], LIMIT_BYTES)


def header_of_shape(shape: str) -> bytes:
    header = f'{{"w": {{"dtype": "F32", "shape": {shape}, "data_offsets": [0, 4]}}}}'.encode()
    return len(header).to_bytes(8, "little") + header + bytes(4)


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda file: file.unlink(), "nor pytorch_model.bin"),
        (lambda file: file.write_bytes(b""), "model.safetensors is empty; download it again"),
        (lambda file: file.write_bytes(b"\xff" * 64), "is not a usable .safetensors file"),
        (lambda file: file.write_bytes(b"\x02" + bytes(7) + b"[]"), "is not a usable .safetensors file"),
        (lambda file: file.write_bytes(header_of_shape("[1e999, 4]")), "is not a usable .safetensors file"),
        (lambda file: file.write_bytes(header_of_shape("[-4, 4]")), "a tensor's shape does not fit the file"),
        (lambda file: file.write_bytes(header_of_shape("[1" + "0" * 400 + "]")), "does not fit the file"),
    ],
)
def test_files_that_cannot_be_read_are_named(
    tiny_model: Path, tmp_path: Path, spoil: Callable[[Path], object], error: str
) -> None:
    (tmp_path / "config.json").write_bytes((tiny_model / "config.json").read_bytes())
    (tmp_path / "model.safetensors").touch()
    spoil(tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=error) as caught:
        needs_of([EngineConfig(model=str(tmp_path))], LIMIT_BYTES)
    assert str(tmp_path) in str(caught.value)
