"""Tensors as torch.save pickles them, read by an interpreter that compares names and calls none."""

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from legato.core.errors import brief

MAX_PICKLE_BYTES = 2**24  # a thousand tensors take 200 KB
MAX_OPERATIONS = 2**20  # a tensor takes 50 at most
MAX_NAME_BYTES = 256
MAX_DIMS = 8
MAX_SIZE = 2**48  # of one dimension, of a storage

# Names that a pickle may hold. A storage's element has the type that a .safetensors file would name.
ORDERED_DICT = "collections.OrderedDict"
REBUILD_TENSOR = "torch._utils._rebuild_tensor_v2"
REBUILD_PARAMETER = "torch._utils._rebuild_parameter"
STORAGES = {
    "torch.FloatStorage": "F32",
    "torch.HalfStorage": "F16",
    "torch.BFloat16Storage": "BF16",
    "torch.DoubleStorage": "F64",
    "torch.LongStorage": "I64",
    "torch.IntStorage": "I32",
    "torch.ShortStorage": "I16",
    "torch.CharStorage": "I8",
    "torch.ByteStorage": "U8",
    "torch.BoolStorage": "BOOL",
}
ITEM_BYTES = {
    **{"F32": 4, "F16": 2, "BF16": 2, "F64": 8},
    **{"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1},
}


@dataclass(frozen=True, slots=True)
class Name:
    """Something that a pickle names, such as a class: it stands for itself and is never looked up."""

    name: str


@dataclass(frozen=True, slots=True)
class Storage:
    """Numbers that lie in a file under a key, outside the pickle."""

    key: str
    type: str
    num_values: int


@dataclass(frozen=True, slots=True)
class PickledTensor:
    """A view of a storage; offset and strides count values."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def is_contiguous(self) -> bool:
        wanted = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != wanted:
                return False
            wanted *= size
        return True


class Mark:
    """Where the parts of a tuple, a list or a dict begin on the stack."""


MARK = Mark()


class TensorPickle:
    """Reads one pickle from `data[at:]`: texts, numbers, tuples, lists, dicts, storages and tensors.

    at        where the next one would begin
    storages  those that it spoke of, by their keys
    Raises ValueError for whatever else it asks for, by name.
    """

    def __init__(self, data: Any, at: int = 0) -> None:
        self._data = data
        self.at = at
        self._end = min(len(data), at + MAX_PICKLE_BYTES)
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self.storages: dict[str, Storage] = {}

    def read(self) -> Any:
        for _ in range(MAX_OPERATIONS):
            operation = self._take(1)[0]
            if operation == STOP:
                return self._pop()
            act = OPERATIONS.get(operation)
            if act is None:
                raise ValueError(f"its pickle has the operation {operation:#04x}, which no tensor needs")
            act(self)
        raise ValueError(f"its pickle has more than {MAX_OPERATIONS} operations")

    def _take(self, num_bytes: int) -> bytes:
        start, self.at = self.at, self.at + num_bytes
        if self.at > self._end:
            raise ValueError("its pickle has no end: a download was cut off, or it holds more than tensors")
        return bytes(self._data[start : self.at])

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _line(self) -> str:
        end = self._data.find(b"\n", self.at, min(self._end, self.at + MAX_NAME_BYTES))
        if end < 0:
            raise ValueError("a name in its pickle has no end")
        return self._take(end + 1 - self.at)[:-1].decode()

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _pop(self) -> Any:
        if not self._stack or self._stack[-1] is MARK:
            raise ValueError("its pickle takes what it has not put there")
        return self._stack.pop()

    def _pop_to_mark(self) -> list[Any]:
        for start in range(len(self._stack) - 1, -1, -1):
            if self._stack[start] is MARK:
                values = self._stack[start + 1 :]
                del self._stack[start:]
                return values
        raise ValueError("its pickle takes what it has not put there")

    def skip(self, num_bytes: int) -> None:
        self._take(num_bytes)

    def push_number(self, form: str) -> None:
        self._push(self._number(form))

    def push_long(self) -> None:
        self._push(int.from_bytes(self._take(self._number("<B")), "little", signed=True))

    def push_text(self, length_form: str) -> None:
        self._push(self._take(self._number(length_form)).decode())

    def push_name(self) -> None:
        self._push_known(self._line(), self._line())

    def push_stacked_name(self) -> None:
        name, module = self._pop(), self._pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise ValueError("a name in its pickle is no text")
        self._push_known(module, name)

    def _push_known(self, module: str, name: str) -> None:
        full = f"{module}.{name}"
        if full not in (ORDERED_DICT, REBUILD_TENSOR, REBUILD_PARAMETER, *STORAGES):
            raise ValueError(f"it asks for {brief(full)}, which is none of the names that tensors need")
        self._push(Name(full))

    def refuse_instance(self) -> None:
        self._push_known(self._line(), self._line())
        raise ValueError("it asks for an object of a class, which no tensor needs")

    def push_tuple(self, length: int) -> None:
        values = [self._pop() for _ in range(length)]
        self._push(tuple(reversed(values)))

    def push_marked_tuple(self) -> None:
        self._push(tuple(self._pop_to_mark()))

    def append(self, values: list[Any]) -> None:
        target = self._peek(list)
        target.extend(values)

    def set_items(self, items: list[Any]) -> None:
        target = self._peek(dict)
        if len(items) % 2 or not all(isinstance(key, str) for key in items[::2]):
            raise ValueError("a dict in its pickle has keys that are no texts")
        target.update(zip(items[::2], items[1::2], strict=True))

    def _peek(self, kind: type) -> Any:
        if not self._stack or type(self._stack[-1]) is not kind:
            raise ValueError(f"its pickle adds to what is no {kind.__name__}")
        return self._stack[-1]

    def remember(self, place: int | None = None) -> None:
        if not self._stack or self._stack[-1] is MARK:
            raise ValueError("its pickle keeps what it has not put there")
        self._memo[len(self._memo) if place is None else place] = self._stack[-1]

    def recall(self, form: str) -> None:
        place = self._number(form)
        if place not in self._memo:
            raise ValueError("its pickle repeats what it has not kept")
        self._push(self._memo[place])

    def push_storage(self) -> None:
        storage = _storage(self._pop())
        if self.storages.setdefault(storage.key, storage) != storage:
            raise ValueError(f"it describes storage {storage.key!r} in two ways")
        self._push(storage)

    def rebuild(self) -> None:
        arguments, made = self._pop(), self._pop()
        if not isinstance(made, Name) or not isinstance(arguments, tuple):
            raise ValueError("it calls what is no name")
        self._push(_rebuilt(made.name, arguments))

    def skip_attributes(self) -> None:
        """A state_dict is an ordered dict with an attribute that says which version wrote it."""
        if not isinstance(self._pop(), dict):
            raise ValueError("it sets attributes that are no dict")
        self._peek(dict)


def _storage(described: Any) -> Storage:
    """Of ("storage", type, key, location, number of values), in older files with a sixth part: None."""
    if not isinstance(described, tuple) or len(described) not in (5, 6) or described[5:] not in ((), (None,)):
        raise ValueError("a storage in its pickle is not described as torch.save describes it")
    kind, type_name, key, _, num_values = described[:5]
    storage_type = STORAGES.get(type_name.name) if isinstance(type_name, Name) else None
    if kind != "storage" or storage_type is None or not isinstance(key, str) or not _is_size(num_values):
        raise ValueError("a storage in its pickle is not described as torch.save describes it")
    return Storage(key, storage_type, num_values)


def _rebuilt(name: str, arguments: tuple[Any, ...]) -> Any:
    match name, arguments:
        case "collections.OrderedDict", ():
            return {}
        case "torch._utils._rebuild_tensor_v2", (Storage() as storage, offset, shape, strides, *_):
            return _tensor(storage, offset, shape, strides)
        case "torch._utils._rebuild_parameter", (PickledTensor() as tensor, *_):
            return tensor
    raise ValueError(f"it calls {name} with what torch.save does not give it")


def _tensor(storage: Storage, offset: Any, shape: Any, strides: Any) -> PickledTensor:
    if not _is_size(offset) or not _is_sizes(shape) or not _is_sizes(strides) or len(shape) != len(strides):
        raise ValueError("a tensor in its pickle lacks a proper offset, shape and strides")
    num_values = math.prod(shape)
    if num_values > storage.num_values:  # strides of 0 would make much of little
        raise ValueError(f"a tensor of shape {list(shape)} has more values than its storage")
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if num_values and last >= storage.num_values:
        raise ValueError(f"a tensor of shape {list(shape)} goes beyond its storage")
    return PickledTensor(storage, offset, shape, strides)


def _is_size(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= MAX_SIZE


def _is_sizes(value: Any) -> TypeGuard[tuple[int, ...]]:
    return isinstance(value, tuple) and len(value) <= MAX_DIMS and all(map(_is_size, value))


# Operations by their bytes. Source: the documentation of Python's pickletools.
STOP = ord(".")
OPERATIONS: Mapping[int, Callable[[TensorPickle], None]] = {
    0x80: lambda p: p.skip(1),  # the protocol
    0x95: lambda p: p.skip(8),  # the length of a frame
    ord("("): lambda p: p._push(MARK),
    ord("N"): lambda p: p._push(None),
    0x88: lambda p: p._push(True),
    0x89: lambda p: p._push(False),
    ord("J"): lambda p: p.push_number("<i"),
    ord("K"): lambda p: p.push_number("<B"),
    ord("M"): lambda p: p.push_number("<H"),
    ord("G"): lambda p: p.push_number(">d"),
    0x8A: lambda p: p.push_long(),
    ord("X"): lambda p: p.push_text("<I"),
    0x8C: lambda p: p.push_text("<B"),
    ord("c"): lambda p: p.push_name(),
    0x93: lambda p: p.push_stacked_name(),
    ord("i"): lambda p: p.refuse_instance(),
    ord("]"): lambda p: p._push([]),
    ord("}"): lambda p: p._push({}),
    ord(")"): lambda p: p._push(()),
    0x85: lambda p: p.push_tuple(1),
    0x86: lambda p: p.push_tuple(2),
    0x87: lambda p: p.push_tuple(3),
    ord("t"): lambda p: p.push_marked_tuple(),
    ord("a"): lambda p: p.append([p._pop()]),
    ord("e"): lambda p: p.append(p._pop_to_mark()),
    ord("s"): lambda p: p.set_items([p._pop(), p._pop()][::-1]),
    ord("u"): lambda p: p.set_items(p._pop_to_mark()),
    ord("q"): lambda p: p.remember(p._number("<B")),
    ord("r"): lambda p: p.remember(p._number("<I")),
    0x94: lambda p: p.remember(),
    ord("h"): lambda p: p.recall("<B"),
    ord("j"): lambda p: p.recall("<I"),
    ord("Q"): lambda p: p.push_storage(),
    ord("R"): lambda p: p.rebuild(),
    ord("b"): lambda p: p.skip_attributes(),
}
