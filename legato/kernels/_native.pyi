"""What the compiled extension offers; `legato.kernels.library.open_device` opens it or says why it is absent.

Arrays are numpy arrays, C-contiguous, of exactly the dtype said: a TypeError otherwise. A ValueError names
the shape or index that does not fit. Calls that compute let go of the interpreter lock.
"""

from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

WeightFormat = Literal["f32", "bf16", "f16", "q4", "q5", "q6", "q8", "i8"]
KVFormat = Literal["f32", "bf16", "i8"]
Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]  # of program.ops

def instruction_sets() -> list[str]:
    """Names of the sets that this processor and system can run, best first; the last is "scalar"."""

@final
class Device:
    """An instruction set and the threads that compute with it; whatever is made from it keeps it alive."""

    def __init__(self, isa: str, num_threads: int) -> None:
        """ValueError, listing the possible names, when this machine cannot run `isa`."""

    @property
    def isa(self) -> str: ...
    @property
    def num_threads(self) -> int: ...
    def pack(
        self,
        format: WeightFormat,
        values: NDArray[np.float32] | NDArray[np.uint16] | NDArray[np.uint8] | NDArray[np.int8],
        scales: NDArray[np.float32] | None = None,
        minimums: NDArray[np.float32] | None = None,
    ) -> PackedWeight:
        """Copy a matrix [outputs, inputs] into the panels that the kernels read.

        f32   values float32
        bf16  values uint16, bfloat16 bits
        f16   values uint16, IEEE half bits
        q4    q * scale + minimum: values uint8 [outputs, inputs / 32 * 16] as group_packing.pack_q4 makes
              them; scales, minimums [outputs, inputs / 32]
        q5    the same with values [outputs, inputs / 32 * 20] of pack_q5
        q6    q * (scale * multiplier): values uint8 [outputs, inputs / 32 * 26] of pack_q6; scales as for q4
        q8    values int8: q * scale; scales as for q4
        i8    values int8: q * scale; scales [outputs]
        """

    def packed(
        self, format: WeightFormat, outputs: int, inputs: int, data: NDArray[np.uint8]
    ) -> PackedWeight:
        """A weight from `PackedWeight.data` of the same instruction set, say mapped from a file.

        data  [bytes], 64-byte aligned; kept alive, not copied
        """

    def kv_store(
        self,
        num_layers: int,
        num_pages: int,
        page_size: int,
        num_kv_heads: int,
        head_dim: int,
        format: KVFormat,
    ) -> KVStore:
        """Keys and values of all layers, zero; memory is taken when a page is first written.

        format    f32, bf16, or i8: int8 with a float32 scale for each head of a token
        head_dim  even, at most 1024
        """

    def tape(self, kv: KVStore, max_tokens: int, max_samples: int) -> Tape:
        """An empty tape for steps of at most so many tokens and samples."""

    def probe_read(self, data: NDArray[np.float32]) -> float:
        """The sum of data [size], read by all threads: its time tells how fast memory can be read."""

    def probe_multiply(self, format: WeightFormat, rounds: int) -> int:
        """Multiply in registers with all threads, as products with weights of the format do.

        Gives the number of multiply-adds: by the time, the most that such products can reach.
        """

    def sample_rows(
        self,
        logits: NDArray[np.float32],
        temperatures: NDArray[np.float32],
        top_ks: NDArray[np.int32],
        top_ps: NDArray[np.float32],
        min_ps: NDArray[np.float32],
        numbers: NDArray[np.float64],
        added_starts: NDArray[np.int32],
        added_ids: NDArray[np.int32],
        added_values: NDArray[np.float32],
        penalties: NDArray[np.float64],
        seen_starts: NDArray[np.int32],
        seen_ids: NDArray[np.int32],
        seen_counts: NDArray[np.int32],
        num_logprobs: NDArray[np.int32],
        masks: NDArray[np.uint32],
        mask_rows: NDArray[np.int32],
    ) -> tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.int32], NDArray[np.float64]]:
        """Choose a token for each row of logits [rows, vocab], which are overwritten: see sampling.py.

        Gives tokens [rows], the logprob of each [rows], and the most likely ids and their logprobs, each
        [rows, largest of num_logprobs]; 0 where a row's num_logprobs, -1 for none, does not ask for them.
        """

    def score_rows(
        self,
        logits: NDArray[np.float32],
        token_ids: NDArray[np.int32],
        num_logprobs: NDArray[np.int32],
    ) -> tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.float64]]:
        """Logprobs of a token in each row of logits [rows, vocab]; see sampling.py.

        Gives the token's [rows], NaN where the row's logits are not all finite, and the most likely ids and
        their logprobs as sample_rows() does.
        """

@final
class PackedWeight:
    """A matrix in the panels of one instruction set."""

    @property
    def format(self) -> WeightFormat: ...
    @property
    def outputs(self) -> int: ...
    @property
    def inputs(self) -> int: ...
    @property
    def data(self) -> NDArray[np.uint8]:
        """The packed bytes, a read-only view: to be kept on disk for `Device.packed`."""

@final
class KVStore:
    """Keys and values, each [num_layers, num_pages, page_size, num_kv_heads, head_dim]."""

    @property
    def num_bytes(self) -> int:
        """Of address space, keys and values together; what was never written takes no memory."""

@final
class Tape:
    """Operations with their buffers, recorded once, replayed in one call a step.

    An operation takes the numbers of the values it reads and gives the number of the one it writes; a value
    is float32 [rows, width], with a row for each token or, from `select` on, for each sample. Values whose
    lifetimes do not meet share memory.
    """

    def embedding(self, weight: PackedWeight, by_position: bool = False, offset: int = 0) -> int:
        """A row of `weight` for each token of the step: that of its id, or of its position, + offset."""

    def rms_norm(self, x: int, weight: NDArray[np.float32], eps: float) -> int:
        """Norm each row, or each of its heads if these are as wide as `weight`."""

    def rms_norm_heads(
        self, x: int, column: int, num_heads: int, weight: NDArray[np.float32], eps: float
    ) -> None:
        """Norm each of the heads, as wide as `weight`, that stand in x from `column` on: in place."""

    def layer_norm(
        self, x: int, weight: NDArray[np.float32], bias: NDArray[np.float32], eps: float
    ) -> int: ...
    def linear(
        self,
        x: int,
        weight: PackedWeight | tuple[PackedWeight, ...],
        bias: NDArray[np.float32] | None = None,
    ) -> int:
        """[rows, weight.outputs]; quantised weights turn x into int8 first, once for all its products.

        The outputs of several weights, of any formats, lie side by side.
        """

    def add_linear(
        self,
        into: int,
        x: int,
        weight: PackedWeight | tuple[PackedWeight, ...],
        bias: NDArray[np.float32] | None = None,
    ) -> None:
        """into += the product with its bias, in place: what `into` was is gone for later operations."""

    def add(self, a: int, b: int) -> int: ...
    def attention(
        self,
        qkv: int,
        cos: NDArray[np.float32],
        sin: NDArray[np.float32],
        layer: int,
        num_heads: int,
        scale: float,
        window: int = 0,
        cap: float = 0.0,
    ) -> int:
        """[tokens, num_heads * head_dim]: turn q and k by their positions, store k and v, attend.

        qkv       [tokens, (num_heads + 2 * num_kv_heads) * head_dim]
        cos, sin  [num_positions, num_pairs]; where 2 * num_pairs < head_dim, the rest of a head stays
        window    positions that a token sees, its own and those before it; 0: all of them
        cap       scores become cap * tanh(score / cap); 0: they stay
        """

    def experts(
        self,
        x: int,
        scores: int,
        gate_ups: tuple[tuple[PackedWeight, ...], ...],
        downs: tuple[tuple[PackedWeight, ...], ...],
        top_k: int,
        is_normalized: bool,
        function: Activation,
    ) -> int:
        """Each row through the top_k experts of its scores [tokens, experts]: see program.ops.Experts.

        gate_ups, downs  of each expert what `linear` takes: gate and up make [rows, 2 * width] together
        """

    def activate(self, x: int, function: Activation, is_gated: bool) -> int:
        """function(x); gated: function(gate) * up of the halves of x [rows, 2 * width]."""

    def scale(self, x: int, factor: float) -> int: ...
    def soft_cap(self, x: int, cap: float) -> int:
        """cap * tanh(x / cap)"""

    def select(self, x: int) -> int:
        """From every token of the step to those that sample."""

    def finish(self, logits: int) -> None:
        """End the recording: take the buffers; `logits` is what `forward` gives."""

    def forward(
        self,
        token_ids: NDArray[np.int32],
        positions: NDArray[np.int32],
        query_starts: NDArray[np.int32],
        kv_lens: NDArray[np.int32],
        page_table: NDArray[np.int32],
        sample_rows: NDArray[np.int32],
    ) -> NDArray[np.float32]:
        """Replay: the arrays are those of backends.backend.ForwardInputs.

        The result [rows, width] is a view of the tape's own memory, overwritten by the next call.
        """

    def beat_into(self, pulse: NDArray[np.uint64]) -> None:
        """Add one to pulse[0] whenever something of a step is done, for another process to see."""

    @property
    def buffer_bytes(self) -> int:
        """Of address space for all values; rows that no step ever had take no memory."""
