"""The cpu backend: a program becomes a tape of our C++ kernels, and a step is one native call."""

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from legato.backends.backend import ForwardInputs, KVLayout, check_kv_layout
from legato.backends.rotation import rotation_table
from legato.backends.stored_weight import StoredWeight, as_stored, stack
from legato.core.errors import ModelError
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
    Weight,
    inputs_of,
    outputs_of,
)

if TYPE_CHECKING:
    from legato.kernels._native import Device, KVStore, PackedWeight, Tape

GROUPED = ("q4", "q8")


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
    """Compiles programs for a device: an instruction set and its threads."""

    name = "cpu"

    def __init__(self, device: "Device", options: CpuOptions) -> None:
        self.device = device
        self.options = options

    def compile(
        self, program: Program, weights: Mapping[str, StoredWeight | np.ndarray], kv: KVLayout
    ) -> "CpuProgram":
        stored = {name: as_stored(weight) for name, weight in weights.items()}
        check_program(program)
        check_weights(program, stored)
        check_kv_layout(program, kv)
        store = self.device.kv_store(
            kv.num_layers, kv.num_pages, kv.page_size, kv.num_kv_heads, kv.head_dim, self.options.kv_is_bf16
        )
        packed = self._pack(program, stored)
        tape = self.device.tape(store, self.options.max_tokens, self.options.max_samples)
        Recorder(program, tape, packed, stored, min(kv.num_tokens, _max_position(program))).record()
        return CpuProgram(self.device, tape, store)

    def _pack(
        self, program: Program, stored: Mapping[str, StoredWeight]
    ) -> dict[tuple[Weight, ...], "PackedWeight"]:
        """Every matrix that is read, those of one product stacked; each is packed once."""
        wanted = {
            (op.weight,) if isinstance(op, Embedding) else op.weights
            for op in program.ops
            if isinstance(op, Embedding | Linear)
        }

        def pack(weights: tuple[Weight, ...]) -> "PackedWeight":
            matrix = stack(self.kept([stored[weight.name] for weight in weights]))
            return self.device.pack(matrix.format, matrix.values, matrix.scales, matrix.minimums)

        with ThreadPoolExecutor(self.device.num_threads) as pool:
            return dict(zip(wanted, pool.map(pack, wanted), strict=True))

    def kept(self, weights: Sequence[StoredWeight]) -> list[StoredWeight]:
        """The matrices of one product as it reads them; those of different formats become floats."""
        kept = [self._kept(weight) for weight in weights]
        if len({weight.format for weight in kept}) > 1:
            kept = [self._kept(as_stored(weight.float32())) for weight in kept]
        return kept

    def _kept(self, weight: StoredWeight) -> StoredWeight:
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
        packed: Mapping[tuple[Weight, ...], "PackedWeight"],
        stored: Mapping[str, StoredWeight],
        num_positions: int,
    ) -> None:
        self._program = program
        self._tape = tape
        self._packed = packed
        self._stored = stored
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
                self._numbers[op.out.index] = self._tape.embedding(self._packed[(op.weight,)])
            case RmsNorm():
                weight = np.ascontiguousarray(self._stored[op.weight.name].float32())
                self._numbers[op.out.index] = self._tape.rms_norm(self._number(op.x), weight, op.eps)
            case Linear() if not self._is_added(op):
                self._numbers[op.out.index] = self._tape.linear(self._number(op.x), self._packed[op.weights])
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
        self._tape.add_linear(into, self._number(product.x), self._packed[product.weights])
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
