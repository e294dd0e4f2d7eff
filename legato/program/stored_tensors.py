"""How a family's weights lie in a model's files: what each is called there, and how it is to be turned."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

LAYER = re.compile(r"\blayers\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """What a file calls a weight, and what is to be done with it.

    is_transposed   a matrix lies [inputs, outputs]
    is_interleaved  the two halves of the rows of each head are interleaved, as llama.cpp rotates them
    adds_one        a norm multiplies by 1 + what is stored
    """

    name: str
    is_transposed: bool = False
    is_interleaved: bool = False
    adds_one: bool = False


@dataclass(frozen=True, slots=True)
class StoredTensors:
    """The tensors of a file format by the names that programs give weights; `{i}` is a layer in both.

    head_dim  of interleaved rows
    prefixes  what names may begin with: the first is what `tensors` has; a file may have another instead.
              One that ends with a dot and the first means that all names lie below another
    harmless  parts of names that a file may hold beside: nothing that a program needs
    """

    tensors: Mapping[str, StoredTensor]
    head_dim: int
    prefixes: tuple[str, ...] = ("",)
    harmless: tuple[str, ...] = ()

    def of(self, weight_name: str, prefix: str) -> StoredTensor:
        """Where the weight of that name is in a file whose names have this prefix."""
        match = LAYER.search(weight_name)
        layer = match[1] if match else ""
        tensor = self.tensors[LAYER.sub("layers.{i}.", weight_name)]
        name, usual = tensor.name.replace("{i}", layer), self.prefixes[0]
        if usual and name.startswith(usual):
            name = prefix + name.removeprefix(usual)
        elif usual and prefix.endswith(f".{usual}"):
            name = prefix.removesuffix(usual) + name
        return StoredTensor(name, tensor.is_transposed, tensor.is_interleaved, tensor.adds_one)
