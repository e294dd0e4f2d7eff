"""A model's settings as its family reads them: each is checked, and none that changes numbers is ignored."""

import logging
import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar

from legato.core.errors import ModelError, brief
from legato.modelfiles.model_config import MAX_SIZE

PLAIN: dict[str, tuple[Any, ...]] = {  # settings that change numbers, and the values with which they do not
    "_remove_final_layer_norm": (False,),
    "alibi": (False,),
    "attention_bias": (False,),
    "attention_multiplier": (),
    "attn_logit_softcapping": (),
    "attn_temperature_tuning": (False,),
    "clip_qkv": (),
    "embedding_multiplier": (1, 1.0),
    "final_logit_softcapping": (),
    "full_attn_mod": (1,),
    "interpolate_factor": (1, 1.0),
    "lm_head_bias": (False,),
    "logit_scale": (1, 1.0),
    "logits_scaling": (1, 1.0),
    "mlp_bias": (False,),
    "no_rope_layers": ([],),
    "norm_after": (False,),
    "num_experts": (0, 1),
    "num_local_experts": (0, 1),
    "parallel_attn": (False,),
    "parallel_residual": (False,),
    "partial_rotary_factor": (1, 1.0),
    "position_embedding_type": ("rope", "absolute"),
    "qk_layernorm": (False,),
    "reorder_and_upcast_attn": (False,),
    "residual_multiplier": (1, 1.0),
    "rope_interleaved": (False,),
    "rope_parameters": ({},),
    "rope_scaling": ({},),
    "scale_attn_by_inverse_layer_idx": (False,),
    "sliding_window": (),
    "use_bidirectional_attention": (False,),
    "use_mrope": (False,),
    "use_qk_norm": (False,),
    "use_sliding_window": (False,),
}
HARMLESS = frozenset({
    "_attn_implementation", "_attn_implementation_autoset", "_name_or_path", "_num_labels",
    "activation_dropout",
    "add_cross_attention", "architectures", "attention_dropout", "attention_probs_dropout_prob",
    "attn_pdrop", "auto_map", "bad_words_ids", "bos_token_id", "cache_implementation",
    "chunk_size_feed_forward",
    "cross_attention_hidden_size", "dropout", "dtype", "embd_pdrop", "embedding_dropout", "eos_token_id",
    "finetuning_task", "gradient_checkpointing", "hidden_dropout", "id2label", "init_std",
    "initializer_range", "is_decoder", "is_encoder_decoder", "is_llama_config",
    "keys_to_ignore_at_inference", "label2id", "layerdrop", "max_length", "max_window_layers", "model_type",
    "n_special", "output_attentions", "output_hidden_states", "output_scores", "pad_token_id",
    "predict_special_tokens", "prefix", "pretraining_tp", "problem_type", "pruned_heads",
    "output_router_logits", "router_aux_loss_coef", "router_jitter_noise",  # of training
    "quantization_config",  # weights/quantized_folder.py honours or refuses it
    "resid_pdrop",
    "return_dict", "sep_token_id", "summary_activation", "summary_first_dropout", "summary_proj_to_labels",
    "summary_type", "summary_use_proj", "task_specific_params", "tokenizer_class", "torch_dtype",
    "torchscript", "transformers.js_config", "transformers_version", "unk_token_id", "unsloth_fixed",
    "unsloth_version", "use_bfloat16", "use_cache", "vocab_size",
})  # fmt: skip

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Settings:
    """Reads settings by their names in config.json; `finish` refuses what was not read and is not plain.

    Raises ModelError, naming the setting and `source`, for a value of another kind than is asked for.
    """

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.source = source
        self._values = values
        self._read: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        """The value as it is written; the default where there is none, or null."""
        self._read.add(name)
        value = self._values.get(name)
        return default if value is None else value

    def has(self, name: str) -> bool:
        """Whether there is such a setting, be it null."""
        return name in self._values

    def either(self, *names: str) -> str:
        """Of a setting's names, the one that the file has; the first where it has none."""
        self._read.update(names)
        return next((name for name in names if self._values.get(name) is not None), names[0])

    def whole(self, name: str, default: int | None = None, *, least: int = 1, most: int = MAX_SIZE) -> int:
        """A whole number, positive unless `least` is less, bounded before anything of its size is made."""
        value = self._required(name, default)
        if type(value) is not int or not least <= value <= most:
            raise self.error(f"{name} is {value!r}, not a whole number from {least} to {most}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive number."""
        value = self._required(name, default)
        if type(value) not in (int, float) or not 0 < value <= sys.float_info.max:
            raise self.error(f"{name} is {value!r}, not a positive number")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        return None if self.get(name) is None else self.number(name)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name, default)
        if type(value) is not bool:
            raise self.error(f"{name} is {value!r}, neither true nor false")
        return value

    def each(self, name: str, known: Collection[T], default: list[T]) -> list[T]:
        """A list of known values, of which as many count as there are in the default; so is [] read."""
        values = self.get(name, default)
        if not isinstance(values, list) or any(value not in known for value in values):
            raise self.error(f"{name} is no list of {' and '.join(map(repr, known))}: {values!r}")
        values = values or default
        if len(values) < len(default):
            raise self.error(f"{name} is of {len(values)} layers, not {len(default)}")
        return values[: len(default)]

    def table(self, name: str) -> Mapping[str, Any]:
        """An object, to be read as settings of its own; {} where there is none."""
        value = self.get(name, {})
        if not isinstance(value, Mapping):
            raise self.error(f"{name} = {value!r} is not supported: it is no object")
        return value

    def choice(self, name: str, known: Iterable[str], default: str | None = None) -> str:
        value, known = self._required(name, default), tuple(known)
        if value not in known:
            raise self.error(f"{name} = {value!r} is not supported, only {', '.join(map(repr, known))}")
        return str(value)

    def refuse(self, name: str, *plain: object) -> None:
        """Raise ModelError unless the setting is absent or one of these."""
        value = self.get(name)
        if value is not None and value not in plain:
            only = f", only {plain[0]!r}" if plain else ""
            raise self.error(f"{name} = {value!r} is not supported{only}")

    def finish(self) -> None:
        """To be called when the family has read what it honours."""
        for name, plain in PLAIN.items():
            if name not in self._read:
                self.refuse(name, *plain)
        unknown = sorted(self._values.keys() - self._read - HARMLESS)
        if unknown:
            logger.warning(
                "%s: settings that legato does not know: %s", self.source, brief(", ".join(unknown))
            )

    def refuse_unread(self) -> None:
        """Raise ModelError for any setting that was not read."""
        for name in sorted(self._values.keys() - self._read):
            self.refuse(name)

    def error(self, text: str) -> ModelError:
        return ModelError(f"{self.source}: {brief(text)}")

    def _required(self, name: str, default: Any) -> Any:
        value = self.get(name, default)
        if value is None:
            raise self.error(f"{name} is missing")
        return value
