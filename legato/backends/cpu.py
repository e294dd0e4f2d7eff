"""The cpu backend: a program becomes a tape of our C++ kernels, and a step is one native call."""

import logging
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING

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
from legato.backends.rotation import rotation_table
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
from legato.core.own_thread import in_own_thread
from legato.kernels.library import build_id
from legato.program.check import check_program, check_weights
from legato.program.ops import (
    Add,
    Attention,
    Embedding,
    Linear,
    Op,
    Program,
    RmsNorm,
    Rope,
    Select,
    SiluMul,
    Split,
    Value,
    inputs_of,
    outputs_of,
)

if TYPE_CHECKING:
    from legato.kernels._native import Device, KVStore, PackedWeight, Tape

logger = logging.getLogger(__name__)

GROUPED = ("q4", "q8")
NOT_OF_WEIGHTS = ("kv_is_bf16", "max_tokens", "max_samples")  # options that change no packed byte


@dataclass(frozen=True, slots=True)
class CpuOptions:
    """How the cpu backend keeps what it is given.

    float_weights  what float weights become: "bf16" or "f32"
    is_quantized   quantised weights stay as they are, and their products round activations to 8 bits;
                   else they become float weights too
    kv_is_bf16     keys and values are kept in bfloat16, else in float32
    max_tokens     of one step; max_samples likewise
    """

    float_weights: str
    is_quantized: bool
    kv_is_bf16: bool
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
            kv.num_layers, kv.num_pages, kv.page_size, kv.num_kv_heads, kv.head_dim, self.options.kv_is_bf16
        )
        packed = self._mapped(program) or self._packed(program, weights)
        tape = self.device.tape(store, self.options.max_tokens, self.options.max_samples)
        Recorder(program, tape, packed, min(kv.num_tokens, _max_position(program))).record()
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

        def pack(key: Matrix) -> "PackedWeight":
            matrix = self._stacked([self._kept(as_stored(weights[weight.name])) for weight in key])
            return self.device.pack(matrix.format, matrix.values, matrix.scales, matrix.minimums)

        matrices = matrices_of(program)
        with ThreadPoolExecutor(self.device.num_threads) as pool:
            packed = PackedWeights(
                dict(zip(matrices, pool.map(pack, matrices), strict=True)),
                {each: as_stored(weights[each.name]).float32() for each in vectors_of(program)},
            )
        if self._cache:
            store = partial(self._cache.store, self._packing, packed.arrays())
            self.keeping = in_own_thread("packed-weights-writer", store)
        return packed

    def _stacked(self, matrices: list[StoredWeight]) -> StoredWeight:
        """One matrix; parts that are stored in different formats become floats."""
        if len({matrix.format for matrix in matrices}) > 1:
            matrices = [self._kept(as_stored(matrix.float32())) for matrix in matrices]
        return stack(matrices)

    def _kept(self, weight: StoredWeight) -> StoredWeight:
        """The weight in the format in which products read it."""
        if weight.format == self.options.float_weights:
            return weight
        if weight.format in GROUPED and self.options.is_quantized:
            return weight
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


class Recorder:
    """Records a program on a tape, fusing as it goes.

    A split is never copied: attention reads q, k and v, and SwiGLU its gate and its up, where the product
    before them wrote them. A product that is only added to another value is added in place.
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
        self._numbers: dict[int, int] = {}  # index of a program's value -> number of the tape's
        self._makers = {out.index: op for op in program.ops for out in outputs_of(op)}
        self._num_uses = Counter(x.index for op in program.ops for x in inputs_of(op))
        self._rotations = {
            rope: rotation_table(rope, num_positions)
            for rope in {op.rope for op in program.ops if isinstance(op, Rope)}
        }

    def record(self) -> None:
        for op in self._program.ops:
            self._record(op)
        self._tape.finish(self._number(self._program.logits))

    def _record(self, op: Op) -> None:
        match op:
            case Embedding():
                self._numbers[op.out.index] = self._tape.embedding(self._weights.matrices[(op.weight,)])
            case RmsNorm():
                weight = self._weights.vectors[op.weight]
                self._numbers[op.out.index] = self._tape.rms_norm(self._number(op.x), weight, op.eps)
            case Linear() if not self._is_added(op):
                weights = self._weights.matrices[op.weights]
                self._numbers[op.out.index] = self._tape.linear(self._number(op.x), weights)
            case Linear() | Split() | Rope():
                pass  # recorded with what reads it
            case Attention():
                self._numbers[op.out.index] = self._attention(op)
            case SiluMul():
                gate_up = self._whole_split((op.gate, op.up), op)
                self._numbers[op.out.index] = self._tape.silu_mul(self._number(gate_up))
            case Add():
                self._add(op)
            case Select():
                self._numbers[op.out.index] = self._tape.select(self._number(op.x))

    def _number(self, value: Value) -> int:
        try:
            return self._numbers[value.index]
        except KeyError:
            raise ModelError(f"the cpu backend cannot compute {value} of this program") from None

    def _is_added(self, op: Linear) -> bool:
        """Whether the product's only reader adds it to another value."""
        readers = [reader for reader in self._program.ops if op.out in inputs_of(reader)]
        return len(readers) == 1 and isinstance(readers[0], Add) and readers[0].b == op.out

    def _add(self, op: Add) -> None:
        product = self._makers[op.b.index]
        if not (isinstance(product, Linear) and self._is_added(product)):
            raise ModelError(f"the cpu backend adds products alone, and {op.b} is none")
        into = self._number(op.a)
        self._tape.add_linear(into, self._number(product.x), self._weights.matrices[product.weights])
        self._numbers[op.out.index] = into

    def _attention(self, op: Attention) -> int:
        turned_q, turned_k = self._makers[op.q.index], self._makers[op.k.index]
        if not (isinstance(turned_q, Rope) and isinstance(turned_k, Rope) and turned_q.rope == turned_k.rope):
            raise ModelError("the cpu backend's attention reads q and k that are turned by the same angles")
        qkv = self._whole_split((turned_q.x, turned_k.x, op.v), op)
        cos, sin = self._rotations[turned_q.rope]
        return self._tape.attention(self._number(qkv), cos, sin, op.layer, op.num_heads, op.scale)

    def _whole_split(self, parts: tuple[Value, ...], op: Op) -> Value:
        """The value that `parts` are all of, in order."""
        split = self._makers[parts[0].index]
        if not (isinstance(split, Split) and split.outs == parts):
            raise ModelError(f"the cpu backend reads the parts of one product in {type(op).__name__}")
        return split.x


def _max_position(program: Program) -> int:
    return max((op.rope.max_position for op in program.ops if isinstance(op, Rope)), default=0)
