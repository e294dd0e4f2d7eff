"""Folders with vocab.json and merges.txt: the ids of transformers, and OPT's bos before each prompt."""

from pathlib import Path
from typing import Any

import pytest

from legato.core.errors import ModelError
from legato.modelfiles.model_config import read_model_config
from legato.tokenization.tokenizer import Tokenizer, load_tokenizer
from tests.model_builders import TINY_LLAMA, write_json
from tests.tokenization.hard_texts import HARD_TEXTS, byte_level_parts

OPT = {"model_type": "opt", "architectures": ["OPTForCausalLM"], "bos_token_id": 2, "eos_token_id": 2}
NAMED = {
    "bos_token": "</s>",
    "eos_token": {"__type": "AddedToken", "content": "</s>"},
    "unk_token": "</s>",
    "pad_token": "<pad>",
}


def write_folder(folder: Path, config: dict[str, Any], settings: dict[str, Any] | None = None) -> Path:
    """Ids 0 to 3 are <s>, <pad>, </s> and <unk>, as in OPT's vocabulary."""
    trained, merges = byte_level_parts()
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *sorted(trained, key=trained.__getitem__)]
    write_json(folder / "vocab.json", {token: token_id for token_id, token in enumerate(tokens)})
    lines = ["#version: 0.2", *(" ".join(merge) for merge in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    write_json(folder / "config.json", TINY_LLAMA | {"vocab_size": len(tokens)} | config)
    if settings is not None:
        write_json(folder / "tokenizer_config.json", settings)
    return folder


def load(folder: Path) -> Tokenizer:
    tokenizer = load_tokenizer(folder)
    assert tokenizer is not None
    return tokenizer


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("config", "settings"),
    [
        (OPT, NAMED | {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True}),
        ({"model_type": "gpt2"}, NAMED | {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}),
        ({"model_type": "qwen2"}, NAMED | {"tokenizer_class": "Qwen2Tokenizer"}),
    ],
)
def test_ids_are_those_of_transformers(
    tmp_path: Path, config: dict[str, Any], settings: dict[str, Any]
) -> None:
    from transformers import AutoTokenizer  # takes seconds to import

    folder = write_folder(tmp_path, config, settings)
    ours, theirs = load(folder), AutoTokenizer.from_pretrained(folder)
    for text in [*HARD_TEXTS, "a</s> b<pad>c"]:
        assert ours.encode(text) == theirs.encode(text), text


@pytest.mark.parametrize(
    ("config", "settings", "num_bos"),
    [
        (OPT, None, 1),  # nothing but the four files says so
        (OPT, NAMED, 1),
        (OPT, NAMED | {"add_bos_token": False}, 0),
        ({"model_type": "gpt2"}, NAMED, 0),
        ({"model_type": "gpt2"}, NAMED | {"add_bos_token": True}, 1),
    ],
)
def test_bos_goes_before_each_prompt_of_opt_and_where_the_settings_say_so(
    tmp_path: Path, config: dict[str, Any], settings: dict[str, Any] | None, num_bos: int
) -> None:
    tokenizer = load(write_folder(tmp_path, config, settings))
    ids = tokenizer.encode("Hello")
    assert ids == [2] * num_bos + tokenizer.encode("Hello", add_special_tokens=False)
    assert tokenizer.decode([*ids, 2]) == "Hello"
    assert tokenizer.encode("</s>", add_special_tokens=False) == [2]


def test_end_of_an_answer_is_the_tokenizers_too(tmp_path: Path) -> None:
    settings = {"eos_token": "<unk>"}
    assert read_model_config(write_folder(tmp_path, OPT, settings)).eos_ids == {2, 3}


def test_listed_tokens_are_found_whole_under_their_ids(tmp_path: Path) -> None:
    num_tokens = len(byte_level_parts()[0]) + 4
    listed = {
        "1": {"content": "<pad>", "special": True},
        str(num_tokens + 1): {"content": "<tool>", "special": False},
    }
    folder = write_folder(tmp_path, OPT, NAMED | {"added_tokens_decoder": listed})
    write_json(folder / "added_tokens.json", {"<|im_end|>": num_tokens})
    tokenizer = load(folder)
    assert tokenizer.encode("<tool><|im_end|><pad>", False) == [num_tokens + 1, num_tokens, 1]
    assert tokenizer.decode([num_tokens + 1, num_tokens, 1]) == "<tool><|im_end|>"


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (
            {"tokenizer_class": "CLIPTokenizer"},
            "'CLIPTokenizer'; .* GPT2Tokenizer and Qwen2Tokenizer: load it",
        ),
        ({"added_tokens_decoder": {"5000": {"content": "<x>"}}}, "'<x>' cannot have the id 5000"),
        ({"added_tokens_decoder": {"x": {"content": "<x>"}}}, "the id 'x'"),
        ({"added_tokens_decoder": {"5": 7}}, "holds 7, which is no object with a content"),
        ({"added_tokens_decoder": {"5": "<x>"}}, "holds '<x>', which is no object with a content"),
        ({"added_tokens_decoder": {"9" * 5000: {"content": "<x>"}}}, "the id '999"),
        ({"added_tokens_decoder": [3]}, r"tokenizer_config\.json: added_tokens_decoder is \[3\], not an obj"),
        ({"bos_token": "\ud800"}, r"tokenizer_config\.json holds text that is no Unicode"),
    ],
)
def test_settings_that_cannot_be_followed_are_refused(
    tmp_path: Path, settings: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ModelError, match=complaint):
        load_tokenizer(write_folder(tmp_path, OPT, settings))


@pytest.mark.parametrize(("there", "absent"), [("vocab.json", "merges.txt"), ("merges.txt", "vocab.json")])
def test_half_of_the_files_is_refused_with_what_is_missing(tmp_path: Path, there: str, absent: str) -> None:
    folder = write_folder(tmp_path, OPT)
    (folder / absent).unlink()
    with pytest.raises(ModelError, match=rf"has {there} without {absent}, .* --tokenizer DIR_OR_FILE"):
        load_tokenizer(folder)


@pytest.mark.parametrize(
    ("file", "text", "complaint"),
    [
        ("merges.txt", "a b c\n", r"merges\.txt: line 1 is not two tokens"),
        ("merges.txt", "\n#version: 0.2\nab\n", r"merges\.txt: line 3 is not two tokens"),
        ("merges.txt", "zq qz\n", r"merges\.txt does not fit vocab\.json"),
        ("vocab.json", '{"a": "b"}', r"vocab\.json does not give every token an id"),
        ("vocab.json", '{"a": 10000000000}', r"vocab\.json does not give every token an id"),
        ("vocab.json", "[]", r"vocab\.json holds no JSON object"),
    ],
)
def test_broken_file_is_named(tmp_path: Path, file: str, text: str, complaint: str) -> None:
    folder = write_folder(tmp_path, OPT)
    (folder / file).write_text(text)
    with pytest.raises(ModelError, match=complaint):
        load_tokenizer(folder)
