"""What holds of every backend: layouts, inputs that contradict themselves, K/V written before it is read."""

import numpy as np
import pytest

from legato.backends.backend import Backend, ForwardInputs, KVLayout
from legato.backends.cpu import KV_FORMATS, CpuBackend, CpuOptions
from legato.backends.reference import ReferenceBackend
from legato.core.errors import ModelError
from legato.kernels.library import NoKernels, open_device
from legato.models.registry import build_program
from tests.backends.steps import Chunk, make_inputs
from tests.fakes import random_model

GOOD = {
    "token_ids": [5, 6, 7],
    "positions": [0, 1, 0],
    "query_starts": [0, 2, 3],
    "kv_lens": [2, 1],
    "page_table": [[0], [1]],
    "sample_rows": [1, 2],
}


def make(**changes: list[int]) -> ForwardInputs:
    return ForwardInputs(**{name: np.array(value, np.int32) for name, value in (GOOD | changes).items()})


def test_a_layout_counts_tokens_and_bytes() -> None:
    kv = KVLayout(num_layers=30, num_pages=10, page_size=16, num_kv_heads=3, head_dim=64)

    assert kv.num_tokens == 160
    assert kv.page_bytes == 2 * 4 * 30 * 16 * 3 * 64


@pytest.mark.parametrize(("dtype", "head_bytes"), [("float32", 256), ("bfloat16", 128), ("int8", 64 + 4)])
def test_a_layout_counts_what_its_dtype_takes(dtype: str, head_bytes: int) -> None:
    kv = KVLayout(num_layers=30, num_pages=10, page_size=16, num_kv_heads=3, head_dim=64, dtype=dtype)
    assert kv.token_bytes == 2 * 30 * 3 * head_bytes
    assert kv.page_bytes == 16 * kv.token_bytes
    device = open_device(num_threads=1)
    assert not isinstance(device, NoKernels)
    store = device.kv_store(30, 10, 16, 3, 64, KV_FORMATS[dtype])
    assert store.num_bytes == 10 * kv.page_bytes


@pytest.mark.parametrize("kv", [KVLayout(1, 4, 4, 3, 64), KVLayout(2, 4, 4, 9, 64), KVLayout(2, 4, 4, 3, 32)])
def test_a_kv_store_of_other_sizes_is_refused(kv: KVLayout) -> None:
    config, weights = random_model(0, vocab_size=8)

    with pytest.raises(ModelError, match=r"attention of layer \d has 3 K/V heads of 64, but the K/V store"):
        ReferenceBackend().compile(build_program(config), weights, kv)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": [0, 1]}, "2 positions"),
        ({"query_starts": [0, 2, 4]}, "query_starts up to 4"),
        ({"kv_lens": [2]}, "1 in kv_lens"),
        ({"page_table": [[0]]}, "1 in page_table"),
    ],
)
def test_arrays_that_contradict_each_other_are_refused(changes: dict[str, list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**changes)


def test_arrays_of_another_type_are_refused() -> None:
    inputs = make()

    with pytest.raises(ValueError, match="int32"):
        ForwardInputs(
            token_ids=inputs.token_ids.astype(np.int64),
            positions=inputs.positions,
            query_starts=inputs.query_starts,
            kv_lens=inputs.kv_lens,
            page_table=inputs.page_table,
            sample_rows=inputs.sample_rows,
        )


def make_backend(name: str) -> Backend:
    if name == "reference":
        return ReferenceBackend()
    device = open_device(num_threads=3)
    assert not isinstance(device, NoKernels)
    return CpuBackend(device, CpuOptions("bf16", is_quantized=False, max_tokens=128, max_samples=128))


@pytest.mark.parametrize(
    ("name", "kv_dtype"),
    [("reference", "float32"), ("cpu", "bfloat16"), ("cpu", "float32"), ("cpu", "int8")],
)
@pytest.mark.parametrize("reader_is_first", [False, True])
def test_a_request_reads_what_another_writes_in_the_same_step(
    name: str, kv_dtype: str, reader_is_first: bool
) -> None:
    config, weights = random_model(0)
    kv = KVLayout.of(build_program(config), 8, 16, kv_dtype)
    compiled = make_backend(name).compile(build_program(config), weights, kv)
    prefix, own = list(range(100, 164)), [7, 8, 9]
    compiled.forward(make_inputs(Chunk(prefix, 0, [4, 5, 6, 7])))
    alone = compiled.forward(make_inputs(Chunk(own, 64, [4, 5, 6, 7, 3]))).tobytes()

    writer, reader = Chunk(prefix, 0, [2, 0, 3, 1]), Chunk(own, 64, [2, 0, 3, 1, 7])
    if reader_is_first:
        logits = compiled.forward(make_inputs(reader, writer))[:3]
    else:
        logits = compiled.forward(make_inputs(writer, reader))[64:]

    assert logits.tobytes() == alone


@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_a_step_is_seen_to_get_on_while_it_computes(name: str) -> None:
    config, weights = random_model(0)
    kv_dtype = "float32" if name == "reference" else "bfloat16"
    kv = KVLayout.of(build_program(config), 8, 16, kv_dtype)
    compiled = make_backend(name).compile(build_program(config), weights, kv)
    pulse = np.zeros(1, np.uint64)
    compiled.beat_into(pulse)

    compiled.forward(make_inputs(Chunk([7, 8, 9], 0, [0])))

    assert pulse[0] > 4 * KVLayout.of(build_program(config), 1, 1).num_layers  # its parts are parts of layers
