"""Folders whose JSON files hold odd values: they are read, or an error names them."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from legato.core.config import EngineConfig
from legato.core.errors import ModelError
from legato.engine.assembly import load_engine
from legato.modelfiles.catalog import resolve
from legato.modelfiles.model_config import read_model_config
from legato.models.registry import build_model
from legato.tokenization.chat_template import load_chat_template
from legato.tokenization.tokenizer import load_tokenizer
from tests.fuzz.examples import counts, memory_below, mutated, run_examples
from tests.tiny_model import write_tiny_model

MAX_MEMORY_BYTES = 64 * 2**20
CONFIG_KEYS = (
    *(
        "rope_scaling",
        "rope_parameters",
        "head_dim",
        "sliding_window",
        "attention_bias",
        "quantization_config",
    ),
    *("partial_rotary_factor", "hidden_act", "architectures", "num_hidden_layers", "max_position_embeddings"),
)
GENERATION = {"eos_token_id": [272], "temperature": 0.5, "top_p": 0.9, "top_k": 40, "do_sample": True}
TOKENIZER_CONFIG = {
    "chat_template": "{{ messages[0]['content'] }}",
    "add_bos_token": False,
    "eos_token": {"content": "<|end|>"},
    "bos_token": "<|end|>",
    "added_tokens_decoder": {"272": {"content": "<|end|>", "special": True}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("fuzzed") / "model")


def load_everything(folder: Path) -> None:
    """As a server's two processes do; the one that is at fault names what it read."""
    failures = []
    for load in (resolve_defaults, load_tokenizer, load_chat_template, read_model_config, load_engine_of):
        try:
            load(folder)
        except ModelError as error:
            failures.append(str(error))
    for message in failures:
        assert folder.name in message
        assert len(message) < 1500
        assert message.replace("\n", "").isprintable()


def resolve_defaults(folder: Path) -> None:
    resolve(str(folder))


def load_engine_of(folder: Path) -> None:
    config = EngineConfig(
        model=str(folder), num_pages=4, block_size=16, backend="reference", packed_cache=False
    )
    load_engine(config, lambda *_: None).core.close()


def check_file(folder: Path, name: str, num_examples: int, values: st.SearchStrategy[Any]) -> None:
    """Let one file of a folder hold the drawn values, then what it held before."""
    file = folder / name
    before = file.read_bytes() if file.is_file() else None

    def check(value: Any) -> None:
        file.write_text(json.dumps(value))
        with memory_below(MAX_MEMORY_BYTES):
            load_everything(folder)

    try:
        run_examples(num_examples, check, values)
    finally:
        file.unlink() if before is None else file.write_bytes(before)


@counts(20, 500)
def test_settings_of_the_model(folder: Path, num_examples: int) -> None:
    config = json.loads((folder / "config.json").read_text())
    check_file(folder, "config.json", num_examples, mutated(config, also=CONFIG_KEYS))


@counts(10, 500)
def test_settings_of_generation(folder: Path, num_examples: int) -> None:
    check_file(folder, "generation_config.json", num_examples, mutated(GENERATION))


@counts(12, 500)
@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
def test_settings_of_the_tokenizer(folder: Path, num_examples: int, name: str) -> None:
    also = ("chat_template", "unk_token", "pad_token")
    check_file(folder, name, num_examples, mutated(TOKENIZER_CONFIG, also=also))


@counts(12, 500)
def test_tokenizer(folder: Path, num_examples: int) -> None:
    """The library that reads it may panic."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    check_file(folder, "tokenizer.json", num_examples, mutated(tokenizer))


def load_everything_or_raise(folder: Path) -> None:
    for load in (resolve_defaults, load_tokenizer, read_model_config):
        load(folder)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.json", b""),
        ("config.json", b"[" * 100_000),
        ("config.json", b'{"hidden_size": ' + b"9" * 5000 + b"}"),
        ("config.json", b"\xff\xfe{}"),
        ("config.json", b"[]"),
        ("tokenizer.json", b"{"),
        ("tokenizer.json", b"[" * 100_000),
        ("tokenizer_config.json", b"\xff"),
        ("generation_config.json", b'"x"'),
    ],
)
def test_files_that_are_no_object_are_named(tmp_path: Path, name: str, text: bytes) -> None:
    folder = write_tiny_model(tmp_path / "model")
    (folder / name).write_bytes(text)
    with pytest.raises(ModelError, match=name):
        load_everything_or_raise(folder)


@pytest.mark.parametrize(
    "name", ["num_hidden_layers", "max_position_embeddings", "vocab_size", "hidden_size"]
)
@pytest.mark.parametrize("value", [2**31, 10**9, 10**30])
def test_sizes_beyond_any_model_are_refused_before_anything_is_made_of_them(
    folder: Path, name: str, value: int
) -> None:
    config = json.loads((folder / "config.json").read_text())

    def load(value: int) -> None:
        (folder / "config.json").write_text(json.dumps(config | {name: value}))
        with memory_below(2**20), pytest.raises(ModelError, match=r"not a whole number from 1 to \d+"):
            build_model(read_model_config(folder))

    try:
        load(value)
    finally:
        (folder / "config.json").write_text(json.dumps(config))
