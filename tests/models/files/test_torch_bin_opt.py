"""OPT as it lies on the hub: pytorch_model.bin, config.json, vocab.json, merges.txt, no more."""

import json
import tempfile
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, OPTConfig, OPTForCausalLM, PreTrainedModel

from legato.modelfiles.catalog import resolve
from legato.tokenization.tokenizer import load_tokenizer
from tests.model_builders import write_json
from tests.models.families import OPT, VOCAB, make
from tests.models.test_hf_parity import (
    TOLERANCE,
    compile_model,
    hf_logits,
    our_logits,
    random_ids,
    worst_difference,
)
from tests.tokenization.formats.test_vocab_files import NAMED, write_folder

pytestmark = pytest.mark.oracle

LAYOUTS = {"zip": True, "legacy": False}
FOUR_FILES = {"pytorch_model.bin", "config.json", "vocab.json", "merges.txt"}
SETTINGS = NAMED | {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True}
BOS_ID = 2  # </s>
PROMPT = "The capital of France is Paris, and the capital of Italy is"


def save_as_bin(model: PreTrainedModel, folder: Path, *, is_zip: bool) -> None:
    model.config.save_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin", _use_new_zipfile_serialization=is_zip)


def assert_same_logits(folder: Path, theirs: PreTrainedModel, token_ids: list[int], backend: str) -> None:
    ours = our_logits(compile_model(folder, backend), token_ids)
    assert worst_difference(ours, hf_logits(theirs, token_ids)) <= TOLERANCE


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_tiny_opt_from_a_bin_has_hugging_faces_logits(tmp_path: Path, backend: str, layout: str) -> None:
    model = make("opt")
    save_as_bin(model, tmp_path, is_zip=LAYOUTS[layout])
    assert_same_logits(tmp_path, model, random_ids(60, VOCAB), backend)


def test_tiny_opts_four_files_are_enough_for_ids_and_logits(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {})
    vocab_size = len(json.loads((folder / "vocab.json").read_bytes()))
    model = OPTForCausalLM(OPTConfig(**OPT | {"vocab_size": vocab_size})).eval()
    save_as_bin(model, folder, is_zip=True)
    (folder / "generation_config.json").unlink(missing_ok=True)
    assert {each.name for each in folder.iterdir()} == FOUR_FILES
    tokenizer = load_tokenizer(folder)
    assert tokenizer is not None
    token_ids = tokenizer.encode(PROMPT)

    write_json(folder / "tokenizer_config.json", SETTINGS)  # transformers does not guess them
    assert token_ids == AutoTokenizer.from_pretrained(folder).encode(PROMPT)
    assert token_ids[0] == BOS_ID
    for backend in ("reference", "cpu"):
        assert_same_logits(folder, model, token_ids, backend)


def test_tiny_opt_from_shards_has_hugging_faces_logits(tmp_path: Path) -> None:
    model = make("opt")
    model.config.save_pretrained(tmp_path)
    names = [f"pytorch_model-0000{number}-of-00002.bin" for number in (1, 2)]
    state = model.state_dict()
    weight_map = {name: names[index % 2] for index, name in enumerate(state)}
    for shard in names:
        torch.save({name: state[name] for name in state if weight_map[name] == shard}, tmp_path / shard)
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert_same_logits(tmp_path, model, random_ids(60, VOCAB), "reference")


@pytest.mark.hub
def test_opt_125m_has_hugging_faces_ids_and_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """From its pickled weights, into a cache of its own: what else is in the user's is not looked at."""
    with tempfile.TemporaryDirectory() as cache:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", cache)
        folder = resolve("facebook/opt-125m").path
        assert not list(folder.glob("*.safetensors"))
        theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        tokenizer = load_tokenizer(folder)
        assert tokenizer is not None
        token_ids = tokenizer.encode(PROMPT)
        assert token_ids == AutoTokenizer.from_pretrained(folder).encode(PROMPT)
        assert token_ids[0] == BOS_ID
        assert_same_logits(folder, theirs, token_ids, "cpu")
