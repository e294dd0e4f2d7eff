"""Mistral: a Llama whose layers may all attend in a window."""

from legato.models.decoder import Layer, decoder_program
from legato.models.decoder_settings import read_decoder, read_num_layers, read_window, rope_of
from legato.models.family import Described, Family
from legato.models.names import HF_PREFIXES, HF_TENSORS, IMAGE_TENSORS
from legato.models.settings import Settings

DEFAULT_WINDOW = 4096  # where the setting is absent; null is none


def describe(settings: Settings) -> Described:
    layer = Layer(rope_of(settings), read_window(settings, default=DEFAULT_WINDOW))
    config = read_decoder(settings, layers=(layer,) * read_num_layers(settings))
    return Described(decoder_program(config), config.max_position)


MISTRAL = Family(
    hf_names=("MistralForCausalLM", "mistral", "Mistral3ForConditionalGeneration"),  # a llama in .gguf files
    describe=describe,
    hf_tensors=HF_TENSORS,
    hf_prefixes=HF_PREFIXES,
    harmless=IMAGE_TENSORS,
)
