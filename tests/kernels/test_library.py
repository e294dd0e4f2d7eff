"""Finding the extension, choosing the instruction set, and what the door refuses."""

import importlib.util
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from legato.core.errors import ConfigError
from legato.kernels import library
from legato.kernels.library import ISA_NAMES, NoKernels, instruction_sets, open_device
from legato.kernels.threads import num_usable_cores
from tests.kernels.conftest import open_or_fail
from tests.kernels.tapes import quantize, random_rows

if TYPE_CHECKING:
    from legato.kernels._native import Device

# instruction sets


def test_the_best_set_is_taken_and_plain_code_always_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEGATO_ISA", raising=False)
    assert open_or_fail(1).isa == instruction_sets()[0]
    assert instruction_sets()[-1] == "scalar"


def test_the_variable_forces_a_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEGATO_ISA", "scalar")
    assert open_or_fail(1).isa == "scalar"


def test_a_set_that_cannot_run_here_is_refused_with_those_that_can(monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = (set(ISA_NAMES) - set(instruction_sets())).pop()  # no machine has both AVX2 and NEON
    monkeypatch.setenv("LEGATO_ISA", foreign)
    with pytest.raises(
        ConfigError, match=rf"LEGATO_ISA={foreign}: this machine cannot run .*possible here: .*scalar"
    ):
        open_device(1)


def test_a_set_that_there_is_not_is_refused_with_all_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEGATO_ISA", "avx9")
    with pytest.raises(ConfigError, match=r"LEGATO_ISA=avx9: there is no .* avx512, avx2, neon, scalar"):
        open_device(1)
    assert set(instruction_sets()) <= set(ISA_NAMES)
    with pytest.raises(ValueError, match=r'"avx9"; possible: .*scalar'):
        type(open_or_fail(1, "scalar"))("avx9", 1)


def test_threads_are_the_usable_cores_unless_said() -> None:
    default = open_device()
    assert not isinstance(default, NoKernels)
    assert default.num_threads == num_usable_cores()
    assert open_or_fail(3).num_threads == 3


# the extension's place


@pytest.fixture
def no_extension_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, library.EXTENSION)
    monkeypatch.delenv(library.PATH_VARIABLE, raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)


@pytest.mark.usefixtures("no_extension_here")
def test_without_an_extension_the_reason_and_the_remedy_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "files", lambda _: [])
    missing = open_device(1)
    assert isinstance(missing, NoKernels)
    assert "C++ compiler" in missing.reason
    assert "pip install" in missing.reason
    assert instruction_sets() == ()


@pytest.mark.usefixtures("no_extension_here")
def test_an_extension_that_cannot_be_loaded_is_told_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "_native.so"
    broken.write_bytes(b"no library")
    monkeypatch.setenv(library.PATH_VARIABLE, str(broken))
    missing = open_device(1)
    assert isinstance(missing, NoKernels)
    assert f"cannot be loaded: {broken}" in missing.reason


def test_a_checkout_finds_the_extension_among_the_installed_files(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["legato/__init__.py", "legato/kernels/_native.pyi", "legato/kernels/_native.cpython-311.so"]
    files = [metadata.PackagePath(name) for name in names]
    for file in files:
        file.dist = _DistributionAt("/site-packages")  # type: ignore[assignment]
    monkeypatch.setattr(metadata, "files", lambda _: files)
    assert library._installed_extension() == Path("/site-packages/legato/kernels/_native.cpython-311.so")


class _DistributionAt:
    def __init__(self, root: str) -> None:
        self.root = root

    def locate_file(self, path: metadata.PackagePath) -> Path:
        return Path(self.root) / path


# weights


def test_a_packed_weight_can_be_kept_and_used_again(device: "Device") -> None:
    packed = device.pack("q8", *quantize(random_rows(40, 64)))
    kept = np.zeros(len(packed.data) + 64, np.uint8)
    start = -kept.ctypes.data % 64
    kept[start : start + len(packed.data)] = packed.data

    again = device.packed("q8", 40, 64, kept[start : start + len(packed.data)])

    assert (again.format, again.outputs, again.inputs) == ("q8", 40, 64)
    assert again.data.tobytes() == packed.data.tobytes()
    with pytest.raises(ValueError, match="data: must be 64-byte aligned"):
        device.packed("q8", 40, 64, kept[start + 1 : start + 1 + len(packed.data)])
    with pytest.raises(ValueError, match=r"data: .* entries, must be"):
        device.packed("q8", 72, 64, packed.data)


def test_packed_bytes_live_as_long_as_their_view(device: "Device") -> None:
    data = device.pack("f32", np.ones((8, 8), np.float32)).data
    assert data.view(np.float32).max() == 1
    assert not data.flags.writeable


MATRIX = np.ones((4, 64), np.float32)
BYTES = np.ones((4, 64), np.int8)
SCALES = np.ones((4, 2), np.float32)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (("f64", MATRIX), ValueError, 'no weight format "f64"'),
        (("f32", MATRIX[0]), ValueError, "values: must be a matrix"),
        (("f32", MATRIX[:0]), ValueError, "not empty"),
        (("bf16", MATRIX), TypeError, "wrong dtype for bf16"),
        (("f32", MATRIX.astype(np.float64)), TypeError, "wrong dtype for f32"),
        (("f32", MATRIX[:, ::2]), TypeError, "incompatible function arguments"),
        (("f32", MATRIX, SCALES), ValueError, "scales: not used by this format"),
        (("q8", BYTES), ValueError, "scales: missing"),
        (("q8", BYTES, SCALES[:3]), ValueError, r"scales: must be \[4, 2\]"),
        (("q8", BYTES[:, :40].copy(), SCALES), ValueError, "inputs: 40, must be a multiple of 32"),
        (("q4", BYTES.view(np.uint8), np.ones((4, 4), np.float32)), ValueError, "minimums: missing"),
        (("i8", BYTES, SCALES), ValueError, r"scales: must be \[4, 1\]"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    arguments: tuple[object, ...], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        open_or_fail(1).pack(*arguments)  # type: ignore[arg-type]
