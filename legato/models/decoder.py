"""The decoder that most families share: pre-norm attention and gated MLP, written once as a program."""

from dataclasses import dataclass

from legato.program.builder import Builder
from legato.program.ops import Activation, Program, RopeConfig, Value, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """Experts in place of one MLP: see Experts. `width` is what intermediate_size is of an MLP."""

    num_experts: int
    top_k: int
    width: int
    is_normalized: bool


@dataclass(frozen=True, slots=True)
class Layer:
    """What may differ from layer to layer.

    rope     None where positions are not encoded
    window   tokens that each sees, itself and those before it; None: all of them
    mixture  None where there is one MLP
    """

    rope: RopeConfig | None
    window: int | None = None
    mixture: Mixture | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Widths and constants of a decoder, and which of its parts there are.

    attention_cap, logits_cap         see SoftCap
    embedding_scale, residual_scale,  multiply embeddings, what a block adds, and logits
      logits_scale
    has_head_norms                    of q and k
    has_output_norms                  of what a block adds
    is_fused                          q, k and v are one matrix, and so are gate and up
    """

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    layers: tuple[Layer, ...]
    norm_eps: float
    activation: Activation
    tie_word_embeddings: bool
    attention_scale: float
    attention_cap: float | None = None
    logits_cap: float | None = None
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logits_scale: float = 1.0
    has_qkv_bias: bool = False
    has_out_bias: bool = False
    has_mlp_bias: bool = False
    has_head_norms: bool = False
    has_output_norms: bool = False
    is_fused: bool = False

    @property
    def q_dim(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        return self.num_kv_heads * self.head_dim


def decoder_program(c: DecoderConfig) -> Program:
    """Token ids to logits; only the rows that sample pay for the vocabulary's product."""
    embed_tokens = Weight("embed_tokens", (c.vocab_size, c.hidden_size))
    lm_head = embed_tokens if c.tie_word_embeddings else Weight("lm_head", (c.vocab_size, c.hidden_size))
    p = Builder()
    x = p.scale(p.embedding(embed_tokens), c.embedding_scale)
    for index in range(len(c.layers)):
        layer = LayerWriter(p, index, c)
        x = layer.add_attention(x)
        x = layer.add_mlp(x)
    x = p.rms_norm(p.select(x), Weight("final_norm", (c.hidden_size,)), eps=c.norm_eps)
    logits = p.scale(p.linear(x, lm_head), c.logits_scale)
    return p.output(p.soft_cap(logits, c.logits_cap))


class LayerWriter:
    """Writes layer `index` of a decoder; weights that share their input are one product."""

    def __init__(self, p: Builder, index: int, c: DecoderConfig) -> None:
        self._p = p
        self._index = index
        self._c = c

    def add_attention(self, x: Value) -> Value:
        p, c = self._p, self._c
        h = self._norm(x, "input_norm")
        parts = {"q_proj": c.q_dim, "k_proj": c.kv_dim, "v_proj": c.kv_dim}
        q, k, v = self._parts(h, parts, "qkv_proj", has_bias=c.has_qkv_bias)
        if c.has_head_norms:
            q, k = self._norm(q, "q_norm", c.head_dim), self._norm(k, "k_norm", c.head_dim)
        layer = c.layers[self._index]
        if layer.rope:
            q, k = p.rope(q, k, layer.rope)
        h = p.attention(
            q, k, v, self._index,
            head_dim=c.head_dim, scale=c.attention_scale, window=layer.window, cap=c.attention_cap,
        )  # fmt: skip
        return self._add(x, self._linear(h, {"o_proj": c.hidden_size}, has_bias=c.has_out_bias), "attention")

    def add_mlp(self, x: Value) -> Value:
        p, c = self._p, self._c
        h = self._norm(x, "mlp_norm")
        mixture = c.layers[self._index].mixture
        if mixture:
            return self._add(x, self._experts(h, mixture), "mlp")
        parts = {"gate_proj": c.intermediate_size, "up_proj": c.intermediate_size}
        gate, up = self._parts(h, parts, "gate_up_proj", has_bias=c.has_mlp_bias)
        h = p.gate(gate, up, c.activation)
        return self._add(x, self._linear(h, {"down_proj": c.hidden_size}, has_bias=c.has_mlp_bias), "mlp")

    def _experts(self, x: Value, mixture: Mixture) -> Value:
        scores = self._linear(x, {"router": mixture.num_experts}, has_bias=False)
        inwards, outwards = (mixture.width, x.width), (x.width, mixture.width)
        shapes = {"gate_proj": inwards, "up_proj": inwards, "down_proj": outwards}

        def expert(index: int) -> tuple[Weight, Weight, Weight]:
            gate, up, down = (self._weight(f"experts.{index}.{name}", *shapes[name]) for name in shapes)
            return gate, up, down

        return self._p.experts(
            x,
            scores,
            [expert(index) for index in range(mixture.num_experts)],
            top_k=mixture.top_k,
            is_normalized=mixture.is_normalized,
            function=self._c.activation,
        )

    def _add(self, x: Value, h: Value, block: str) -> Value:
        if self._c.has_output_norms:
            h = self._norm(h, f"{block}_out_norm")
        return self._p.add(x, self._p.scale(h, self._c.residual_scale))

    def _parts(self, x: Value, parts: dict[str, int], fused: str, *, has_bias: bool) -> tuple[Value, ...]:
        """What several matrices, or one that holds them all, make of x."""
        widths = {fused: sum(parts.values())} if self._c.is_fused else parts
        return self._p.split(self._linear(x, widths, has_bias=has_bias), *parts.values())

    def _linear(self, x: Value, widths: dict[str, int], *, has_bias: bool) -> Value:
        """A product with matrices of these names and numbers of outputs."""
        weights = [self._weight(name, width, x.width) for name, width in widths.items()]
        biases = [self._weight(f"{name}_bias", width) for name, width in widths.items() if has_bias]
        return self._p.linear(x, *weights, biases=tuple(biases))

    def _norm(self, x: Value, name: str, width: int | None = None) -> Value:
        """Of a row, or of each of its heads where a width is given."""
        return self._p.rms_norm(x, self._weight(name, width or x.width), eps=self._c.norm_eps)

    def _weight(self, name: str, *shape: int) -> Weight:
        return Weight(f"layers.{self._index}.{name}", shape)
