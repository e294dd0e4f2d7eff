"""The cpu backend: a program becomes a tape of our C++ kernels, and a step is one native call."""

import logging
from collections import ChainMap, defaultdict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from legato.backends.backend import ForwardInputs, KVLayout, check_kv_layout
from legato.backends.packed_cache import PackedCache
from legato.backends.packed_file import UnusableError
from legato.backends.packed_weights import (
    FORM,
    Matrix,
    PackedWeights,
    mapped_weights,
    matrices_of,
    vectors_of,
)
from legato.backends.rotation import rotation_table, still_table
from legato.backends.stored_weight import (
    AnyWeights,
    StoredWeight,
    as_stored,
    headers_of,
    num_values,
    stack,
    stored_bytes,
)
from legato.core.errors import ModelError
from legato.kernels.library import build_id
from legato.program.check import check_program, check_weights
from legato.program.ops import (
    Activate,
    Add,
    Attention,
    Embedding,
    Experts,
    Gate,
    Index,
    LayerNorm,
    Linear,
    Op,
    Program,
    RmsNorm,
    Rope,
    RopeConfig,
    Scale,
    Select,
    SoftCap,
    Split,
    Value,
    Weight,
    inputs_of,
    outputs_of,
    products_of,
)

if TYPE_CHECKING:
    from legato.kernels._native import Device, KVFormat, KVStore, PackedWeight, Tape

logger = logging.getLogger(__name__)

GROUPED = ("q4", "q5", "q6", "q8")
KV_FORMATS: dict[str, "KVFormat"] = {"float32": "f32", "bfloat16": "bf16", "int8": "i8"}
NOT_OF_WEIGHTS = ("max_tokens", "max_samples")  # options that change no packed byte

T = TypeVar("T", Rope, RmsNorm)


@dataclass(frozen=True, slots=True)
class CpuOptions:
    """How the cpu backend keeps what it is given.

    float_weights  what float weights become: "bf16" or "f32"
    is_quantized   quantised weights stay as they are, and their products round activations to 8 bits;
                   else they become float weights too
    max_tokens     of one step; max_samples likewise
    """

    float_weights: str
    is_quantized: bool
    max_tokens: int
    max_samples: int


class CpuBackend:
    """Compiles programs for a device: an instruction set and its threads.

    cache    where packed weights are kept from start to start; None keeps none
    keeping  done when what was packed is in the cache, or is known not to come there
    """

    name = "cpu"

    def __init__(self, device: "Device", options: CpuOptions, cache: PackedCache | None = None) -> None:
        self.device = device
        self.options = options
        self.keeping: Future[None] | None = None
        self._cache = cache

    def weight_bytes(self, weights: AnyWeights) -> int:
        if self.options.is_quantized:
            return stored_bytes(weights)
        return (4 if self.options.float_weights == "f32" else 2) * num_values(weights)

    def compile(self, program: Program, weights: AnyWeights, kv: KVLayout) -> "CpuProgram":
        check_program(program)
        check_weights(program, headers_of(weights))
        check_kv_layout(program, kv)
        store = self.device.kv_store(
            kv.num_layers,
            kv.num_pages,
            kv.page_size,
            kv.num_kv_heads,
            kv.head_dim,
            KV_FORMATS[kv.dtype],
        )
        packed = self._mapped(program) or self._packed(program, weights)
        tape = self.device.tape(store, self.options.max_tokens, self.options.max_samples)
        Recorder(program, tape, packed, _num_positions(program, kv)).record()
        return CpuProgram(self.device, tape, store)

    @property
    def _packing(self) -> dict[str, str]:
        """All that decides, beside the model's files, which bytes its packed weights are."""
        options = {each.name: str(getattr(self.options, each.name)) for each in fields(self.options)}
        of_weights = {name: value for name, value in options.items() if name not in NOT_OF_WEIGHTS}
        build = f"form {FORM}, extension {build_id()}"
        return of_weights | {"isa": self.device.isa, "build": build}

    def _mapped(self, program: Program) -> PackedWeights | None:
        arrays = self._cache.load(self._packing) if self._cache else None
        try:
            return mapped_weights(self.device, program, arrays) if arrays else None
        except UnusableError as error:
            logger.info("they are packed again: %s", error)
            return None

    def _packed(self, program: Program, weights: AnyWeights) -> PackedWeights:
        """Pack every matrix that is read, those of one product stacked; a few are in memory unpacked."""

        def pack(key: Matrix) -> dict[Matrix, "PackedWeight"]:
            kept = zip(key, self.kept([as_stored(weights[weight.name]) for weight in key]), strict=True)
            packed = {}
            for _, run in groupby(kept, lambda pair: pair[1].format):
                names, arrays = zip(*run, strict=True)
                matrix = stack(list(arrays))
                packed[names] = self.device.pack(matrix.format, matrix.values, matrix.scales, matrix.minimums)
            return packed

        with ThreadPoolExecutor(self.device.num_threads) as pool:
            packed = PackedWeights(
                dict(ChainMap(*pool.map(pack, matrices_of(program)))),
                {each: as_stored(weights[each.name]).float32() for each in vectors_of(program)},
            )
        if self._cache:
            writer = ThreadPoolExecutor(1, "packed-weights-writer")  # the interpreter's end waits for it
            self.keeping = writer.submit(self._cache.store, self._packing, packed.arrays())
        return packed

    def kept(self, weights: Sequence[StoredWeight]) -> list[StoredWeight]:
        """The matrices of one product as it reads them."""
        return [self._kept(weight) for weight in weights]

    def _kept(self, weight: StoredWeight) -> StoredWeight:
        if weight.format == self.options.float_weights:
            return weight
        if weight.format in GROUPED and self.options.is_quantized:
            return weight.with_half_scales()
        if self.options.float_weights == "f32":
            return StoredWeight("f32", weight.shape, weight.float32())
        return weight.bfloat16()


class CpuProgram:
    """A recorded tape with its K/V store."""

    def __init__(self, device: "Device", tape: "Tape", kv: "KVStore") -> None:
        self.device = device
        self._tape = tape
        self._kv = kv

    def forward(self, inputs: ForwardInputs) -> np.ndarray:
        """Compute a step: logits [num_samples, vocab_size] float32, the tape's own until the next step."""
        return self._tape.forward(
            inputs.token_ids,
            inputs.positions,
            inputs.query_starts,
            inputs.kv_lens,
            inputs.page_table,
            inputs.sample_rows,
        )

    def beat_into(self, pulse: np.ndarray) -> None:
        """Add one to pulse, [1] uint64, with each operation that is done."""
        self._tape.beat_into(pulse)


class Recorder:
    """Records a program on a tape, fusing as it goes.

    A split is never copied: attention reads q, k and v, and a gate its two parts, where the product before
    them wrote them; heads are normed there, in place. A product that is only made to be added to another
    value is added in place.
    """

    def __init__(
        self,
        program: Program,
        tape: "Tape",
        weights: PackedWeights,
        num_positions: int,
    ) -> None:
        self._program = program
        self._tape = tape
        self._weights = weights
        self._vectors = weights.vectors
        self._num_positions = num_positions
        self._numbers: dict[int, int] = {}  # index of a program's value -> number of the tape's
        self._makers = {out.index: op for op in program.ops for out in outputs_of(op)}
        self._readers: dict[int, list[Op]] = defaultdict(list)
        for op in program.ops:
            for x in inputs_of(op):
                self._readers[x.index].append(op)
        self._added = {op for op, reader in pairwise(program.ops) if self._is_added(op, reader)}
        self._normed: set[RmsNorm] = set()
        self._rotations: dict[RopeConfig | None, np.ndarray] = {}

    def record(self) -> None:
        for op in self._program.ops:
            if not self._is_left_to_reader(op):
                (out,) = outputs_of(op)
                self._numbers[out.index] = self._record(op)
        self._tape.finish(self._number(self._program.logits))

    def _is_added(self, op: Op, reader: Op) -> bool:
        """Whether the next operation adds the product that `op` is to a value that no other needs."""
        return (
            isinstance(op, Linear)
            and isinstance(reader, Add)
            and reader.b == op.out
            and self._readers[op.out.index] == [reader]
            and self._readers[reader.a.index][-1] == reader
            and reader.a not in (op.x, self._program.logits)
        )

    def _is_left_to_reader(self, op: Op) -> bool:
        if isinstance(op, RmsNorm):
            return isinstance(self._makers[op.x.index], Split)
        return isinstance(op, Split | Rope) or op in self._added

    def _record(self, op: Op) -> int:
        tape = self._tape
        match op:
            case Embedding():
                matrix = self._weights.matrices[(op.weight,)]
                return tape.embedding(matrix, op.index is Index.POSITIONS, op.offset)
            case Linear():
                return tape.linear(self._number(op.x), self._weights.sides(op.weights), self._bias(op))
            case Attention():
                return self._attention(op)
            case Gate():
                gate_up = self._whole_split((op.gate, op.up), op)
                return tape.activate(self._number(gate_up), op.function.value, is_gated=True)
            case Add():
                return self._add(op)
            case Experts():
                return self._experts(op)
            case RmsNorm() | LayerNorm() | Scale() | SoftCap() | Activate() | Select():
                return self._record_of_one(op, self._number(op.x))
        raise AssertionError(f"{type(op).__name__} is left to its reader")

    def _record_of_one(self, op: RmsNorm | LayerNorm | Scale | SoftCap | Activate | Select, x: int) -> int:
        """An operation that reads the rows of one value."""
        tape = self._tape
        match op:
            case RmsNorm():
                return tape.rms_norm(x, self._vector(op.weight), op.eps)
            case LayerNorm():
                return tape.layer_norm(x, self._vector(op.weight), self._vector(op.bias), op.eps)
            case Scale():
                return tape.scale(x, op.factor)
            case SoftCap():
                return tape.soft_cap(x, op.cap)
            case Activate():
                return tape.activate(x, op.function.value, is_gated=False)
            case Select():
                return tape.select(x)

    def _number(self, value: Value) -> int:
        try:
            return self._numbers[value.index]
        except KeyError:
            raise ModelError(f"the cpu backend cannot compute {value} of this program") from None

    def _vector(self, *weights: Weight) -> np.ndarray:
        """The weights one after the other."""
        return np.concatenate([self._vectors[weight] for weight in weights])

    def _bias(self, op: Linear) -> np.ndarray | None:
        return self._vector(*op.biases) if op.biases else None

    def _add(self, op: Add) -> int:
        product = self._makers[op.b.index]
        into = self._number(op.a)
        if not (isinstance(product, Linear) and product in self._added):
            return self._tape.add(into, self._number(op.b))
        self._tape.add_linear(
            into, self._number(product.x), self._weights.sides(product.weights), self._bias(product)
        )
        return into

    def _experts(self, op: Experts) -> int:
        sides = [self._weights.sides(product) for product in products_of(op)]
        gate_ups, downs = tuple(sides[: len(op.gates)]), tuple(sides[len(op.gates) :])
        x, scores = self._number(op.x), self._number(op.scores)
        return self._tape.experts(x, scores, gate_ups, downs, op.top_k, op.is_normalized, op.function.value)

    def _attention(self, op: Attention) -> int:
        q, q_turn = self._before(op.q, Rope)
        k, k_turn = self._before(op.k, Rope)
        rope = q_turn.rope if q_turn else None
        if rope != (k_turn.rope if k_turn else None):
            raise ModelError("the cpu backend's attention reads q and k that are turned by the same angles")
        q, q_norm = self._before(q, RmsNorm)
        k, k_norm = self._before(k, RmsNorm)
        qkv = self._number(self._whole_split((q, k, op.v), op))
        self._norm_heads(qkv, 0, q_norm)
        self._norm_heads(qkv, q.width, k_norm)
        cos, sin = self._rotation(rope, op.head_dim)
        return self._tape.attention(
            qkv, cos, sin, op.layer, op.num_heads, op.scale, op.window or 0, op.cap or 0.0
        )

    def _before(self, value: Value, kind: type[T]) -> tuple[Value, T | None]:
        """The value that an operation of this kind turned into `value`, and the operation, if it was one."""
        maker = self._makers[value.index]
        return (maker.x, maker) if isinstance(maker, kind) else (value, None)

    def _norm_heads(self, qkv: int, column: int, norm: RmsNorm | None) -> None:
        if norm is None or norm in self._normed:
            return
        if len(self._readers[norm.x.index]) > 1:
            raise ModelError(f"the cpu backend norms heads in place, but {norm.x} is read elsewhere too")
        (head_dim,) = norm.weight.shape
        num_heads = norm.x.width // head_dim
        self._tape.rms_norm_heads(qkv, column, num_heads, self._vector(norm.weight), norm.eps)
        self._normed.add(norm)

    def _rotation(self, rope: RopeConfig | None, head_dim: int) -> np.ndarray:
        if rope not in self._rotations:
            n = self._num_positions
            self._rotations[rope] = rotation_table(rope, n) if rope else still_table(head_dim, n)
        return self._rotations[rope]

    def _whole_split(self, parts: tuple[Value, ...], op: Op) -> Value:
        """The value that `parts` are all of, in order."""
        split = self._makers[parts[0].index]
        if not (isinstance(split, Split) and split.outs == parts):
            raise ModelError(f"the cpu backend reads the parts of one product in {type(op).__name__}")
        return split.x


def _num_positions(program: Program, kv: KVLayout) -> int:
    """How far a request may reach, by the K/V store and by what the program knows of positions."""
    known = [kv.num_tokens]
    for op in program.ops:
        if isinstance(op, Rope):
            known.append(op.rope.max_position)
        elif isinstance(op, Embedding) and op.index is Index.POSITIONS:
            known.append(op.weight.shape[0] - op.offset)
    return min(known)
