"""Small programs in the manner of several families, with seeded weights."""

from collections.abc import Callable

import numpy as np

from legato.models.rope import plain_rope
from legato.program.builder import Builder
from legato.program.ops import Activation, Program, Value, Weight, weights_of

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, WIDE, VOCAB, POSITIONS = 64, 4, 2, 32, 96, 50, 128
Q_DIM, KV_DIM = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
EPS = 1e-5
ROPE = plain_rope(HEAD_DIM, 10_000.0, POSITIONS)
TABLE = Weight("embed_tokens", (VOCAB, HIDDEN))

Write = Callable[[Builder, Value], Value]  # continues from an embedding [tokens, HIDDEN]


def write_program(write: Write) -> Program:
    """`write` between an embedding and the rows that sample."""
    p = Builder()
    return p.output(p.select(write(p, p.embedding(TABLE))))


def vector(name: str, width: int) -> Weight:
    return Weight(name, (width,))


def random_weights(program: Program, seed: int = 0) -> dict[str, np.ndarray]:
    """Vectors near 1 or, if biases, near 0; matrices that keep values near 1."""
    rng = np.random.default_rng(seed)
    weights = {}
    for weight in dict.fromkeys(weight for op in program.ops for weight in weights_of(op)):
        values = rng.standard_normal(weight.shape, dtype=np.float32)
        if "norm" in weight.name and "bias" not in weight.name:
            values = 1 + values / 10
        elif len(weight.shape) == 2 and "embed" not in weight.name:
            values /= np.sqrt(weight.shape[1], dtype=np.float32)
        weights[weight.name] = values.astype(np.float32)
    return weights


def gpt2() -> Program:
    """Learned positions, layer norms, biases everywhere, q, k and v in one matrix, a plain GELU."""
    p = Builder()
    x = p.add(p.embedding(TABLE), p.position_embedding(Weight("embed_positions", (POSITIONS, HIDDEN))))

    def norm(x: Value, name: str) -> Value:
        return p.layer_norm(x, vector(f"{name}_norm", HIDDEN), vector(f"{name}_norm_bias", HIDDEN), eps=EPS)

    def linear(x: Value, name: str, outputs: int) -> Value:
        return p.linear(x, Weight(name, (outputs, x.width)), biases=(vector(f"{name}_bias", outputs),))

    for layer in range(2):
        qkv = linear(norm(x, f"{layer}.attn"), f"{layer}.qkv", Q_DIM + 2 * KV_DIM)
        q, k, v = p.split(qkv, Q_DIM, KV_DIM, KV_DIM)
        h = p.attention(q, k, v, layer, head_dim=HEAD_DIM, scale=HEAD_DIM**-0.5)
        x = p.add(x, linear(h, f"{layer}.out", HIDDEN))
        h = p.activate(linear(norm(x, f"{layer}.mlp"), f"{layer}.up", WIDE), Activation.GELU_TANH)
        x = p.add(x, linear(h, f"{layer}.down", HIDDEN))
    return p.output(p.linear(norm(p.select(x), "final"), TABLE))


def qwen() -> Program:
    """Biases on q, k and v alone, norms on the heads of q and k, SwiGLU."""
    return _decoder(has_biases=True, has_post_norms=False, function=Activation.SILU)


def gemma() -> Program:
    """Norms on heads, norms after each block before it is added, gated GELU."""
    return _decoder(has_biases=False, has_post_norms=True, function=Activation.GELU_TANH)


def _decoder(*, has_biases: bool, has_post_norms: bool, function: Activation) -> Program:
    p = Builder()
    x = p.embedding(TABLE)

    def norm(x: Value, name: str, width: int = HIDDEN) -> Value:
        return p.rms_norm(x, vector(f"{name}_norm", width), eps=EPS)

    def added(x: Value, h: Value, name: str) -> Value:
        return p.add(x, norm(h, name) if has_post_norms else h)

    for layer in range(2):
        parts = {"q": Q_DIM, "k": KV_DIM, "v": KV_DIM}
        weights = [Weight(f"{layer}.{name}", (width, HIDDEN)) for name, width in parts.items()]
        biases = [vector(f"{layer}.{name}_bias", width) for name, width in parts.items()]
        qkv = p.linear(norm(x, f"{layer}.attn"), *weights, biases=tuple(biases) if has_biases else ())
        q, k, v = p.split(qkv, *parts.values())
        q, k = p.rope(norm(q, f"{layer}.q", HEAD_DIM), norm(k, f"{layer}.k", HEAD_DIM), ROPE)
        h = p.attention(q, k, v, layer, head_dim=HEAD_DIM, scale=HEAD_DIM**-0.5)
        x = added(x, p.linear(h, Weight(f"{layer}.out", (HIDDEN, Q_DIM))), f"{layer}.post_attn")
        h = norm(x, f"{layer}.mlp")
        h = p.linear(h, Weight(f"{layer}.gate", (WIDE, HIDDEN)), Weight(f"{layer}.up", (WIDE, HIDDEN)))
        h = p.gate(*p.split(h, WIDE, WIDE), function)
        x = added(x, p.linear(h, Weight(f"{layer}.down", (HIDDEN, WIDE))), f"{layer}.post_mlp")
    return p.output(p.linear(norm(p.select(x), "final"), TABLE))
