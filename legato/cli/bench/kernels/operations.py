"""The operations beside the products: attention with its K/V write, norms, activations, the sampler."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from legato.backends.rotation import rotation_table, still_table
from legato.cli.bench.kernels.ceilings import Cost
from legato.cli.bench.kernels.tapes import random_rows, recorded, replay, rows_step, source, step
from legato.core.sampling_params import SamplingParams
from legato.kernels.sampling import RowSampling, sample_rows, step_sampling
from legato.program.ops import Activate, Attention, Embedding, Gate, Program, Rope

if TYPE_CHECKING:
    from legato.kernels._native import Device, Tape

PAGE_SIZE = 16
KV_VALUE_BYTES = 2  # bfloat16


@dataclass(frozen=True, slots=True)
class Operation:
    """`count` of an operation in one run; `cost` is of one. What `prepare` does is not timed."""

    name: str
    count: int
    cost: Cost
    run: Callable[[], object]
    prepare: Callable[[], object] = lambda: None


@dataclass(frozen=True, slots=True)
class Widths:
    """Of a model's rows and heads, all layers alike."""

    hidden: int
    wide: int  # between the products of an MLP
    attention: Attention

    @staticmethod
    def of(program: Program) -> "Widths":
        wide = max(op.out.width for op in program.ops if isinstance(op, Gate | Activate))
        attention = next(op for op in program.ops if isinstance(op, Attention))
        hidden = next(op.out.width for op in program.ops if isinstance(op, Embedding))
        return Widths(hidden, wide, attention)


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """The last `num_tokens` tokens of requests of `kv_len` tokens: 1 in decode, a chunk in prefill."""

    num_requests: int
    num_tokens: int
    kv_len: int


def row_operations(
    device: "Device", widths: Widths, rows: tuple[int, ...], num_layers: int
) -> Iterator[Operation]:
    """Root mean square norms, each of the one before, and gated activations."""
    hidden, wide = widths.hidden, widths.wide
    ones = np.ones(hidden, np.float32)
    rows_of, gate_up = source(device, hidden), source(device, 2 * wide)

    def norms(tape: "Tape") -> int:
        x = tape.embedding(rows_of)
        for _ in range(num_layers):
            x = tape.rms_norm(x, ones, 1e-5)
        return x

    def activations(tape: "Tape") -> int:
        x = tape.embedding(gate_up)
        return [tape.activate(x, "silu", True) for _ in range(num_layers)][-1]

    for name, record, width in (("rms_norm", norms, 2 * hidden), ("silu, gated", activations, 3 * wide)):
        tape = recorded(device, max(rows), record)
        for num in rows:
            inputs = rows_step(num)
            yield Operation(
                f"{name}, {num} rows",
                num_layers,
                Cost(4 * num * width, 0, "f32"),
                partial(replay, tape, inputs),
            )


def attention_operations(
    device: "Device", program: Program, cases: tuple[AttentionCase, ...], num_layers: int, max_len: int
) -> Iterator[Operation]:
    """Each layer with keys and values of its own, all written once: unwritten ones cost no reading."""
    cases = tuple(each for each in cases if each.kv_len <= max_len)
    attention = Widths.of(program).attention
    num_pages = max(each.num_requests * -(-each.kv_len // PAGE_SIZE) for each in cases)
    max_tokens = max(PAGE_SIZE, *(each.num_requests * each.num_tokens for each in cases))
    kv = device.kv_store(num_layers, num_pages, PAGE_SIZE, attention.num_kv_heads, attention.head_dim, "bf16")
    num_positions = max(PAGE_SIZE, *(each.kv_len for each in cases))
    rope = next((op.rope for op in program.ops if isinstance(op, Rope)), None)
    cos, sin = rotation_table(rope, num_positions) if rope else still_table(attention.head_dim, num_positions)
    qkv = source(device, attention.q.width + 2 * attention.k.width)

    def record(tape: "Tape") -> int:
        x = tape.embedding(qkv)
        heads, scale = attention.num_heads, attention.scale
        return [tape.attention(x, cos, sin, layer, heads, scale) for layer in range(num_layers)][-1]

    tape = recorded(device, max_tokens, record, kv)
    _write_pages(tape, num_pages, max_tokens // PAGE_SIZE)
    for case in cases:
        pages = np.arange(case.num_requests * -(-case.kv_len // PAGE_SIZE), dtype=np.int32)
        inputs = step(
            num_tokens=case.num_tokens,
            kv_lens=[case.kv_len] * case.num_requests,
            page_table=pages.reshape(case.num_requests, -1),
        )
        yield Operation(
            _attention_name(case),
            num_layers,
            _attention_cost(attention, case),
            partial(replay, tape, inputs),
        )


def _write_pages(tape: "Tape", num_pages: int, pages_a_step: int) -> None:
    """Each page as that of a short request of its own."""
    for first in range(0, num_pages, pages_a_step):
        pages = np.arange(first, min(first + pages_a_step, num_pages), dtype=np.int32)[:, None]
        replay(tape, step(num_tokens=PAGE_SIZE, kv_lens=[PAGE_SIZE] * len(pages), page_table=pages))


def _attention_name(case: AttentionCase) -> str:
    requests = f"{case.num_requests} request{'s' if case.num_requests > 1 else ''}"
    if case.kv_len == 1:
        return f"RoPE, K/V write, attention to itself, {requests}"
    if case.num_tokens == 1:
        return f"attention, decode, {requests} of {case.kv_len} positions"
    return f"attention, prefill, {case.num_tokens} tokens up to position {case.kv_len}"


def _attention_cost(attention: Attention, case: AttentionCase) -> Cost:
    """Keys and values are read once a request; each token meets each position before it in two products."""
    kv_bytes = 2 * attention.k.width * KV_VALUE_BYTES * case.kv_len
    positions = sum(range(case.kv_len - case.num_tokens + 1, case.kv_len + 1))  # over the tokens
    num_ops = 4 * attention.q.width * positions
    return Cost(case.num_requests * kv_bytes, case.num_requests * num_ops, "f32")


def sampler_operations(device: "Device", vocab_size: int, rows: tuple[int, ...]) -> Iterator[Operation]:
    """The most probable token, and one drawn from the most probable nine tenths."""
    for name, params in (
        ("argmax", SamplingParams(temperature=0)),
        ("top_p 0.9", SamplingParams(temperature=0.8, top_p=0.9)),
    ):
        for num in rows:
            logits = 4 * random_rows(num, vocab_size)
            scratch = logits.copy()  # is overwritten
            settings = step_sampling([RowSampling(params, 0.5, {})] * num)
            yield Operation(
                f"sampler, {name}, {num} rows",
                1,
                Cost(4 * num * vocab_size, 0, "f32"),
                partial(sample_rows, device, scratch, settings, {}),
                partial(np.copyto, scratch, logits),
            )
