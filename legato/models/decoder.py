"""The decoder that most families share: pre-norm attention and SwiGLU blocks, written once as a program."""

from dataclasses import dataclass

from legato.program.builder import Builder
from legato.program.ops import Activation, Program, RopeConfig, Value, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Widths and constants of a decoder; a family's file derives it from the model's config."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope: RopeConfig
    tie_word_embeddings: bool

    @property
    def q_dim(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        return self.num_kv_heads * self.head_dim


class LayerWeights:
    """The weights of layer `index`; those that share their input stand together."""

    def __init__(self, index: int, c: DecoderConfig) -> None:
        def weight(name: str, *shape: int) -> Weight:
            return Weight(f"layers.{index}.{name}", shape)

        self.index = index
        self.input_norm = weight("input_norm", c.hidden_size)
        self.qkv = (
            weight("q_proj", c.q_dim, c.hidden_size),
            weight("k_proj", c.kv_dim, c.hidden_size),
            weight("v_proj", c.kv_dim, c.hidden_size),
        )
        self.out = weight("o_proj", c.hidden_size, c.q_dim)
        self.post_norm = weight("post_norm", c.hidden_size)
        self.gate_up = (
            weight("gate_proj", c.intermediate_size, c.hidden_size),
            weight("up_proj", c.intermediate_size, c.hidden_size),
        )
        self.down = weight("down_proj", c.hidden_size, c.intermediate_size)


def decoder_program(c: DecoderConfig) -> Program:
    """Token ids to logits; only the rows that sample pay for the vocabulary's product."""
    embed_tokens = Weight("embed_tokens", (c.vocab_size, c.hidden_size))
    lm_head = embed_tokens if c.tie_word_embeddings else Weight("lm_head", (c.vocab_size, c.hidden_size))
    p = Builder()
    x = p.embedding(embed_tokens)
    for index in range(c.num_layers):
        layer = LayerWeights(index, c)
        x = attention_block(p, x, layer, c)
        x = mlp_block(p, x, layer, c)
    x = p.rms_norm(p.select(x), Weight("final_norm", (c.hidden_size,)), eps=c.rms_norm_eps)
    return p.output(p.linear(x, lm_head))


def attention_block(p: Builder, x: Value, layer: LayerWeights, c: DecoderConfig) -> Value:
    h = p.rms_norm(x, layer.input_norm, eps=c.rms_norm_eps)
    q, k, v = p.split(p.linear(h, *layer.qkv), c.q_dim, c.kv_dim, c.kv_dim)
    q, k = p.rope(q, k, c.rope)
    h = p.attention(q, k, v, layer.index, head_dim=c.head_dim, scale=c.head_dim**-0.5)
    return p.add(x, p.linear(h, layer.out))


def mlp_block(p: Builder, x: Value, layer: LayerWeights, c: DecoderConfig) -> Value:
    h = p.rms_norm(x, layer.post_norm, eps=c.rms_norm_eps)
    gate, up = p.split(p.linear(h, *layer.gate_up), c.intermediate_size, c.intermediate_size)
    return p.add(x, p.linear(p.gate(gate, up, Activation.SILU), layer.down))
