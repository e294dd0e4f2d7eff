"""The reference backend: numpy in float32, one operation after the other. Slow, obvious, the truth.

The law of exactness: a row's bits depend on that row's own shape alone, so that a request's tokens are the
same alone, in a batch, chunked, cached or resumed. Three rules keep it.
- A product is one matrix-vector product a row. BLAS orders the sums of X @ W.T by how many rows X has.
- Attention reads exactly the positions 0 to its own, gathered into contiguous memory: no padding, no pages.
- Sums run along the contiguous last axis of a row; whatever else is done to many rows at once is elementwise.

OpenBLAS may cut a product differently when it has more threads, so it gets one: whoever starts the process
sets OPENBLAS_NUM_THREADS=1 before numpy is imported.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from legato.backends.backend import ForwardInputs, KVLayout, check_kv_layout
from legato.backends.rotation import rotation_table
from legato.backends.stored_weight import AnyWeights, StoredWeight, as_stored, headers_of, num_values
from legato.program.check import check_program, check_weights
from legato.program.ops import (
    Activate,
    Activation,
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
    weights_of,
)

NUM_DECODERS = 2  # threads; decoding is bound by memory, more gain nothing


@dataclass(frozen=True, slots=True)
class Step:
    """What the operations of one forward share.

    values        index of a program's value -> [rows, width] float32
    rotations     cos and sin for the tokens' positions, [2, num_tokens, num_frequencies] each
    page_ids      [num_tokens] page that takes the K/V of each token
    page_offsets  [num_tokens] its place in that page
    """

    inputs: ForwardInputs
    rotations: dict[RopeConfig, np.ndarray]
    page_ids: np.ndarray
    page_offsets: np.ndarray
    values: dict[int, np.ndarray] = field(default_factory=dict)


class ReferenceBackend:
    """Computes any program in numpy."""

    name = "reference"

    def compile(self, program: Program, weights: AnyWeights, kv: KVLayout) -> "ReferenceProgram":
        check_program(program)
        check_weights(program, headers_of(weights))
        check_kv_layout(program, kv)
        return ReferenceProgram(program, weights, kv)

    def weight_bytes(self, weights: AnyWeights) -> int:
        return 4 * num_values(weights)

    def kept(self, weights: Sequence[StoredWeight]) -> list[StoredWeight]:
        return [as_stored(weight.float32()) for weight in weights]


class ReferenceProgram:
    """A program with its weights, its rotation tables and its K/V store."""

    def __init__(self, program: Program, weights: AnyWeights, kv: KVLayout) -> None:
        self.program = program
        self.kv = kv
        names = {weight.name for op in program.ops for weight in weights_of(op)}
        with ThreadPoolExecutor(NUM_DECODERS) as pool:
            arrays = pool.map(lambda name: as_stored(weights[name]).float32(), names)
            self.weights = dict(zip(names, arrays, strict=True))
        self.rotations = {
            rope: rotation_table(rope, min(rope.max_position, kv.num_tokens))
            for rope in {op.rope for op in program.ops if isinstance(op, Rope)}
        }
        self.k_pages = np.zeros(kv.shape, np.float32)  # memory is taken when a page is first written
        self.v_pages = np.zeros(kv.shape, np.float32)
        self._pulse = np.zeros(1, np.uint64)
        self._run: dict[type[Op], Callable[..., None]] = {
            Embedding: self._embedding,
            Linear: self._linear,
            RmsNorm: self._rms_norm,
            LayerNorm: self._layer_norm,
            Rope: self._rope,
            Attention: self._attention,
            Split: self._split,
            Add: self._add,
            Scale: self._scale,
            SoftCap: self._soft_cap,
            Activate: self._activate,
            Gate: self._gate,
            Experts: self._experts,
            Select: self._select,
        }

    def forward(self, inputs: ForwardInputs) -> np.ndarray:
        """Compute a step: logits [num_samples, vocab_size] float32."""
        step = self._begin(inputs)
        with np.errstate(over="ignore", invalid="ignore"):  # the sampler refuses logits that are not finite
            for op in self.program.ops:
                self._run[type(op)](op, step)
                self._pulse += 1
        return step.values[self.program.logits.index]

    def beat_into(self, pulse: np.ndarray) -> None:
        """Add one to pulse, [1] uint64, with each operation that is done."""
        self._pulse = pulse

    def _begin(self, inputs: ForwardInputs) -> Step:
        requests = np.repeat(np.arange(len(inputs.kv_lens)), np.diff(inputs.query_starts))
        page_indices, page_offsets = np.divmod(inputs.positions, self.kv.page_size)
        return Step(
            inputs=inputs,
            rotations={rope: table[:, inputs.positions] for rope, table in self.rotations.items()},
            page_ids=inputs.page_table[requests, page_indices],
            page_offsets=page_offsets,
        )

    def _embedding(self, op: Embedding, step: Step) -> None:
        inputs = step.inputs
        rows = inputs.token_ids if op.index is Index.TOKEN_IDS else inputs.positions
        step.values[op.out.index] = self.weights[op.weight.name][rows + op.offset]

    def _linear(self, op: Linear, step: Step) -> None:
        matrices = [self.weights[weight.name] for weight in op.weights]
        out = linear(step.values[op.x.index], matrices)
        if op.biases:
            out += np.concatenate([self.weights[bias.name] for bias in op.biases])
        step.values[op.out.index] = out

    def _rms_norm(self, op: RmsNorm, step: Step) -> None:
        step.values[op.out.index] = rms_norm(step.values[op.x.index], self.weights[op.weight.name], op.eps)

    def _layer_norm(self, op: LayerNorm, step: Step) -> None:
        weight, bias = self.weights[op.weight.name], self.weights[op.bias.name]
        step.values[op.out.index] = layer_norm(step.values[op.x.index], weight, bias, op.eps)

    def _rope(self, op: Rope, step: Step) -> None:
        cos, sin = step.rotations[op.rope]
        step.values[op.out.index] = rotate(step.values[op.x.index], cos, sin, op.rope.head_dim)

    def _attention(self, op: Attention, step: Step) -> None:
        """Write the K/V of every token first: a request's own tokens are among those it attends to."""
        inputs, values = step.inputs, step.values
        k_pages, v_pages = self.k_pages[op.layer], self.v_pages[op.layer]
        k_pages[step.page_ids, step.page_offsets] = values[op.k.index].reshape(
            -1, op.num_kv_heads, op.head_dim
        )
        v_pages[step.page_ids, step.page_offsets] = values[op.v.index].reshape(
            -1, op.num_kv_heads, op.head_dim
        )
        q = values[op.q.index]
        out = np.empty(q.shape, np.float32)
        for request, kv_len in enumerate(inputs.kv_lens):
            k = gather_pages(k_pages, inputs.page_table[request], kv_len)
            v = gather_pages(v_pages, inputs.page_table[request], kv_len)
            for row in range(inputs.query_starts[request], inputs.query_starts[request + 1]):
                end = inputs.positions[row] + 1
                seen = slice(max(0, end - op.window) if op.window else 0, end)
                out[row] = attend(q[row], k[seen], v[seen], op.scale, op.cap)
        values[op.out.index] = out

    def _split(self, op: Split, step: Step) -> None:
        start = 0
        for out in op.outs:
            step.values[out.index] = step.values[op.x.index][:, start : start + out.width]
            start += out.width

    def _add(self, op: Add, step: Step) -> None:
        step.values[op.out.index] = step.values[op.a.index] + step.values[op.b.index]

    def _scale(self, op: Scale, step: Step) -> None:
        step.values[op.out.index] = step.values[op.x.index] * np.float32(op.factor)

    def _soft_cap(self, op: SoftCap, step: Step) -> None:
        step.values[op.out.index] = soft_cap(step.values[op.x.index], op.cap)

    def _activate(self, op: Activate, step: Step) -> None:
        step.values[op.out.index] = ACTIVATIONS[op.function](step.values[op.x.index])

    def _gate(self, op: Gate, step: Step) -> None:
        gated = ACTIVATIONS[op.function](step.values[op.gate.index])
        step.values[op.out.index] = gated * step.values[op.up.index]

    def _experts(self, op: Experts, step: Step) -> None:
        """Row after row, and of each one expert after the other."""
        x, out = step.values[op.x.index], np.zeros((len(step.inputs.token_ids), op.out.width), np.float32)
        chosen, shares = route(step.values[op.scores.index], op.top_k, op.is_normalized)
        for row in range(len(x)):
            for expert, share in zip(chosen[row], shares[row], strict=True):
                gate, up, down = (self.weights[each[expert].name] for each in (op.gates, op.ups, op.downs))
                gated = ACTIVATIONS[op.function](gate @ x[row]) * (up @ x[row])
                out[row] += share * (down @ gated)
        step.values[op.out.index] = out

    def _select(self, op: Select, step: Step) -> None:
        step.values[op.out.index] = step.values[op.x.index][step.inputs.sample_rows]


def linear(x: np.ndarray, matrices: list[np.ndarray]) -> np.ndarray:
    """Multiply each row of x [rows, inputs] by every matrix [outputs, inputs]: results side by side.

    Matrix by matrix, so that a matrix stays in the processor's cache while the rows pass.
    """
    out = np.empty((len(x), sum(len(matrix) for matrix in matrices)), np.float32)
    start = 0
    for matrix in matrices:
        end = start + len(matrix)
        for i in range(len(x)):
            np.dot(matrix, x[i], out=out[i, start:end])
        start = end
    return out


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """Scale the heads of x [rows, heads * width] to a root mean square of 1, then by `weight` [width]."""
    heads = x.reshape(len(x), x.shape[-1] // len(weight), len(weight))
    mean_square = (heads * heads).sum(axis=-1, keepdims=True) / np.float32(len(weight))
    normed: np.ndarray = weight * (heads / np.sqrt(mean_square + np.float32(eps)))
    return normed.reshape(x.shape)


def layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float) -> np.ndarray:
    """Shift each row of x [rows, width] to a mean of 0, scale it as rms_norm does, add `bias`."""
    centered = x - x.sum(axis=-1, keepdims=True) / np.float32(x.shape[-1])
    normed: np.ndarray = rms_norm(centered, weight, eps) + bias
    return normed


def gelu(x: np.ndarray) -> np.ndarray:
    phi = np.frompyfunc(lambda each: math.erfc(-each / math.sqrt(2)) / 2, 1, 1)
    activated: np.ndarray = x * phi(x).astype(np.float32)
    return activated


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """With tanh written as a logistic function, which leaves small results their digits."""
    u = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
    activated: np.ndarray = x / (np.float32(1) + np.exp(np.float32(-2) * u))
    return activated


ACTIVATIONS: dict[Activation, Callable[[np.ndarray], np.ndarray]] = {
    Activation.SILU: lambda x: x / (np.float32(1) + np.exp(-x)),
    Activation.GELU: gelu,
    Activation.GELU_TANH: gelu_tanh,
    Activation.RELU: lambda x: np.maximum(x, np.float32(0)),
}


def route(scores: np.ndarray, top_k: int, is_normalized: bool) -> tuple[np.ndarray, np.ndarray]:
    """The experts of each row of scores [rows, experts] and their shares, both [rows, top_k]: see Experts."""
    chosen = np.argsort(-scores, axis=-1, kind="stable")[:, :top_k]
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares = np.take_along_axis(shares / shares.sum(axis=-1, keepdims=True), chosen, axis=-1)
    return chosen, shares / shares.sum(axis=-1, keepdims=True) if is_normalized else shares


def soft_cap(x: np.ndarray, cap: float) -> np.ndarray:
    capped: np.ndarray = np.float32(cap) * np.tanh(x / np.float32(cap))
    return capped


def rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, head_dim: int) -> np.ndarray:
    """Turn the pairs (i, i + num_pairs) of each head of x [rows, heads * head_dim]; what is left of it stays.

    cos, sin  [rows, num_pairs]
    """
    num_pairs = cos.shape[-1]
    out = x.reshape(len(x), -1, head_dim).copy()
    low, high = (out[:, :, start : start + num_pairs].copy() for start in (0, num_pairs))
    cos, sin = cos[:, None], sin[:, None]
    out[:, :, :num_pairs] = low * cos - high * sin
    out[:, :, num_pairs : 2 * num_pairs] = high * cos + low * sin
    return out.reshape(x.shape)


def gather_pages(pages: np.ndarray, page_ids: np.ndarray, kv_len: int) -> np.ndarray:
    """The first kv_len tokens of a request, [kv_len, num_kv_heads, head_dim], contiguous.

    pages  [num_pages, page_size, num_kv_heads, head_dim]
    """
    num_pages = -(-kv_len // pages.shape[1])
    tokens: np.ndarray = pages[page_ids[:num_pages]].reshape(-1, *pages.shape[2:])
    return tokens[:kv_len]


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, cap: float | None = None) -> np.ndarray:
    """One token's attention to the positions it is given: [num_heads * head_dim].

    q     [num_heads * head_dim]
    k, v  [kv_len, num_kv_heads, head_dim]
    """
    _, num_kv_heads, head_dim = k.shape
    queries = q.reshape(num_kv_heads, -1, head_dim) * np.float32(scale)  # [num_kv_heads, group, head_dim]
    scores = queries @ k.transpose(1, 2, 0)  # [num_kv_heads, group, kv_len]
    if cap is not None:
        scores = soft_cap(scores, cap)
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    out: np.ndarray = scores @ v.swapaxes(0, 1) / scores.sum(axis=-1, keepdims=True)
    return out.reshape(-1)
