"""How a family's weights lie in a model's files: what each is called there, and how it is to be turned."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

LAYER, EXPERT = re.compile(r"\blayers\.(\d+)\."), re.compile(r"\bexperts\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """What a file calls a weight, and what is to be done with it.

    is_stacked      it is [experts, outputs, inputs], and the weight the matrix of one expert in it
    share           of the rows of that matrix, where those of several weights lie there, one below the other:
                    which of how many
    expert          of the weight, if it is of one
    is_transposed   a matrix lies [inputs, outputs]
    is_interleaved  the two halves of the rows of each head are interleaved, as llama.cpp rotates them
    adds_one        a norm multiplies by 1 + what is stored
    """

    name: str
    is_stacked: bool = False
    share: tuple[int, int] = (0, 1)
    expert: int = 0
    is_transposed: bool = False
    is_interleaved: bool = False
    adds_one: bool = False


@dataclass(frozen=True, slots=True)
class StoredTensors:
    """The tensors of a file format by the names that programs give weights.

    `{i}` in names is a layer, `{e}` an expert.

    others    ways in which they may lie instead: what differs from `tensors` in each
    head_dim  of interleaved rows
    prefixes  what names may begin with: the first is what `tensors` has; a file may have another instead.
              One that ends with a dot and the first means that all names lie below another
    harmless  parts of names that a file may hold beside: nothing that a program needs
    """

    tensors: Mapping[str, StoredTensor]
    head_dim: int
    prefixes: tuple[str, ...] = ("",)
    harmless: tuple[str, ...] = ()
    others: tuple[Mapping[str, StoredTensor], ...] = ()

    def ways(self) -> Iterator["StoredTensors"]:
        """These, and each of the others."""
        for other in ({}, *self.others):
            yield replace(self, tensors={**self.tensors, **other}, others=())

    def of(self, weight_name: str, prefix: str) -> StoredTensor:
        """Where the weight of that name is in a file whose names have this prefix."""
        layer, expert = LAYER.search(weight_name), EXPERT.search(weight_name)
        tensor = self.tensors[EXPERT.sub("experts.{e}.", LAYER.sub("layers.{i}.", weight_name))]
        name, usual = tensor.name, self.prefixes[0]
        for mark, match in (("{i}", layer), ("{e}", expert)):
            name = name.replace(mark, match[1] if match else "")
        if usual and name.startswith(usual):
            name = prefix + name.removeprefix(usual)
        elif usual and prefix.endswith(f".{usual}"):
            name = prefix.removesuffix(usual) + name
        return replace(tensor, name=name, expert=int(expert[1]) if expert else 0)
