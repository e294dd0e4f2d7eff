"""Files of torch.save: the tensors that torch itself reads from them, and nothing in them is run."""

import io
import pickle
import pickletools
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from legato.core.errors import ModelError
from legato.weights import tensor_pickle
from legato.weights.torch_bin import TorchBinFile

both_formats = pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])


def save(folder: Path, value: Any, *, is_zip: bool = True, **options: Any) -> Path:
    path = folder / "pytorch_model.bin"
    torch.save(value, path, _use_new_zipfile_serialization=is_zip, **options)
    return path


def make_tensors() -> dict[str, Any]:
    """A state_dict with what real ones have: Parameters, views, ties, buffers of other types, attributes."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5))
    tensors = model.state_dict(keep_vars=True)
    base = torch.randn(4, 10)
    tensors["tied"] = tensors["0.weight"]
    tensors["rows"], tensors["columns"], tensors["turned"] = base[1:3], base[:, 2:7], base.T
    tensors["half"] = torch.tensor([1.5, float("inf"), -0.0]).half()
    tensors["bfloat16"] = torch.randn(3, 3).bfloat16()[1:].T
    tensors["empty"], tensors["scalar"] = torch.empty(0, 3), torch.tensor(2.5)
    tensors["step"] = 7
    return tensors


@pytest.mark.oracle
@both_formats
@pytest.mark.parametrize("protocol", [2, 4])
def test_tensors_are_those_of_torch(tmp_path: Path, is_zip: bool, protocol: int) -> None:
    path = save(tmp_path, make_tensors(), is_zip=is_zip, pickle_protocol=protocol)
    expected = torch.load(path, weights_only=False)
    del expected["step"]

    file = TorchBinFile(path)

    assert file.tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        assert file.tensors[name].shape == tuple(tensor.shape)
        assert file.tensors[name].num_bytes == tensor.nbytes
        if not tensor.is_floating_point():
            continue
        ours = file.read(name).float32()
        assert ours.flags.c_contiguous
        assert ours.tobytes() == tensor.detach().float().numpy().tobytes(), name


def test_other_dtype_is_named_when_it_is_asked_for(tmp_path: Path) -> None:
    file = TorchBinFile(save(tmp_path, {"mask": torch.ones(2, dtype=torch.bool)}))
    with pytest.raises(ModelError, match=r"'mask' is BOOL; F32, F16 and BF16"):
        file.read("mask")


def zip_around(pickled: bytes, storages: dict[str, bytes] | None = None, **options: Any) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", **options) as archive:
        archive.writestr("archive/data.pkl", pickled)
        for key, numbers in (storages or {}).items():
            archive.writestr(f"archive/data/{key}", numbers)
    return written.getvalue()


def legacy_around(pickled: bytes) -> bytes:
    magic, version = 0x1950A86A20F9469CFC6C, 1001
    machine = {"protocol_version": version, "little_endian": True}
    return b"".join(pickle.dumps(each, 2) for each in (magic, version, machine)) + pickled


class Call:
    """Pickles as a call."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.called = function, arguments

    def __reduce__(self) -> Any:
        return self.called


def attacks(marker: Path) -> dict[str, tuple[bytes, str]]:
    """Pickles that leave a marker where they are run, and what they want."""
    import os

    command = f"touch {marker}"
    text = f"X{struct.pack('<I', len(command)).decode()}{command}".encode()
    system = os.system
    wanted = rf"{system.__module__}\.system"
    return {
        "REDUCE": (pickle.dumps(Call(system, command), 2), wanted),
        "REDUCE inside a dict": (pickle.dumps({"a": [Call(system, command)]}, 2), wanted),
        "STACK_GLOBAL": (pickle.dumps(Call(system, command), 4), wanted),
        "GLOBAL eval": (pickle.dumps(Call(eval, "1"), 2), r"\.eval"),
        "GLOBAL alone": (b"cos\nsystem\n.", r"os\.system"),
        "GLOBAL of a part": (b"ctorch\nFloatStorage.__init__.__globals__\n.", r"FloatStorage\.__init__"),
        "INST": (b"(" + text + b"ios\nsystem\n.", r"os\.system"),
        "INST of a known name": (b"(icollections\nOrderedDict\n.", "an object of a class"),
        "OBJ": (b"(cos\nsystem\n" + text + b"o.", r"os\.system"),
        "NEWOBJ": (b"ccollections\nOrderedDict\n)\x81.", "operation 0x81"),
        "BUILD on a name": (b"ccollections\nOrderedDict\n}b.", "adds to what is no dict"),
        "BUILD with a class": (b"}ccollections\nOrderedDict\nb.", "attributes that are no dict"),
        "EXT1": (b"\x82\x01.", "operation 0x82"),
        "persistent name": (b"Pos.system\n.", "operation 0x50"),
        "call of a text": (b"X\x01\x00\x00\x00a)R.", "calls what is no name"),
        "call with more": (b"ccollections\nOrderedDict\n]\x85R.", "does not give it"),
        "call of a storage": (b"ctorch\nFloatStorage\n)R.", r"calls torch\.FloatStorage"),
    }


@both_formats
@pytest.mark.parametrize("attack", attacks(Path("x")))
def test_file_that_tries_to_run_code_is_refused_by_what_it_wants(
    tmp_path: Path, attack: str, is_zip: bool
) -> None:
    marker = tmp_path / "marker"
    pickled, wanted = attacks(marker)[attack]
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(zip_around(pickled) if is_zip else legacy_around(pickled))
    with pytest.raises(ModelError, match=wanted) as refusal:
        TorchBinFile(path)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not marker.exists()


def pickle_of(path: Path) -> bytes:
    with zipfile.ZipFile(path) as archive:
        return archive.read("pytorch_model/data.pkl")


def test_pickle_that_ends_after_any_operation_is_refused(tmp_path: Path) -> None:
    whole = pickle_of(save(tmp_path, {"a": torch.nn.Parameter(torch.ones(2))}))
    path = tmp_path / "cut.bin"
    ends = [position for _, _, position in pickletools.genops(whole) if position]
    assert len(ends) >= 50
    for end in ends:
        for wrap in (zip_around, legacy_around):
            path.write_bytes(wrap(whole[:end]))
            with pytest.raises(ModelError, match=r"cut\.bin .*has no end"):
                TorchBinFile(path)


@pytest.mark.parametrize(("kept_len", "complaint"), [(0, "is empty"), (1000, "is not whole, or no file")])
def test_file_whose_download_was_cut_off_is_to_be_downloaded_again(
    tmp_path: Path, kept_len: int, complaint: str
) -> None:
    path = save(tmp_path, {"a": torch.zeros(4000)})
    path.write_bytes(path.read_bytes()[:kept_len])
    with pytest.raises(ModelError, match=rf"pytorch_model\.bin {complaint}.*; download it again$"):
        TorchBinFile(path)


@both_formats
def test_file_that_is_cut_off_anywhere_is_refused(tmp_path: Path, is_zip: bool) -> None:
    path = save(tmp_path, {"a": torch.ones(2), "b": torch.ones(300)}, is_zip=is_zip)
    whole = path.read_bytes()
    for length in range(0, len(whole) - 1, 7):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"pytorch_model\.bin"):
            TorchBinFile(path)


def view_pickle(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    *,
    offset: int = 0,
    num_values: int = 4,
    dtype: str = "Float",
) -> bytes:
    """{"x": a view of storage "0"}, as torch.save describes it."""

    def mark(values: tuple[Any, ...]) -> bytes:
        return b"(" + b"".join(pickle.dumps(each, 2)[2:-1] for each in values) + b"t"

    storage = (
        b"(X\x07\x00\x00\x00storagectorch\n" + f"{dtype}Storage\n".encode()
        + b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpu" + pickle.dumps(num_values, 2)[2:-1] + b"tQ"
    )  # fmt: skip
    described = storage + pickle.dumps(offset, 2)[2:-1] + mark(shape) + mark(strides)
    return b"}X\x01\x00\x00\x00xctorch._utils\n_rebuild_tensor_v2\n(" + described + b"\x89}tRs."


def test_described_view_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(zip_around(view_pickle((2,), (2,), offset=1), {"0": struct.pack("<4f", 1, 2, 3, 4)}))
    assert TorchBinFile(path).read("x").float32().tolist() == [2, 4]


@pytest.mark.parametrize(
    ("pickled", "complaint"),
    [
        (view_pickle((4,), (1,), offset=1), "goes beyond its storage"),
        (view_pickle((2, 2), (3, 1)), "goes beyond its storage"),
        (view_pickle((2,), (-1,), offset=3), "proper offset, shape and strides"),
        (view_pickle((2,), (1,), offset=-1), "proper offset, shape and strides"),
        (view_pickle((-2,), (1,)), "proper offset, shape and strides"),
        (view_pickle((2,), (1, 1)), "proper offset, shape and strides"),
        (view_pickle((True,), (1,)), "proper offset, shape and strides"),
        (view_pickle((2**40,), (0,)), "more values than its storage"),
        (view_pickle((1,) * 9, (1,) * 9), "proper offset, shape and strides"),
        (view_pickle((4,), (1,), num_values=5), "does not have as many bytes"),
        (view_pickle((4,), (1,), dtype="Double"), "does not have as many bytes"),
        (view_pickle((4,), (1,), dtype="Quantized"), r"torch\.QuantizedStorage"),
        (b"}.", "no tensors"),
        (b"].", "no dict of tensors"),
        (b"(" * 3 + b".", "not put there"),
        (b"h\x07.", "has not kept"),
        (b"}K\x01K\x02s.", "keys that are no texts"),
        (b"\x8a\xff.", "has no end"),
        (b"X\xff\xff\xff\x7fabc.", "has no end"),
    ],
)  # fmt: skip
def test_pickle_that_does_not_fit_its_file_is_refused(tmp_path: Path, pickled: bytes, complaint: str) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(zip_around(pickled, {"0": bytes(16)}))
    with pytest.raises(ModelError, match=complaint):
        TorchBinFile(path)


def test_pickle_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_pickle, "MAX_OPERATIONS", 100)
    path = tmp_path / "x.bin"
    path.write_bytes(zip_around(b"]" * 101 + b"."))
    with pytest.raises(ModelError, match="more than 100 operations"):
        TorchBinFile(path)


def test_compressed_archive_is_refused_without_unpacking_it(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(
        zip_around(view_pickle((4,), (1,)), {"0": bytes(2**20)}, compression=zipfile.ZIP_DEFLATED)
    )
    with pytest.raises(ModelError, match="compressed"):
        TorchBinFile(path)


def test_storages_that_overlap_are_refused(tmp_path: Path) -> None:
    """Two names in the table of contents for the same bytes."""
    path = save(tmp_path, {"a": torch.zeros(4), "b": torch.zeros(4)})
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        first = archive.getinfo("pytorch_model/data/0").header_offset
    entry = data.index(b"PK\x01\x02")
    while b"data/1" not in data[entry + 46 : entry + 70]:
        entry = data.index(b"PK\x01\x02", entry + 4)
    data[entry + 42 : entry + 46] = struct.pack("<I", first)
    path.write_bytes(data)
    with pytest.raises(ModelError, match="overlap"):
        TorchBinFile(path)


def test_big_endian_numbers_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path, {"a": torch.zeros(4)})
    path.write_bytes(path.read_bytes().replace(b"little", b"big   "))
    with pytest.raises(ModelError, match="big-endian"):
        TorchBinFile(path)


def test_reading_one_tensor_takes_its_own_memory_alone(tmp_path: Path) -> None:
    import tracemalloc

    path = save(tmp_path, {"large": torch.zeros(2**20), "small": torch.ones(8)})
    tracemalloc.start()
    try:
        assert np.array_equal(TorchBinFile(path).read("small").values, np.ones(8, np.float32))
        assert tracemalloc.get_traced_memory()[1] < 2**19
    finally:
        tracemalloc.stop()
