"""What every backend offers, and what a compiled program takes and gives."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np

from legato.backends.stored_weight import AnyWeights, StoredWeight
from legato.core.errors import ModelError
from legato.program.ops import Attention, Program

# Of a K/V store of that dtype: bytes of a number, and of the scale that a token has for each head.
KV_BYTES = {"float32": (4, 0), "bfloat16": (2, 0), "int8": (1, 4)}


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The K/V store: keys and values are each [num_layers, num_pages, page_size, num_kv_heads, head_dim].

    dtype  what they are kept as: float32, bfloat16, or int8 with a float32 scale for each head of a token
    """

    num_layers: int
    num_pages: int
    page_size: int
    num_kv_heads: int
    head_dim: int
    dtype: str = "float32"

    @staticmethod
    def of(program: Program, num_pages: int, page_size: int, dtype: str = "float32") -> "KVLayout":
        """What the attention of a program needs."""
        attentions = [op for op in program.ops if isinstance(op, Attention)]
        num_layers = 1 + max(op.layer for op in attentions)
        first = attentions[0]
        return KVLayout(num_layers, num_pages, page_size, first.num_kv_heads, first.head_dim, dtype)

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        return (self.num_layers, self.num_pages, self.page_size, self.num_kv_heads, self.head_dim)

    @property
    def num_tokens(self) -> int:
        """Tokens that the whole store holds."""
        return self.num_pages * self.page_size

    @property
    def token_bytes(self) -> int:
        """Bytes that one token takes over all layers, keys and values together."""
        value_bytes, scale_bytes = KV_BYTES[self.dtype]
        return 2 * self.num_layers * self.num_kv_heads * (self.head_dim * value_bytes + scale_bytes)

    @property
    def page_bytes(self) -> int:
        """Bytes that one page takes over all layers, keys and values together."""
        return self.page_size * self.token_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardInputs:
    """One step's index arrays, all int32 and C-contiguous; the tokens of a request stand together, in order.

    token_ids     [num_tokens]
    positions     [num_tokens]               of each token in its request, from 0
    query_starts  [num_requests + 1]         request r has rows query_starts[r] to query_starts[r + 1]
    kv_lens       [num_requests]             tokens of the request after this step: its last position + 1
    page_table    [num_requests, max_pages]  page ids; unread past a request's end
    sample_rows   [num_samples]              rows, among the tokens, whose logits are wanted
    Raises ValueError when the shapes contradict each other.
    """

    token_ids: np.ndarray
    positions: np.ndarray
    query_starts: np.ndarray
    kv_lens: np.ndarray
    page_table: np.ndarray
    sample_rows: np.ndarray

    def __post_init__(self) -> None:
        for array_field in fields(self):
            dtype = getattr(self, array_field.name).dtype
            if dtype != np.int32:
                raise ValueError(f"{array_field.name} must be int32, not {dtype}")
        if self.positions.shape != self.token_ids.shape or self.query_starts[-1] != len(self.token_ids):
            raise ValueError(
                f"{len(self.token_ids)} token ids, {len(self.positions)} positions,"
                f" query_starts up to {self.query_starts[-1]}: these must agree"
            )
        if not len(self.query_starts) - 1 == len(self.kv_lens) == len(self.page_table):
            raise ValueError(
                f"{len(self.query_starts) - 1} requests in query_starts, {len(self.kv_lens)} in kv_lens,"
                f" {len(self.page_table)} in page_table: these must agree"
            )


class CompiledProgram(Protocol):
    """A program with its weights and its K/V store, ready to run steps; one step at a time."""

    def forward(self, inputs: ForwardInputs) -> np.ndarray:
        """Compute a step: logits [num_samples, vocab_size] float32, theirs to change until the next step.

        Each layer writes the K/V of all tokens of the step before any token of that layer attends. So the
        pages of one request may be read by another in the step that fills them, wherever the two stand.
        """
        ...

    def beat_into(self, pulse: np.ndarray) -> None:
        """Add to pulse, [1] uint64, whenever a part of a step is done: a long step is no hang."""
        ...


class Backend(Protocol):
    """A way of computing programs."""

    name: str

    def compile(self, program: Program, weights: AnyWeights, kv: KVLayout) -> CompiledProgram:
        """Check, pack the weights, take the memory; ModelError when the three do not fit together."""
        ...

    def weight_bytes(self, weights: AnyWeights) -> int:
        """About how much memory these take once a program is compiled; nothing is read to tell it."""
        ...

    def kept(self, weights: Sequence[StoredWeight]) -> list[StoredWeight]:
        """The matrices of one product in the formats in which it reads them."""
        ...


def check_kv_layout(program: Program, kv: KVLayout) -> None:
    """Raise ModelError unless every attention of the program finds its layer and its heads in the store."""
    for op in program.ops:
        if isinstance(op, Attention):
            found = (op.num_kv_heads, op.head_dim)
            if found != (kv.num_kv_heads, kv.head_dim) or op.layer >= kv.num_layers:
                raise ModelError(
                    f"attention of layer {op.layer} has {found[0]} K/V heads of {found[1]}, but the K/V store"
                    f" has {kv.num_layers} layers and {kv.num_kv_heads} heads of {kv.head_dim}"
                )
