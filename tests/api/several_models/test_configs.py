"""What several models share, what each has of its own, and what cannot be shared."""

from pathlib import Path
from typing import Any

import pytest

from legato.api.several_models.configs import config_of_each, split_models
from legato.core.config import EngineConfig
from legato.core.errors import ConfigError


def test_settings_hold_for_all_and_names_are_dealt_out_in_order() -> None:
    shared = EngineConfig(max_num_seqs=3, served_model_name=("one", "two"))
    configs = config_of_each(shared, ["org/a", "org/b"])
    assert [(each.model, each.served_model_name, each.max_num_seqs) for each in configs] == [
        ("org/a", ("one",), 3),
        ("org/b", ("two",), 3),
    ]


def test_models_have_their_own_names_by_default() -> None:
    configs = config_of_each(EngineConfig(), ["org/a", "/models/b.gguf"])
    assert [each.served_model_name for each in configs] == [("org/a",), ("b",)]


def test_one_model_keeps_everything() -> None:
    config = EngineConfig(served_model_name=("a", "b"), chat_template="t.jinja", num_pages=4)
    assert config_of_each(config, [config.model]) == [config]


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"record": "r.bin"}, "^--record cannot be shared by 2 models: a recording is of one engine"),
        ({"chat_template": "t"}, "^--chat-template cannot be shared"),
        ({"tokenizer": "t"}, "^--tokenizer cannot be shared"),
        ({"revision": "main"}, "^--revision cannot be shared"),
        ({"num_pages": 4}, "^--num-pages cannot be shared by 2 models: .*--kv-cache-memory-bytes"),
        ({"load_format": "dummy"}, "^--load-format dummy is for one model"),
        ({"served_model_name": ("one",)}, "^--served-model-name gives 1 name to 2 models"),
        ({"served_model_name": ("one", "one")}, "^two models would be called one"),
    ],
)
def test_what_fits_one_model_alone_is_refused(settings: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        config_of_each(EngineConfig(**settings), ["a", "b"])


def test_commas_part_models_but_not_the_name_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a,b").mkdir()
    assert split_models("a, b,") == ["a", "b"]
    assert split_models("a") == ["a"]
    assert split_models(f"a,{'b' * 255}") == ["a", "b" * 255]
    assert split_models(str(tmp_path / "a,b")) == [str(tmp_path / "a,b")]
