"""The older decoder, with learned positions, layer norms with biases, and an MLP without a gate."""

from dataclasses import dataclass

from legato.program.builder import Builder
from legato.program.ops import Activation, Program, Value, Weight

EPS = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedDecoderConfig:
    """Widths of a decoder, and how its parts are put together.

    embedding_size   of tokens; where it is not hidden_size, projections lead there and back
    position_offset  row of the position table that position 0 has
    is_post_norm     norms follow what a block adds to, rather than precede the block, and none is the last
    is_fused         q, k and v are one matrix
    """

    hidden_size: int
    intermediate_size: int
    embedding_size: int
    num_layers: int
    num_heads: int
    vocab_size: int
    max_position: int
    activation: Activation
    tie_word_embeddings: bool
    position_offset: int = 0
    norm_eps: float = EPS
    has_bias: bool = True
    is_post_norm: bool = False
    is_fused: bool = False


def learned_decoder_program(c: LearnedDecoderConfig) -> Program:
    """Token ids to logits; only the rows that sample pay for the vocabulary's product."""
    p = Builder()
    embed_tokens = Weight("embed_tokens", (c.vocab_size, c.embedding_size))
    embed_positions = Weight("embed_positions", (c.max_position + c.position_offset, c.hidden_size))
    lm_head = embed_tokens if c.tie_word_embeddings else Weight("lm_head", embed_tokens.shape)
    x = p.embedding(embed_tokens)
    if c.embedding_size != c.hidden_size:
        x = p.linear(x, Weight("project_in", (c.hidden_size, c.embedding_size)))
    x = p.add(x, p.position_embedding(embed_positions, offset=c.position_offset))
    for index in range(c.num_layers):
        x = LayerWriter(p, index, c).layer(x)
    x = p.select(x)
    if not c.is_post_norm:
        x = layer_norm(p, x, "final_norm", c)
    if c.embedding_size != c.hidden_size:
        x = p.linear(x, Weight("project_out", (c.embedding_size, c.hidden_size)))
    return p.output(p.linear(x, lm_head))


def layer_norm(p: Builder, x: Value, name: str, c: LearnedDecoderConfig) -> Value:
    return p.layer_norm(x, Weight(name, (x.width,)), Weight(f"{name}_bias", (x.width,)), eps=c.norm_eps)


class LayerWriter:
    """Writes layer `index`."""

    def __init__(self, p: Builder, index: int, c: LearnedDecoderConfig) -> None:
        self._p = p
        self._prefix = f"layers.{index}."
        self._index = index
        self._c = c

    def layer(self, x: Value) -> Value:
        p, is_post_norm = self._p, self._c.is_post_norm
        x = p.add(x, self._attention(x if is_post_norm else self._norm(x, "input_norm")))
        x = self._norm(x, "input_norm") if is_post_norm else x
        x = p.add(x, self._mlp(x if is_post_norm else self._norm(x, "mlp_norm")))
        return self._norm(x, "mlp_norm") if is_post_norm else x

    def _attention(self, x: Value) -> Value:
        p, width = self._p, self._c.hidden_size
        widths = (
            {"qkv_proj": 3 * width}
            if self._c.is_fused
            else dict.fromkeys(("q_proj", "k_proj", "v_proj"), width)
        )
        q, k, v = p.split(self._linear(x, widths), width, width, width)
        head_dim = width // self._c.num_heads
        h = p.attention(q, k, v, self._index, head_dim=head_dim, scale=head_dim**-0.5)
        return self._linear(h, {"o_proj": width})

    def _mlp(self, x: Value) -> Value:
        h = self._p.activate(self._linear(x, {"up_proj": self._c.intermediate_size}), self._c.activation)
        return self._linear(h, {"down_proj": self._c.hidden_size})

    def _linear(self, x: Value, widths: dict[str, int]) -> Value:
        weights = [Weight(self._prefix + name, (width, x.width)) for name, width in widths.items()]
        biases = [Weight(f"{self._prefix}{name}_bias", (width,)) for name, width in widths.items()]
        return self._p.linear(x, *weights, biases=tuple(biases) if self._c.has_bias else ())

    def _norm(self, x: Value, name: str) -> Value:
        return layer_norm(self._p, x, self._prefix + name, self._c)
