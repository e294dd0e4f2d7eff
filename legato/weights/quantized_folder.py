"""Weights that a directory holds quantised, by GPTQ, AWQ or compressed-tensors, as groups of 32."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from legato.backends.group_packing import pack_q4
from legato.backends.stored_weight import BITS, GROUP_LEN, StoredWeight, TensorHeader
from legato.core.errors import ModelError, brief
from legato.modelfiles.hf_config import read_json_if_present
from legato.weights.folder_tensors import TensorFile

WORD_LEN = 8  # numbers of 4 bits in an int32, the lowest bits first
AWQ_ORDER = np.array([0, 2, 4, 6, 1, 3, 5, 7])  # which of 8 outputs each of them is of
REMEDY = "take the model as its authors published it, with --quantization int8 or int4, or a .gguf file of it"

MIDDLE = 8  # of 4 bits
# What may be said of weights: int8 from -128 to 127 with 0 as 0; or 4 bits.
WHOLE_BYTES = {
    "num_bits": (8,), "type": ("int",), "symmetric": (True,), "strategy": ("channel", "tensor"),
}  # fmt: skip
PACKED = {
    "num_bits": (4,), "type": ("int",), "symmetric": (True, False), "strategy": ("group", "channel"),
}  # fmt: skip

Places = Mapping[str, TensorFile]


class Read(Protocol):
    """As TensorFile.read."""

    def __call__(self, name: str, rows: range | None = None) -> StoredWeight: ...


@dataclass(frozen=True, slots=True)
class ModuleHeader:
    """A weight [outputs, inputs] that several tensors make together."""

    type: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return int(math.prod(self.shape) * BITS["q4" if self.type == "Q4" else "q8"] / 8)


@dataclass(frozen=True, slots=True)
class QuantizedFolder:
    """A directory's tensors, where those that make a weight together are one under the weight's name.

    headers  of all tensors by name
    Raises ModelError, naming the setting or tensor, for a way of quantising that is not read.
    """

    headers: Mapping[str, TensorHeader]
    read: Read


def open_quantized(folder: Path, places: Places) -> QuantizedFolder:
    config = read_json_if_present(folder / "config.json").get("quantization_config")
    headers: dict[str, TensorHeader] = {name: file.tensors[name] for name, file in places.items()}
    if config is None:
        return QuantizedFolder(headers, lambda name, rows=None: places[name].read(name, rows))
    scheme = _scheme(config, str(folder / "config.json"))
    weights = {
        name.removesuffix(scheme.mark) + "weight": name.removesuffix(scheme.mark)
        for name in headers
        if name.endswith(scheme.mark)
    }
    for name, module in weights.items():
        parts = {part: headers.pop(module + part, None) for part in scheme.parts}
        path = places[module + scheme.mark].path
        if name in headers:
            raise ModelError(f"{path}: {name} is there twice, as floats and as {module}{scheme.mark}")
        headers[name] = scheme.header(module, parts, path)

    def read(name: str, rows: range | None = None) -> StoredWeight:
        if name not in weights:
            return places[name].read(name, rows)
        return scheme.read(headers[name].shape, Parts(weights[name], places))

    return QuantizedFolder(headers, read)


@dataclass(frozen=True, slots=True)
class Parts:
    """The tensors of one module."""

    module: str
    places: Places

    def integers(self, part: str) -> np.ndarray:
        return self.places[self.module + part].read_integers(self.module + part)

    def floats(self, part: str) -> np.ndarray:
        return self.places[self.module + part].read(self.module + part).float32()

    def __contains__(self, part: str) -> bool:
        return self.module + part in self.places


class FourBits:
    """GPTQ and AWQ: (q - zero) * scale, with a zero and a scale for each output in each group of inputs."""

    mark = "qweight"
    parts = ("qweight", "qzeros", "scales", "g_idx")

    def __init__(self, *, is_awq: bool, zero_offset: int) -> None:
        self._is_awq = is_awq
        self._zero_offset = zero_offset

    def header(self, module: str, parts: Mapping[str, TensorHeader | None], path: Path) -> ModuleHeader:
        words, zeros, scales = (parts[part] for part in ("qweight", "qzeros", "scales"))
        if words is None or zeros is None or scales is None or len(words.shape) != 2:
            raise ModelError(f"{path}: {module}qweight lacks its qzeros or scales")
        rows, columns = words.shape
        shape = (columns * WORD_LEN, rows) if self._is_awq else (columns, rows * WORD_LEN)
        outputs, inputs = shape
        num_groups = max(scales.shape[0] if scales.shape else 0, 1)
        places = (num_groups, outputs // WORD_LEN)
        fits = scales.shape == (num_groups, outputs) and zeros.shape == places and not outputs % WORD_LEN
        if not fits or words.type != "I32" or zeros.type != "I32":
            raise ModelError(f"{path}: {module}qweight, qzeros and scales do not belong together")
        _check_group_len(inputs, num_groups, f"{path}: {module}qweight")
        _check_order(parts["g_idx"], inputs, f"{path}: {module}g_idx")
        return ModuleHeader("Q4", shape)

    def read(self, shape: tuple[int, ...], parts: Parts) -> StoredWeight:
        q, scales = self._numbers(parts.integers("qweight")), parts.floats("scales")
        zeros = _nibbles(parts.integers("qzeros"))
        zeros = (_in_awq_order(zeros) if self._is_awq else zeros).reshape(scales.shape)
        zeros = zeros.astype(np.float32) + np.float32(self._zero_offset)
        return _grouped(parts, "g_idx", q, zeros, scales)

    def _numbers(self, words: np.ndarray) -> np.ndarray:
        """q [inputs, outputs], of words [inputs, outputs / 8] in AWQ, in GPTQ [inputs / 8, outputs]."""
        if self._is_awq:
            return _in_awq_order(_nibbles(words)).reshape(len(words), -1)
        return _nibbles(words).swapaxes(1, 2).reshape(-1, words.shape[1])


class EightBits:
    """compressed-tensors: q * scale, with a scale for each output or one for all.

    The inputs of a product are quantised in groups, as for any weights of 8 bits: finer than by the scheme.
    """

    mark = "weight_scale"
    parts = ("weight_scale", "input_scale", "weight")

    def header(self, module: str, parts: Mapping[str, TensorHeader | None], path: Path) -> ModuleHeader:
        weight, scales = parts["weight"], parts["weight_scale"]
        if weight is None or scales is None or weight.type != "I8" or len(weight.shape) != 2:
            raise ModelError(
                f"{path}: {module}weight is no matrix of I8, which its weight_scale would belong to"
            )
        if weight.shape[1] % GROUP_LEN:
            raise ModelError(f"{path}: {module}weight has inputs that are no multiple of {GROUP_LEN}")
        if math.prod(scales.shape) not in (1, weight.shape[0]):
            raise ModelError(f"{path}: {module}weight_scale is neither one for all nor one for each output")
        return ModuleHeader("Q8", weight.shape)

    def read(self, shape: tuple[int, ...], parts: Parts) -> StoredWeight:
        scales = parts.floats("weight_scale").reshape(-1, 1)
        of_groups = np.ascontiguousarray(np.broadcast_to(scales, (shape[0], shape[1] // GROUP_LEN)))
        return StoredWeight("q8", shape, parts.integers("weight"), of_groups)


class PackedFourBits:
    """compressed-tensors' pack-quantized: (q - zero) * scale, in groups of inputs or one for each output.

    Without zeros all are 8, the middle. Numbers of a row stand in order, eight to a word; zeros likewise, but
    those of eight outputs. A module must be as one of the config's groups says.
    """

    mark = "weight_packed"
    parts = ("weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx")

    def __init__(self, groups: Sequence[Mapping[str, Any]]) -> None:
        self._groups = groups

    def header(self, module: str, parts: Mapping[str, TensorHeader | None], path: Path) -> ModuleHeader:
        words, scales, zeros = (parts[f"weight_{part}"] for part in ("packed", "scale", "zero_point"))
        if words is None or scales is None or len(words.shape) != 2 or words.type != "I32":
            raise ModelError(f"{path}: {module}weight_packed lacks its weight_scale, or is no matrix of I32")
        outputs, inputs = words.shape[0], words.shape[1] * WORD_LEN
        num_groups = max(scales.shape[-1] if scales.shape else 0, 1)
        places = (-(-outputs // WORD_LEN), num_groups)
        fits = zeros is None or (zeros.type == "I32" and zeros.shape == places)
        if scales.shape != (outputs, num_groups) or not fits:
            raise ModelError(f"{path}: {module}weight_packed, scale and zero_point do not belong together")
        _check_group_len(inputs, num_groups, f"{path}: {module}weight_packed")
        self._check_described(inputs, num_groups, zeros is not None, f"{path}: {module}weight_packed")
        _check_order(parts["weight_g_idx"], inputs, f"{path}: {module}weight_g_idx")
        return ModuleHeader("Q4", (outputs, inputs))

    def _check_described(self, inputs: int, num_groups: int, has_zeros: bool, name: str) -> None:
        found = _described(inputs // num_groups, has_zeros)
        described = [
            _described(
                inputs if group["strategy"] == "channel" else group.get("group_size"), not group["symmetric"]
            )
            for group in self._groups
        ]
        if described and found not in described:
            wanted = brief(" or ".join(dict.fromkeys(described)))
            raise ModelError(f"{name} has {found}, and quantization_config.config_groups says {wanted}")

    def read(self, shape: tuple[int, ...], parts: Parts) -> StoredWeight:
        if "weight_shape" in parts and parts.integers("weight_shape").tolist() != list(shape):
            outputs, inputs = shape
            raise ModelError(f"tensor {parts.module}weight_shape is not the packed [{outputs}, {inputs}]")
        q = _nibbles(parts.integers("weight_packed")).reshape(shape).T
        scales = parts.floats("weight_scale").T
        zeros = np.full(scales.shape, MIDDLE, np.float32)
        if "weight_zero_point" in parts:
            eights = _nibbles(parts.integers("weight_zero_point")).swapaxes(1, 2)
            zeros = eights.reshape(-1, len(scales))[: shape[0]].T.astype(np.float32)
        return _grouped(parts, "weight_g_idx", q, zeros, scales)


def _described(group_len: object, has_zeros: bool) -> str:
    return f"groups of {group_len} inputs {'with' if has_zeros else 'without'} weight_zero_point"


def _check_group_len(inputs: int, num_groups: int, name: str) -> None:
    if inputs % num_groups or inputs // num_groups % GROUP_LEN:
        raise ModelError(f"{name} has groups whose inputs are no multiple of {GROUP_LEN}")


def _check_order(order: TensorHeader | None, inputs: int, name: str) -> None:
    if order is not None and (order.type != "I32" or order.shape != (inputs,)):
        raise ModelError(f"{name} does not give each of {inputs} inputs a group")


def _grouped(parts: Parts, order: str, q: np.ndarray, zeros: np.ndarray, scales: np.ndarray) -> StoredWeight:
    """Of inputs whose groups follow each other, or are in another order that a tensor gives."""
    if order in parts:
        groups = parts.integers(order)
        if not np.array_equal(groups, np.arange(len(q)) // (len(q) // len(scales))):
            return _out_of_order(parts.module + order, q, zeros, scales, groups)
    return as_q4(q, zeros, scales)


def _scheme(config: Any, source: str) -> FourBits | EightBits | PackedFourBits:
    if not isinstance(config, dict):
        raise ModelError(f"{source}: quantization_config is no object")

    def need(name: str, *known: Any) -> None:
        value = config.get(name)
        if value not in known:
            shown = " or ".join(repr(each) for each in known if each is not None)
            text = f"quantization_config.{name} is {value!r}, and only {shown} is read: {REMEDY}"
            raise ModelError(f"{source}: {brief(text)}")

    need("quant_method", "gptq", "awq", "compressed-tensors")
    if config["quant_method"] == "compressed-tensors":
        need("format", "int-quantized", "pack-quantized")
        need("transform_config", None, {})
        if config["format"] == "pack-quantized":
            return PackedFourBits(_checked_groups(config.get("config_groups"), PACKED, source))
        _checked_groups(config.get("config_groups"), WHOLE_BYTES, source)
        return EightBits()
    need("bits", 4)
    if config["quant_method"] == "awq":
        need("version", "gemm", "GEMM", None)
        need("zero_point", True, None)
        return FourBits(is_awq=True, zero_offset=0)
    need("checkpoint_format", "gptq", "gptq_v2", None)
    return FourBits(is_awq=False, zero_offset=0 if config.get("checkpoint_format") == "gptq_v2" else 1)


def _checked_groups(
    groups: Any, wanted: Mapping[str, tuple[Any, ...]], source: str
) -> list[Mapping[str, Any]]:
    """How the weights of each group are quantised. How inputs are is not asked."""
    checked = []
    if groups is not None and not isinstance(groups, dict):
        text = f"quantization_config.config_groups is {groups!r}, not an object: {REMEDY}"
        raise ModelError(f"{source}: {brief(text)}")
    for name, group in (groups or {}).items():
        weights: Any = group.get("weights") if isinstance(group, dict) else None
        for setting, known in wanted.items():
            value = weights.get(setting) if isinstance(weights, dict) else None
            if value not in known:
                text = f"{name}.weights.{setting} is {value!r}, and only {known[0]!r} is read: {REMEDY}"
                raise ModelError(f"{source}: quantization_config.config_groups.{brief(text)}")
        checked.append(weights)
    return checked


def as_q4(q: np.ndarray, zeros: np.ndarray, scales: np.ndarray) -> StoredWeight:
    """q uint8 [inputs, outputs]; zeros, scales float32 [groups, outputs], of a multiple of 32 inputs."""
    inputs, outputs = q.shape
    values = pack_q4(np.ascontiguousarray(q.T).reshape(-1, GROUP_LEN)).reshape(outputs, -1)
    repeats = inputs // len(scales) // GROUP_LEN
    of_groups, minimums = (np.repeat(each.T, repeats, axis=1) for each in (scales, -zeros * scales))
    return StoredWeight("q4", (outputs, inputs), values, of_groups, minimums)


def _out_of_order(
    order: str, q: np.ndarray, zeros: np.ndarray, scales: np.ndarray, groups: np.ndarray
) -> StoredWeight:
    """Neighbours of different groups have no format that keeps them in 4 bits: they become halves."""
    if groups.min() < 0 or groups.max() >= len(scales):
        raise ModelError(f"tensor {order} names a group that there is not")
    values = (q.astype(np.float32) - zeros[groups]) * scales[groups]
    halves = np.ascontiguousarray(values.T.astype(np.float16)).view(np.uint16)
    return StoredWeight("f16", halves.shape, halves)


def _nibbles(words: np.ndarray) -> np.ndarray:
    """int32 [rows, columns] to uint8 [rows, columns, 8], the lowest bits first."""
    packed = np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape, 4)
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*words.shape, WORD_LEN)


def _in_awq_order(numbers: np.ndarray) -> np.ndarray:
    ordered = np.empty_like(numbers)
    ordered[..., AWQ_ORDER] = numbers
    return ordered
