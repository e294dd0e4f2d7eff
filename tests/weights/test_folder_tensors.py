"""Directories of weights: one file or shards, safetensors before pytorch_model.bin, and nothing else."""

import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from legato.core.errors import ModelError
from legato.weights.folder_tensors import open_folder
from tests.model_builders import safetensors_bytes, write_json


def describe(shape: Any, begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}


def write_shards(folder: Path, weight_map: dict[str, str]) -> None:
    for number, name in enumerate("xy", start=1):
        data = safetensors_bytes({name: describe([1], 0, 4)}, struct.pack("<f", number))
        (folder / f"model-{number}.safetensors").write_bytes(data)
    write_json(folder / "model.safetensors.index.json", {"weight_map": weight_map})


def test_shards_are_read_by_their_index(tmp_path: Path) -> None:
    write_shards(tmp_path, {"x": "model-1.safetensors", "y": "model-2.safetensors"})
    places = open_folder(tmp_path)
    assert {name: file.read(name).float32().item() for name, file in places.items()} == {"x": 1, "y": 2}


@pytest.mark.parametrize(
    ("weight_map", "complaint"),
    [
        ({"x": "model-1.safetensors", "z": "model-2.safetensors"}, "promises tensor 'z'"),
        ({"x": "model-3.safetensors"}, "cannot read .*model-3"),
        ({"x": "../model-1.safetensors"}, "in the same folder"),
        ({"x": "/etc/passwd"}, "in the same folder"),
        ({"x": 1}, "in the same folder"),
        ({"x": "\0"}, "in the same folder"),
        ({"x": "x" * 300}, "in the same folder"),
        ([], "no readable weight_map"),
    ],
)
def test_index_that_does_not_fit_is_refused(tmp_path: Path, weight_map: Any, complaint: str) -> None:
    write_shards(tmp_path, weight_map)
    with pytest.raises(ModelError, match=complaint):
        open_folder(tmp_path)


@pytest.mark.parametrize("name", ["model.pt", "consolidated.00.pth", "last.ckpt", "adapter_model.bin"])
def test_other_pickled_files_are_refused_with_the_remedy(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"cos\nsystem\n(S'touch /tmp/x'\ntR.")
    with pytest.raises(ModelError, match=rf"but {name}: .*convert it to safetensors"):
        open_folder(tmp_path)


def test_bin_files_are_read_where_no_safetensors_are(tmp_path: Path) -> None:
    torch.save({"x": torch.ones(2)}, tmp_path / "pytorch_model.bin")
    assert open_folder(tmp_path)["x"].read("x").float32().tolist() == [1, 1]
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes({"x": describe([1], 0, 4)}, bytes(4)))
    assert open_folder(tmp_path)["x"].read("x").float32().tolist() == [0]


def test_shards_of_bin_files_are_read_by_their_index(tmp_path: Path) -> None:
    for number, name in enumerate("xy", start=1):
        torch.save({name: torch.tensor([float(number)])}, tmp_path / f"pytorch_model-{number}.bin")
    weight_map = {"x": "pytorch_model-1.bin", "y": "pytorch_model-2.bin"}
    write_json(tmp_path / "pytorch_model.bin.index.json", {"weight_map": weight_map})
    places = open_folder(tmp_path)
    assert {name: file.read(name).float32().item() for name, file in places.items()} == {"x": 1, "y": 2}
    (tmp_path / "pytorch_model-2.bin").unlink()
    with pytest.raises(ModelError, match=r"cannot read .*pytorch_model-2\.bin"):
        open_folder(tmp_path)


def test_folder_without_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"neither model\.safetensors nor"):
        open_folder(tmp_path)
