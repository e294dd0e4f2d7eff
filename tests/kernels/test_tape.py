"""A recorded tape computes what numpy computes, and a request's bits depend on the request alone."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

from legato.backends.reference import linear, rms_norm
from tests.kernels.conftest import open_or_fail
from tests.kernels.tapes import (
    EPS,
    HIDDEN,
    VOCAB,
    Decoder,
    apply,
    int32,
    quantize,
    random_rows,
    relative_error,
    silu_mul,
)

if TYPE_CHECKING:
    from legato.kernels._native import Device, Tape

PROMPT = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 32, 38, 4, 6, 26, 43, 3, 8, 32]
PAGES = [6, 1, 4, 2]  # in no order

# one operation


def test_a_row_of_an_embedding_comes_back_as_it_was_packed(device: "Device") -> None:
    x = random_rows(5, 48)
    assert apply(device, x, lambda _, value: value).tolist() == x.tolist()


@pytest.mark.parametrize("num_rows", [1, 3, 40])
def test_linear_and_its_addition(device: "Device", num_rows: int) -> None:
    x, weight, square = random_rows(num_rows, 64), random_rows(70, 64, seed=1), random_rows(64, 64, seed=2)

    def record(tape: "Tape", value: int) -> int:
        into = tape.rms_norm(value, np.ones(64, np.float32), EPS)
        tape.add_linear(into, value, device.pack("f32", square))
        return tape.linear(into, device.pack("f32", weight))

    wanted = linear(rms_norm(x, np.ones(64, np.float32), EPS) + linear(x, [square]), [weight])
    assert relative_error(apply(device, x, record), wanted) < 1e-5


def test_rms_norm_and_silu_mul(device: "Device") -> None:
    x, weight = random_rows(9, 80), random_rows(1, 80, seed=1)[0]

    found = apply(
        device, x, lambda tape, value: tape.activate(tape.rms_norm(value, weight, EPS), "silu", is_gated=True)
    )

    assert relative_error(found, silu_mul(*np.split(rms_norm(x, weight, EPS), 2, axis=1))) < 1e-5


def test_products_with_int8_share_their_input_and_see_what_was_added_to_it(device: "Device") -> None:
    x, weight = random_rows(6, 64), quantize(random_rows(64, 64, seed=1))
    packed = device.pack("q8", *weight)

    def twice(tape: "Tape", value: int) -> int:
        h = tape.linear(value, packed)
        tape.add_linear(value, h, packed)  # value's own int8 form is old from here on
        return tape.linear(value, packed)

    h = apply(device, x, lambda tape, value: tape.linear(value, packed))
    added = x + apply(device, h, lambda tape, value: tape.linear(value, packed))
    wanted = apply(device, added, lambda tape, value: tape.linear(value, packed))
    assert relative_error(apply(device, x, twice), wanted) < 1e-6


# a decoder


@pytest.mark.parametrize(
    ("weight_format", "is_bf16", "bound"), [("f32", False, 1e-5), ("f32", True, 4e-3), ("q8", True, 3e-2)]
)
def test_decoder_agrees_with_numpy(device: "Device", weight_format: str, is_bf16: bool, bound: float) -> None:
    decoder = Decoder(device, weight_format, is_bf16)
    found = decoder.forward((PROMPT, 0, PAGES))
    assert relative_error(found[0], decoder.numpy_logits(PROMPT)) < bound


def in_chunks(decoder: Decoder) -> np.ndarray:
    for start, end in [(0, 7), (7, 8), (8, len(PROMPT) - 1)]:
        decoder.forward((PROMPT[start:end], start, PAGES))
    return decoder.forward((PROMPT[-1:], len(PROMPT) - 1, PAGES))[0]


def among_others(decoder: Decoder) -> np.ndarray:
    others = [(list(range(n)), 0, [8 + 3 * n, 9 + 3 * n]) for n in (1, 5, 13)]
    return decoder.forward(*others[:2], (PROMPT, 0, PAGES), others[2])[2]


def after_a_longer_one(decoder: Decoder) -> np.ndarray:
    decoder.forward((PROMPT[::-1] * 2, 0, [1, 2, 3, 4, 5, 6]))
    return decoder.forward((PROMPT, 0, [5, 2, 9]))[0]


@pytest.mark.parametrize("weight_format", ["f32", "q8"])
@pytest.mark.parametrize("in_company", [in_chunks, among_others, after_a_longer_one])
def test_bits_are_those_of_the_request_alone(
    device: "Device", weight_format: str, in_company: Callable[[Decoder], np.ndarray]
) -> None:
    alone = Decoder(device, weight_format).forward((PROMPT, 0, PAGES))[0]
    assert in_company(Decoder(device, weight_format)).tobytes() == alone.tobytes()


@pytest.mark.parametrize(("num_threads", "page_size"), [(1, 8), (3, 8), (2, 1), (2, 64)])
def test_bits_do_not_depend_on_threads_and_pages(device: "Device", num_threads: int, page_size: int) -> None:
    alone = Decoder(device, "q8").forward((PROMPT, 0, PAGES))
    other = Decoder(open_or_fail(num_threads, device.isa), "q8", page_size=page_size)
    pages = list(range(len(PROMPT)))[: -(-len(PROMPT) // page_size)]
    assert other.forward((PROMPT, 0, pages)).tobytes() == alone.tobytes()


def test_a_step_may_sample_nothing(device: "Device") -> None:
    tape = Decoder(device).tape
    logits = tape.forward(int32(1, 2), int32(0, 1), int32(0, 2), int32(2), int32(0)[None], int32())
    assert logits.shape == (0, VOCAB)


def test_memory_does_not_grow_with_depth(device: "Device") -> None:
    def buffer_bytes(num_layers: int) -> int:
        tape = device.tape(device.kv_store(1, 1, 1, 1, 32, False), 100, 1)
        weight = device.pack("f32", random_rows(HIDDEN, HIDDEN))
        x = tape.embedding(weight)
        for _ in range(num_layers):
            tape.add_linear(x, tape.linear(x, weight), weight)
        tape.finish(tape.select(x))
        return tape.buffer_bytes

    assert buffer_bytes(20) == buffer_bytes(1) >= 2 * 100 * HIDDEN * 4


# what does not fit


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("token_ids", int32(1, VOCAB), "token_ids: 50, must be below 50"),
        ("token_ids", int32(1, -1), "token_ids: -1, must be at least 0"),
        ("positions", int32(0, 2), "positions: 2, must be below 2"),
        ("positions", int32(0), "positions: 1 entries, must be 2"),
        ("query_starts", int32(0, 3), "query_starts, last: 3"),
        ("query_starts", int32(1, 2), "query_starts, first: 1"),
        ("kv_lens", int32(9), "kv_lens: 9, must be at most"),
        ("kv_lens", int32(0), "kv_lens: 0, must be at least 1"),
        ("page_table", int32(128)[None], "page_table: 128, must be below 128"),
        ("sample_rows", int32(2), "sample_rows: 2, must be below 2"),
    ],
)
def test_indices_outside_what_they_index_are_refused(
    device: "Device", name: str, value: np.ndarray, words: str
) -> None:
    step = {
        "token_ids": int32(1, 2),
        "positions": int32(0, 1),
        "query_starts": int32(0, 2),
        "kv_lens": int32(2),
        "page_table": int32(0)[None],
        "sample_rows": int32(1),
    }
    with pytest.raises(ValueError, match=words):
        Decoder(device).tape.forward(**(step | {name: value}))


def test_a_step_larger_than_planned_is_refused(device: "Device") -> None:
    decoder = Decoder(device, max_tokens=4)
    with pytest.raises(ValueError, match="the step's tokens: 5, must be at most 4"):
        decoder.forward(([1, 2, 3, 4, 5], 0, [0]))


def test_shapes_that_do_not_fit_are_refused_while_recording(device: "Device") -> None:
    weight = device.pack("f32", random_rows(HIDDEN, HIDDEN))
    narrow = device.pack("f32", random_rows(HIDDEN, 32))
    tape = device.tape(device.kv_store(1, 1, 1, 1, 32, False), 4, 4)
    x = tape.embedding(weight)
    with pytest.raises(ValueError, match="inputs of the weight: 32, must be 64"):
        tape.linear(x, narrow)
    with pytest.raises(ValueError, match="width of the weight: 3, must divide 64"):
        tape.rms_norm(x, np.ones(3, np.float32), EPS)
    with pytest.raises(ValueError, match="there is no value 7"):
        tape.activate(7, "silu", is_gated=True)
    with pytest.raises(ValueError, match="a row for each sample"):
        tape.finish(x)
    with pytest.raises(ValueError, match="the tape is not finished"):
        tape.forward(int32(0), int32(0), int32(0, 1), int32(1), int32(0)[None], int32(0))
