"""Phi-3 and Phi-4-mini: a Llama with q, k and v in one matrix and gate and up in another."""

from legato.models.decoder import Layer, decoder_program
from legato.models.decoder_settings import read_decoder, read_num_layers, read_window, rope_of
from legato.models.family import Described, Family
from legato.models.names import GGUF_TENSORS, HF_TENSORS, layer_tensors
from legato.models.rope import rope_parameters
from legato.models.settings import Settings


def describe(settings: Settings) -> Described:
    """With longrope the context ends where the model was first trained to: see models/rope.py."""
    parameters = dict(rope_parameters(settings))
    for name in ("type", "rope_type"):
        if parameters.get(name) == "yarn":  # some early files call their longrope so
            parameters[name] = "longrope"
    rope = rope_of(settings, parameters=parameters, may_be_partial=True)
    layer = Layer(rope, read_window(settings))
    config = read_decoder(
        settings,
        layers=(layer,) * read_num_layers(settings),
        norm_eps=settings.number("rms_norm_eps", 1e-5),
        is_fused=True,
    )
    return Described(decoder_program(config), config.max_position)


PHI3 = Family(
    hf_names=("Phi3ForCausalLM", "phi3"),
    gguf_names=("phi3",),
    describe=describe,
    hf_tensors=HF_TENSORS
    | layer_tensors(
        {"qkv_proj": "self_attn.qkv_proj", "gate_up_proj": "mlp.gate_up_proj"}, "model.layers.{i}."
    ),
    gguf_tensors=GGUF_TENSORS | layer_tensors({"gate_up_proj": "ffn_up"}, "blk.{i}."),
)
