"""Safetensors files: values as the official library writes them, and hostile headers refused."""

import json
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from legato.core.errors import ModelError
from legato.weights.safetensors_file import SafetensorsFile
from tests.model_builders import safetensors_bytes


def write(folder: Path, data: bytes) -> Path:
    path = folder / "model.safetensors"
    path.write_bytes(data)
    return path


def describe(shape: Any, begin: Any, end: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_values_are_those_of_the_official_library(tmp_path: Path, dtype: torch.dtype) -> None:
    values = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)).to(dtype)
    values[0, :3] = torch.tensor([float("inf"), -0.0, 1e-7])
    safetensors.torch.save_file(
        {"x": values, "y": torch.ones(3)}, tmp_path / "model.safetensors", metadata={"format": "pt"}
    )

    file = SafetensorsFile(tmp_path / "model.safetensors")

    assert set(file.tensors) == {"x", "y"}
    x = file.read("x").float32()
    assert x.dtype == np.float32
    assert x.flags.c_contiguous
    assert x.tobytes() == values.float().numpy().tobytes()


def test_data_need_not_be_aligned(tmp_path: Path) -> None:
    header = json.dumps({"x": describe([2], 0, 8)}).encode()
    header += b" " * (-len(header) % 8 + 1)
    file = SafetensorsFile(write(tmp_path, safetensors_bytes(header, struct.pack("<2f", 1, 2))))
    assert file.read("x").float32().tolist() == [1, 2]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "is empty; download it again"),
        (b"\x01\x02", "header"),
        (struct.pack("<Q", 2**63) + b"{}", f"claims {2**63} bytes"),
        (struct.pack("<Q", 99_999_999) + b"{}", "cut off at byte 10, in its header; download it again"),
        (safetensors_bytes(b"{not json"), "usable"),
        (safetensors_bytes(b"\xff\xfe{}"), "usable"),
        (safetensors_bytes(b"[" * 200_000), "usable"),
        (safetensors_bytes([1]), "no JSON object"),
        (safetensors_bytes({"x": 1}), "'x' is not described"),
        (safetensors_bytes({"x": {"dtype": "F32"}}), "'x' lacks"),
        (safetensors_bytes({"x": describe([-1], 0, 4)}, bytes(4)), "'x' lacks"),
        (safetensors_bytes({"x": describe([True], 0, 4)}, bytes(4)), "'x' lacks"),
        (safetensors_bytes({"x": describe([1], 4, 0)}, bytes(4)), "cannot take -4 bytes"),
        (safetensors_bytes({"x": describe([2], 0, 4)}, bytes(4)), "cannot take 4 bytes"),
        (safetensors_bytes({"x": describe([2**62, 2**62], 0, 4)}, bytes(4)), "a shape that no tensor has"),
        (safetensors_bytes({"x": describe([2], 0, 8)}, bytes(7)), "beyond the end"),
        (safetensors_bytes({"x": describe([1], 2**60, 2**60 + 4)}, bytes(4)), "beyond the end"),
        (safetensors_bytes({"x": describe([2], 0, 8), "y": describe([1], 4, 8)}, bytes(8)), "overlap"),
        (safetensors_bytes(b'{"x": {}, "x": {}}'), "occurs twice"),
    ],
)  # fmt: skip
def test_hostile_file_is_refused_by_name(tmp_path: Path, data: bytes, complaint: str) -> None:
    path = write(tmp_path, data)
    with pytest.raises(ModelError, match=complaint) as refusal:
        SafetensorsFile(path)
    assert str(path) in str(refusal.value)


GOOD = safetensors_bytes({"x": describe([2], 0, 8), "y": describe([2, 1], 8, 12, "BF16")}, bytes(12))


@given(at=st.integers(0, len(GOOD) - 1), byte=st.integers(0, 255), cut=st.integers(0, len(GOOD)))
def test_damaged_file_gives_tensors_inside_it_or_a_model_error(
    tmp_path_factory: pytest.TempPathFactory, at: int, byte: int, cut: int
) -> None:
    data = bytearray(GOOD)
    data[at] = byte
    path = write(tmp_path_factory.getbasetemp(), bytes(data[:cut]))
    with suppress(ModelError):
        file = SafetensorsFile(path)
        assert all(t.offset + t.num_bytes <= cut for t in file.tensors.values())


def test_other_dtype_is_named_when_it_is_asked_for(tmp_path: Path) -> None:
    file = SafetensorsFile(
        write(tmp_path, safetensors_bytes({"x": describe([4], 0, 4, "F8_E4M3")}, bytes(4)))
    )
    with pytest.raises(ModelError, match=r"'x' is F8_E4M3; F32, F16 and BF16"):
        file.read("x")
