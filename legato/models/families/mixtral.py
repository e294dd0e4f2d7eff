"""Mixtral: a Mistral whose every MLP is a mixture of experts."""

from legato.models.decoder import Layer, decoder_program
from legato.models.decoder_settings import (
    read_decoder,
    read_mixture,
    read_num_layers,
    read_window,
    rope_of,
)
from legato.models.family import Described, Family
from legato.models.names import (
    FUSED_EXPERTS,
    GGUF_TENSORS,
    HF_TENSORS,
    STACKED_EXPERTS,
    interleaved,
    layer_tensors,
)
from legato.models.settings import Settings


def describe(settings: Settings) -> Described:
    settings.refuse("norm_topk_prob", True)
    width = settings.whole("intermediate_size")
    layer = Layer(
        rope_of(settings, default_theta=1e6),
        read_window(settings),
        read_mixture(settings, width=width, is_normalized=True, num_experts=8, top_k=2),
    )
    config = read_decoder(
        settings,
        layers=(layer,) * read_num_layers(settings),
        norm_eps=settings.number("rms_norm_eps", 1e-5),
    )
    return Described(decoder_program(config), config.max_position)


_EXPERT_PARTS = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
MIXTRAL = Family(
    hf_names=("MixtralForCausalLM", "mixtral"),
    gguf_names=("mixtral",),  # a llama with experts: modelfiles/gguf_config.py tells them apart
    describe=describe,
    hf_tensors=HF_TENSORS
    | layer_tensors({"router": "block_sparse_moe.gate"}, "model.layers.{i}.")
    | layer_tensors(
        {f"experts.{{e}}.{ours}": f"experts.{{e}}.{theirs}" for ours, theirs in _EXPERT_PARTS.items()},
        "model.layers.{i}.block_sparse_moe.",
    ),
    hf_others=(layer_tensors({"router": "mlp.gate"}, "model.layers.{i}.") | FUSED_EXPERTS,),
    gguf_tensors=interleaved(GGUF_TENSORS | STACKED_EXPERTS),
    gguf_others=(  # of early files
        layer_tensors(
            {f"experts.{{e}}.{part}_proj": f"ffn_{part}.{{e}}" for part in ("gate", "up", "down")}, "blk.{i}."
        ),
    ),
)
