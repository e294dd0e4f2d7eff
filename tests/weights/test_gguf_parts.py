"""GGUF files in several parts: read as one model from the first, and each part is held to its place."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from legato.core.errors import ModelError
from legato.modelfiles.catalog import served_name
from legato.modelfiles.fingerprint import weights_files
from legato.modelfiles.model_config import read_model_config
from legato.weights.gguf_tensors import GgufFile
from tests.model_builders import TINY_GGUF, gguf_bytes

COUNT = 3


def part(folder: Path, number: int, count: int = COUNT) -> Path:
    return folder / f"m-{number:05}-of-{count:05}.gguf"


def write_part(folder: Path, number: int, name: str, **changes: Any) -> None:
    metadata = {"split.no": number - 1, "split.count": COUNT} | changes
    if number == 1:
        metadata |= TINY_GGUF
    tensor = ((16, 8), "F32", np.full((16, 8), number, np.float32).tobytes())
    part(folder, number).write_bytes(gguf_bytes(metadata, {name: tensor}))


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    for number, name in enumerate(("token_embd.weight", "output.weight", "other.weight"), start=1):
        write_part(tmp_path, number, name)
    return tmp_path


def test_parts_are_read_as_one_model_from_the_first(parts: Path) -> None:
    file = GgufFile(part(parts, 1))
    assert {name: file.read(name).values[0, 0] for name in file.tensors} == {
        "token_embd.weight": 1,
        "output.weight": 2,
        "other.weight": 3,
    }
    assert read_model_config(part(parts, 1)).vocab_size == 16
    assert weights_files(part(parts, 1)) == [part(parts, number) for number in (1, 2, 3)]
    assert served_name(str(part(parts, 1))) == "m"


FAULTS: dict[str, tuple[Callable[[Path], Any], int, str]] = {
    "missing": (lambda folder: part(folder, 2).unlink(), 1, r"m-00002-of-00003\.gguf is missing: m-00001"),
    "not the first": (lambda folder: None, 2, r"not the first of its parts: name m-00001-of-00003\.gguf"),
    "exchanged": (
        lambda folder: part(folder, 3).write_bytes(part(folder, 2).read_bytes()),
        1,
        r"m-00003-of-00003\.gguf does not say that it is part 3 of 3",
    ),
    "another model's": (
        lambda folder: write_part(folder, 2, "output.weight", **{"split.count": 4}),
        1,
        r"m-00002-of-00003\.gguf does not say",
    ),
    "a tensor twice": (
        lambda folder: write_part(folder, 3, "output.weight"),
        1,
        r"m-00003-of-00003\.gguf: tensor 'output\.weight' is in another part too",
    ),
    "cut off": (
        lambda folder: part(folder, 3).write_bytes(part(folder, 3).read_bytes()[:-64]),
        1,
        r"m-00003-of-00003\.gguf .*goes beyond the end",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_part_at_fault_is_named(parts: Path, fault: str) -> None:
    spoil, number, complaint = FAULTS[fault]
    spoil(parts)
    with pytest.raises(ModelError, match=complaint):
        GgufFile(part(parts, number))


def test_whole_model_under_the_name_of_a_part_is_told_to_take_another(tmp_path: Path) -> None:
    whole = tmp_path / "m-00001-of-00002.gguf"
    whole.write_bytes(gguf_bytes({}, {}))
    with pytest.raises(
        ModelError, match=r"is a whole model under the name of a part: rename it, to m\.gguf$"
    ):
        GgufFile(whole)


def test_part_under_another_name_is_told_to_keep_its_own(parts: Path) -> None:
    renamed = part(parts, 1).rename(parts / "model.gguf")
    with pytest.raises(ModelError, match=r"model\.gguf is one of 3 parts, which have to keep their names"):
        GgufFile(renamed)


def test_number_of_parts_that_is_none_is_told_of_in_short(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(gguf_bytes({"split.count": "x" * 3000}, {}))
    with pytest.raises(ModelError, match=r"m\.gguf is one of 'x+… parts"):
        GgufFile(tmp_path / "m.gguf")
