"""What number formats cost the default model: next tokens of the shipped text against those of float32."""

from collections.abc import Mapping

import numpy as np
import pytest

from legato.backends.backend import KVLayout
from legato.backends.cpu import CpuBackend, CpuOptions
from legato.backends.stored_weight import StoredWeight, as_stored, to_bfloat16
from legato.cli.models.check import TEXT
from legato.cli.models.fidelity import CHUNK_LEN, PAGE_SIZE, TextErrors, compare, log_probabilities
from legato.core.config import DEFAULT_MODEL
from legato.kernels.library import NoKernels, open_device
from legato.modelfiles.catalog import resolve
from legato.modelfiles.model_config import read_model_config
from legato.models.registry import build_model
from legato.program.ops import Attention, Program, weights_of
from legato.tokenization.tokenizer import load_tokenizer
from legato.weights.loader import load_weights
from legato.weights.quantization import quantize_weights

pytestmark = pytest.mark.model

Weights = Mapping[str, StoredWeight]

EXACT = CpuOptions("f32", is_quantized=False, max_tokens=CHUNK_LEN, max_samples=CHUNK_LEN)
BF16 = CpuOptions("bf16", is_quantized=False, max_tokens=CHUNK_LEN, max_samples=CHUNK_LEN)
QUANTISED = CpuOptions("bf16", is_quantized=True, max_tokens=CHUNK_LEN, max_samples=CHUNK_LEN)


class Measured:
    """The default model on the first tokens of the text, its exact distributions kept for comparison."""

    def __init__(self, num_tokens: int) -> None:
        path = resolve(DEFAULT_MODEL).path
        self.config = read_model_config(path)
        model = build_model(self.config)
        self.program = model.program
        self.weights: Weights = load_weights(path, model.program, model.tensors)
        tokenizer = load_tokenizer(path)
        assert tokenizer is not None
        self.token_ids = tokenizer.encode(TEXT.read_text(encoding="utf-8"))[:num_tokens]
        assert len(self.token_ids) == num_tokens
        self.exact = list(self._rows(self.weights, EXACT, "float32"))

    def errors(self, weights: Weights, options: CpuOptions, kv_dtype: str = "bfloat16") -> TextErrors:
        return compare(self.exact, self._rows(weights, options, kv_dtype), self.token_ids)

    def _rows(self, weights: Weights, options: CpuOptions, kv_dtype: str):  # type: ignore[no-untyped-def]
        device = open_device()
        assert not isinstance(device, NoKernels)
        num_pages = -(-len(self.token_ids) // PAGE_SIZE)
        kv = KVLayout.of(self.program, num_pages, PAGE_SIZE, kv_dtype)
        return log_probabilities(
            CpuBackend(device, options).compile(self.program, weights, kv), self.token_ids
        )


@pytest.fixture(scope="module", params=[300, pytest.param(2000, marks=pytest.mark.slow)])
def measured(request: pytest.FixtureRequest) -> Measured:
    return Measured(request.param)


@pytest.mark.parametrize(
    ("options", "limit"),
    [(BF16, 0.005), (QUANTISED, 0.01)],
    ids=["bfloat16", "4-bit weights, 8-bit activations"],
)
def test_what_is_kept_of_the_file_stays_close_to_float32(
    measured: Measured, options: CpuOptions, limit: float
) -> None:
    check(measured.errors(measured.weights, options), mean_kl=limit, perplexity=0.01)


@pytest.mark.parametrize(
    ("quantization", "mean_kl", "perplexity"), [("int8", 0.01, 0.01), ("int4", 0.3, 0.3)]
)
def test_float_weights_that_are_quantised_on_load_stay_within_what_is_documented(
    measured: Measured, quantization: str, mean_kl: float, perplexity: float
) -> None:
    floats = {
        name: to_floats(weight) for name, weight in regrouped(measured.weights, measured.program).items()
    }
    found = measured.errors(quantize_weights(floats, quantization), QUANTISED)
    check(found, mean_kl=mean_kl, perplexity=perplexity)


def test_keys_and_values_in_int8_stay_close_to_float32(measured: Measured) -> None:
    check(measured.errors(measured.weights, EXACT, "int8"), mean_kl=0.002, perplexity=0.01)


def check(found: TextErrors, *, mean_kl: float, perplexity: float) -> None:
    """On a short text a few positions decide the perplexity: it may be off by twice as much."""
    assert found.mean_kl <= mean_kl
    if found.num_tokens < 2000:
        perplexity *= 2
    assert found.perplexity == pytest.approx(found.exact_perplexity, rel=perplexity)


def to_floats(values: np.ndarray) -> StoredWeight:
    return as_stored(values) if values.ndim == 1 else StoredWeight("bf16", values.shape, to_bfloat16(values))


def regrouped(weights: Weights, program: Program) -> dict[str, np.ndarray]:
    """The same function with the channels between products in another order.

    The file's weights are 4-bit in groups of 32 neighbours. In these groups quantising finds them again, as
    it never would with a model's own floats; among other neighbours they are floats like any.
    """
    random = np.random.default_rng(0)
    attention = next(op for op in program.ops if isinstance(op, Attention))
    head_dim = attention.head_dim
    widths = {weight.name: weight.shape[0] for op in program.ops for weight in weights_of(op)}
    hidden, head = random.permutation(widths["final_norm"]), random.permutation(head_dim)
    inner = random.permutation(widths["layers.0.gate_proj"])
    v_rows = (np.arange(attention.num_kv_heads)[:, None] * head_dim + head).reshape(-1)
    o_inputs = (np.arange(attention.num_heads)[:, None] * head_dim + head).reshape(-1)
    every = slice(None)
    orders = {
        "v_proj": (v_rows, hidden),
        "o_proj": (hidden, o_inputs),
        "gate_proj": (inner, hidden),
        "up_proj": (inner, hidden),
        "down_proj": (hidden, inner),
    }

    def reordered(kind: str, values: np.ndarray) -> np.ndarray:
        if values.ndim == 1:
            return values[hidden]
        rows, inputs = orders.get(kind, (every, hidden))  # embeddings, q and k
        return np.ascontiguousarray(values[rows][:, inputs])

    return {name: reordered(name.rpartition(".")[2], each.float32()) for name, each in weights.items()}
