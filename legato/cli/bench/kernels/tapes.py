"""Tapes that repeat one operation, and the steps that they are replayed with."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from legato.backends.backend import ForwardInputs

if TYPE_CHECKING:
    from legato.kernels._native import Device, KVStore, PackedWeight, Tape

SOURCE_ROWS = 16  # different rows among those that an operation reads


def random_rows(num_rows: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((num_rows, width), dtype=np.float32)


def source(device: "Device", width: int) -> "PackedWeight":
    """What an embedding takes rows of a width from."""
    return device.pack("f32", random_rows(SOURCE_ROWS, width))


def recorded(
    device: "Device", max_rows: int, record: "Callable[[Tape], int]", kv: "KVStore | None" = None
) -> "Tape":
    """A tape of what `record` records, up to the value that it gives; one row of that is selected."""
    tape = device.tape(kv or device.kv_store(1, 1, max_rows, 1, 32, False), max_rows, 1)
    tape.finish(tape.select(record(tape)))
    return tape


def rows_step(num_rows: int) -> ForwardInputs:
    """One request with so many rows, all in one page."""
    return step(num_tokens=num_rows, kv_lens=[num_rows], page_table=np.zeros((1, 1), np.int32))


def step(*, num_tokens: int, kv_lens: Sequence[int], page_table: np.ndarray) -> ForwardInputs:
    """The last `num_tokens` tokens of each request, whose lengths are kv_lens after them."""
    lens = np.array(kv_lens, np.int32)
    places = np.arange(num_tokens, dtype=np.int32)
    positions = (lens[:, None] - num_tokens + places).reshape(-1).astype(np.int32)
    return ForwardInputs(
        token_ids=positions % SOURCE_ROWS,
        positions=positions,
        query_starts=np.arange(0, len(positions) + 1, num_tokens, dtype=np.int32),
        kv_lens=lens,
        page_table=np.ascontiguousarray(page_table, np.int32),
        sample_rows=np.zeros(1, np.int32),
    )


def replay(tape: "Tape", inputs: ForwardInputs) -> None:
    tape.forward(
        inputs.token_ids,
        inputs.positions,
        inputs.query_starts,
        inputs.kv_lens,
        inputs.page_table,
        inputs.sample_rows,
    )
