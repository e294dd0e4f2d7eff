"""Flags from the settings tables: spellings, lists, where a value came from."""

import argparse
from typing import Any

import pytest

from legato.cli.options import (
    add_model,
    add_models,
    add_settings,
    as_flags,
    config_table,
    given_models,
    given_settings,
    resolve,
)
from legato.cli.parser import Parser
from legato.core.config import EngineConfig, ServerConfig
from legato.core.errors import ConfigError


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LEGATO_PORT", "LEGATO_API_KEY", "LEGATO_MODEL"):
        monkeypatch.delenv(name, raising=False)


def parse(*argv: str) -> argparse.Namespace:
    parser = Parser(prog="test")
    add_model(parser)
    add_settings(parser, EngineConfig, "engine")
    add_settings(parser, ServerConfig, "server")
    return parser.parse_args(argv)


def test_second_model_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse("--model", "a", "-m", "a").model == "a"
    with pytest.raises(SystemExit):
        parse("--model", "a", "-m", "b")
    assert "this command takes one model, not a and b" in capsys.readouterr().err


def test_flag_wins_over_variable_and_variable_over_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEGATO_PORT", "9000")
    monkeypatch.setenv("LEGATO_HOST", "::1")
    resolved = resolve(ServerConfig, parse("--port", "9001"))
    assert (resolved.value.port, resolved.value.host, resolved.value.log_level) == (9001, "::1", "info")
    assert resolved.sources["port"] == "argument"
    assert resolved.sources["host"] == "LEGATO_HOST"
    assert resolved.sources["log_level"] == "default"


@pytest.mark.parametrize(
    ("argv", "field", "value"),
    [
        (["--no-overlap"], "overlap", False),
        (["--overlap"], "overlap", True),
        (["--no-enable-prefix-caching"], "enable_prefix_caching", False),
        (["--max-running-requests", "3"], "max_num_seqs", 3),
        (["-np", "3"], "max_num_seqs", 3),
        (["-c", "128"], "max_model_len", 128),
        (["--page-size=1"], "block_size", 1),
        (["--batching", "static"], "batching", "static"),
        (["--seed", "-1"], "seed", -1),
        (["--kv-cache-memory-bytes", "64M"], "kv_cache_memory_bytes", 64 * 2**20),
        (["--served-model-name", "a,b", "--served-model-name", "c"], "served_model_name", ("a", "b", "c")),
    ],
)
def test_flag_sets_field(argv: list[str], field: str, value: object) -> None:
    assert getattr(resolve(EngineConfig, parse(*argv)).value, field) == value


@pytest.mark.parametrize(
    "argv",
    [["m"], ["--model", "m"], ["-m", "m"], ["--model-path", "m"], ["m", "-m", "m"], ["--port", "1", "m"]],
)
def test_model_is_named_by_position_or_by_flag(argv: list[str]) -> None:
    assert resolve(EngineConfig, parse(*argv)).value.model == "m"


def test_two_different_models_are_refused() -> None:
    with pytest.raises(ConfigError, match="two models are named: a and --model b"):
        resolve(EngineConfig, parse("a", "--model", "b"))


@pytest.mark.parametrize(
    ("argv", "models"),
    [
        ([], []),
        (["a"], ["a"]),
        (["a", "b"], ["a", "b"]),
        (["--model", "a", "-m", "b"], ["a", "b"]),
        (["a", "--model", "a"], ["a"]),
    ],
)
def test_several_models_are_named_by_position_or_by_flag(argv: list[str], models: list[str]) -> None:
    parser = Parser(prog="test")
    add_models(parser)
    arguments = parser.parse_args(argv)
    assert given_models(arguments) == models
    assert given_settings(EngineConfig, arguments) == ({"model": ",".join(models)} if models else {})


def test_models_in_two_ways_are_refused() -> None:
    parser = Parser(prog="test")
    add_models(parser)
    with pytest.raises(ConfigError, match="two ways: a and --model b --model c; name all"):
        given_models(parser.parse_args(["a", "--model", "b", "--model", "c"]))


@pytest.mark.parametrize("argv", [["a", "b", "a"], ["-m", "a", "-m", "a"]])
def test_model_that_is_named_twice_is_refused(argv: list[str]) -> None:
    parser = Parser(prog="test")
    add_models(parser)
    with pytest.raises(ConfigError, match="the model a is named twice"):
        given_models(parser.parse_args(argv))


def test_value_below_the_least_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^--max-num-seqs 0: must be at least 1"):
        resolve(EngineConfig, parse("--max-num-seqs", "0"))


@pytest.mark.parametrize(
    ("kind", "flag"),
    [
        (ServerConfig, "--max-requests-per-key N"),
        (ServerConfig, "--requests-per-minute-per-key N"),
        (ServerConfig, "--queue-timeout-s SECONDS"),
        (ServerConfig, "--port PORT"),
        (EngineConfig, "--max-num-seqs N"),
        (EngineConfig, "--max-model-len TOKENS"),
        (EngineConfig, "--long-prefill-token-threshold TOKENS"),
        (EngineConfig, "--kv-cache-memory-bytes BYTES"),
        (EngineConfig, "--tokenizer TOKENIZER"),
    ],
)
def test_placeholder_says_what_kind_of_value_it_is(kind: type[Any], flag: str) -> None:
    parser = Parser(prog="test")
    add_settings(parser, kind, "all")
    assert f"[{flag}]" in " ".join(parser.format_usage().split())


def test_flags_are_not_shortened() -> None:
    with pytest.raises(SystemExit):
        parse("--max-model", "5")


def test_table_shows_values_and_sources_but_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEGATO_API_KEY", "hidden-1,hidden-2")
    table = config_table(
        resolve(ServerConfig, parse("--port", "9001")), resolve(EngineConfig, parse("--no-overlap"))
    )
    rows = {line.split()[0]: line.split()[1:] for line in table.splitlines()}
    assert rows["--port"] == ["9001", "argument"]
    assert rows["--api-key"] == ["***", "LEGATO_API_KEY"]
    assert rows["--overlap"] == ["no", "argument"]
    assert rows["--max-model-len"] == ["-", "default"]
    assert "hidden" not in table


def test_settings_that_are_given_are_flags_again() -> None:
    line = ["m.gguf", "--dtype", "float32", "--no-overlap", "--num-pages", "8", "--served-model-name", "a,b"]
    settings = given_settings(EngineConfig, parse(*line))
    flags = as_flags(settings)
    assert sorted(flags) == sorted(["--model", *line])
    assert given_settings(EngineConfig, parse(*flags)) == settings
