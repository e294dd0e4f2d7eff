"""The text of models that see images too: its logits are those of transformers, in every layout of files."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from legato.core.errors import ModelError
from legato.modelfiles.model_config import read_model_config
from legato.models.registry import build_model
from legato.weights.loader import load_weights
from tests.model_builders import write_json
from tests.models.families import ALTERNATING, COMMON, GEMMA, VOCAB
from tests.models.test_hf_parity import (
    TOLERANCE,
    compile_model,
    hf_logits,
    our_logits,
    random_ids,
    worst_difference,
)

VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "image_size": 28,
    "patch_size": 14,
}
SCALED = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
TEXTS: dict[str, dict[str, Any]] = {
    "Gemma3": GEMMA | {"layer_types": ALTERNATING, "rope_parameters": SCALED},
    "Mistral3": COMMON | {"sliding_window": None},
}
OUTER: dict[str, dict[str, Any]] = {"Gemma3": {}, "Mistral3": {"tie_word_embeddings": False}}
RENAMED = {  # the prefix of the text's tensors in a file -> what the prefix and the head become
    "as saved now": {},
    "as on the hub": {
        "model.language_model.": "language_model.model.",
        "lm_head.": "language_model.lm_head.",
    },
}


def save(name: str, folder: Path, layout: str) -> PreTrainedModel:
    vision = "siglip_vision_model" if name == "Gemma3" else "pixtral"
    config = getattr(transformers, f"{name}Config")(
        text_config=TEXTS[name], vision_config=VISION | {"model_type": vision}, **OUTER[name]
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
    config.save_pretrained(folder)
    tensors = dict(model.state_dict())
    if config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    for old, new in RENAMED[layout].items():
        tensors = {key.replace(old, new, 1) if key.startswith(old) else key: tensors[key] for key in tensors}
    save_file(tensors, folder / "model.safetensors")
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    assert isinstance(model, PreTrainedModel)
    return model


@pytest.mark.oracle
@pytest.mark.parametrize("layout", RENAMED)
@pytest.mark.parametrize("name", TEXTS)
def test_logits_of_the_text_are_hugging_faces(
    tmp_path: Path, name: str, layout: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = save(name, tmp_path, layout)
    assert any("vision_tower" in key for key in load_file(tmp_path / "model.safetensors"))
    ids = random_ids(60, VOCAB)
    found = our_logits(compile_model(tmp_path, "cpu"), ids)
    assert worst_difference(found, hf_logits(model, ids)) <= TOLERANCE
    assert "not used" not in caplog.text


GEMMA_4B = {  # what google's file says, and no more: the rest is usual
    "hidden_size": 2560,
    "intermediate_size": 10_240,
    "model_type": "gemma3_text",
    "num_hidden_layers": 34,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024,
}


@pytest.mark.oracle
def test_what_a_text_config_leaves_out_is_what_it_is_to_transformers(tmp_path: Path) -> None:
    outer = {"architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": [1, 106]}
    write_json(tmp_path / "config.json", outer | {"text_config": GEMMA_4B})
    ours = read_model_config(tmp_path)
    assert ours.vocab_size == 262_208
    assert ours.eos_ids == {1, 106}
    full = transformers.Gemma3TextConfig(**GEMMA_4B | {"eos_token_id": [1, 106]}).to_dict()
    (tmp_path / "config.json").write_text(json.dumps(full | {"architectures": ["Gemma3ForCausalLM"]}))
    assert build_model(ours).program == build_model(read_model_config(tmp_path)).program


@pytest.mark.parametrize(
    ("text_config", "complaint"),
    [
        (None, "text_config of Gemma3ForConditionalGeneration must be an object, not None"),
        (5, "text_config of Gemma3ForConditionalGeneration must be an object, not 5"),
        ({"model_type": "gemma2"}, "is 'gemma2', and only 'gemma3_text' is read"),
        ({"hidden_activation": "tanh"}, "hidden_activation = 'tanh' is not supported"),
    ],
)
def test_text_that_is_not_read_is_refused_by_name(tmp_path: Path, text_config: Any, complaint: str) -> None:
    outer = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text_config}
    write_json(tmp_path / "config.json", outer)
    with pytest.raises(ModelError, match=complaint):
        build_model(read_model_config(tmp_path))


@pytest.mark.oracle
def test_text_that_lacks_a_tensor_is_refused_with_the_files_name_for_it(tmp_path: Path) -> None:
    save("Mistral3", tmp_path, "as on the hub")
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["language_model.lm_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    model = build_model(read_model_config(tmp_path))
    with pytest.raises(ModelError, match=r"'language_model\.lm_head\.weight' is missing"):
        load_weights(tmp_path, model.program, model.tensors)


def test_text_that_is_not_there_is_named(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"architectures": ["Gemma3ForConditionalGeneration"]})
    with pytest.raises(ModelError, match=r"text_config of Gemma3ForConditionalGeneration is missing"):
        read_model_config(tmp_path)
