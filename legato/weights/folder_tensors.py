"""The tensors of a directory in Hugging Face layout, in one file or several, of either kind."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from legato.backends.stored_weight import StoredWeight, TensorHeader
from legato.core.errors import ModelError, brief
from legato.modelfiles.weight_files import SAFETENSORS, absence, files_of, layout_of, read_weight_map
from legato.weights.safetensors_file import SafetensorsFile
from legato.weights.torch_bin import TorchBinFile


class TensorFile(Protocol):
    """A file whose tensors are read one by one."""

    path: Path

    @property
    def tensors(self) -> Mapping[str, TensorHeader]: ...

    def read(self, name: str, rows: range | None = None) -> StoredWeight:
        """A tensor, or the matrix of some rows of it: rows are all that lies along the last dimension."""
        ...

    def read_integers(self, name: str) -> np.ndarray: ...


def open_folder(folder: Path) -> dict[str, TensorFile]:
    """Tensor name -> the file that holds it: .safetensors files where there are any, else pytorch_model.bin.

    Raises ModelError when there are no such files, or the index and the shards do not agree.
    """
    layout = layout_of(folder)
    if layout is None:
        raise ModelError(absence(folder))
    kind: type[SafetensorsFile | TorchBinFile] = SafetensorsFile if layout is SAFETENSORS else TorchBinFile
    index = folder / layout.index
    places: dict[str, TensorFile] = {}
    for path in files_of(folder, layout):
        shard = kind(path)
        if twice := places.keys() & shard.tensors.keys():
            raise ModelError(f"{path}: tensor {min(twice)!r} is in another shard too")
        places.update(dict.fromkeys(shard.tensors, shard))
    if index.is_file() and (missing := read_weight_map(index).keys() - places.keys()):
        name = brief(repr(min(missing)))
        raise ModelError(f"{index} promises tensor {name}, which no shard holds")
    return places
