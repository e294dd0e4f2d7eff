"""Where a setting comes from, what is refused, and that every setting explains itself."""

from dataclasses import fields
from typing import Any

import pytest

from legato.core.config import EngineConfig, ServerConfig
from legato.core.errors import ConfigError
from legato.core.settings import resolve_settings, unknown_variables


def from_variable(name: str, text: str, kind: type[Any] = EngineConfig) -> object:
    return getattr(resolve_settings(kind, {}, {f"LEGATO_{name.upper()}": text}).value, name)


def test_argument_wins_over_variable_over_default() -> None:
    environ = {"LEGATO_BLOCK_SIZE": "8", "LEGATO_MAX_NUM_SEQS": "3"}
    resolved = resolve_settings(EngineConfig, {"max_num_seqs": 5}, environ)
    assert (resolved.value.max_num_seqs, resolved.sources["max_num_seqs"]) == (5, "argument")
    assert (resolved.value.block_size, resolved.sources["block_size"]) == (8, "LEGATO_BLOCK_SIZE")
    assert (resolved.value.num_pages, resolved.sources["num_pages"]) == (None, "default")
    assert resolved.sources.keys() == {each.name for each in fields(EngineConfig)}


def test_defaults_fit_their_own_rules() -> None:
    for kind in (EngineConfig, ServerConfig):
        defaults = {each.name: each.default for each in fields(kind)}
        assert resolve_settings(kind, defaults, {}).value == kind()


def test_environment_of_the_process_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEGATO_PORT", "9999")
    assert resolve_settings(ServerConfig, {}).value.port == 9999


def test_variable_that_is_set_to_nothing_is_not_set() -> None:
    environ = {"LEGATO_OVERLAP": "", "LEGATO_TOKENIZER": "", "LEGATO_MAX_MODEL_LEN": ""}
    resolved = resolve_settings(EngineConfig, {}, environ)
    assert resolved.value == EngineConfig()
    assert set(resolved.sources.values()) == {"default"}


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("max_num_seq", "; did you mean max_num_seqs?"),
        ("max-model-len", "; did you mean max_model_len?"),
        ("zzz", "there is no setting 'zzz'$"),
    ],
)
def test_unknown_setting_names_the_near_one(given: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        resolve_settings(EngineConfig, {given: 1}, {})


@pytest.mark.parametrize(("word", "value"), [("1", True), ("Yes", True), ("ON", True), ("true", True)])
def test_words_for_true(word: str, value: bool) -> None:
    assert from_variable("enable_log_requests", word, ServerConfig) is value


@pytest.mark.parametrize("word", ["0", "No", "OFF", "false"])
def test_words_for_false(word: str) -> None:
    assert from_variable("overlap", word) is False


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("max_model_len", "128", 128),
        ("seed", "-5", -5),
        ("kv_cache_memory_bytes", "1000", 1000),
        ("kv_cache_memory_bytes", "2G", 2 * 2**30),
        ("kv_cache_memory_bytes", "3KiB", 3 * 2**10),
        ("kv_cache_memory_bytes", "4mb", 4 * 2**20),
        ("tokenizer", "/a/b", "/a/b"),
        ("batching", "static", "static"),
        ("served_model_name", "a, b,,c ", ("a", "b", "c")),
        ("served_model_name", "one", ("one",)),
    ],
)
def test_variables_are_read_by_their_type(name: str, text: str, value: object) -> None:
    assert from_variable(name, text) == value


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("max_model_len", "long", "LEGATO_MAX_MODEL_LEN=long: expected a whole number"),
        ("overlap", "perhaps", "LEGATO_OVERLAP=perhaps: expected yes, true, on, 1, or no, false, off, 0"),
        (
            "kv_cache_memory_bytes",
            "1.5G",
            "LEGATO_KV_CACHE_MEMORY_BYTES=1.5G: expected bytes, or .* like 512M",
        ),
        ("trust_remote_code", "yes", "LEGATO_TRUST_REMOTE_CODE is refused: legato never runs code"),
        ("block_size", "0", "LEGATO_BLOCK_SIZE=0: must be at least 1"),
        ("batching", "magic", "LEGATO_BATCHING=magic: choose one of continuous, prefill-first, static"),
    ],
)
def test_variable_that_does_not_fit_is_refused_by_its_name(name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_variable(name, text)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max_num_seqs", 0, "max_num_seqs=0: must be at least 1"),
        ("max_num_seqs", "4", "max_num_seqs='4': expected a whole number"),
        ("max_num_seqs", True, "max_num_seqs=True: expected a whole number"),
        ("max_num_batched_tokens", None, "max_num_batched_tokens=None: expected a whole number"),
        ("seed", 2**63, "seed=9223372036854775808: more than 64 bits hold"),
        ("overlap", 1, "overlap=1: expected True or False"),
        ("model", None, "model=None: expected a text"),
        ("backend", "gpu", "backend=gpu: choose one of"),
        ("port", 8001, "port is a setting of the HTTP server: give it to legato serve"),
        ("served_model_name", 5, "served_model_name: expected a text or a list of texts"),
        ("served_model_name", ["a", 5], "served_model_name: expected a text or a list of texts"),
    ],
)
def test_argument_that_does_not_fit_is_refused(name: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_settings(EngineConfig, {name: value}, {})


def test_other_spellings_of_a_flag_are_settings_and_variables_too() -> None:
    assert resolve_settings(EngineConfig, {"page_size": 8}, {}).value.block_size == 8
    resolved = resolve_settings(EngineConfig, {}, {"LEGATO_PAGE_SIZE": "4"})
    assert (resolved.value.block_size, resolved.sources["block_size"]) == (4, "LEGATO_PAGE_SIZE")
    with pytest.raises(ConfigError, match="page_size=0: must be at least 1"):
        resolve_settings(EngineConfig, {"page_size": 0}, {})
    with pytest.raises(ConfigError, match="page_size and block_size are one setting"):
        resolve_settings(EngineConfig, {"page_size": 8, "block_size": 8}, {})


@pytest.mark.parametrize(("port", "fault"), [(-1, "at least 0"), (65536, "at most 65535")])
def test_number_that_is_no_port_is_refused(port: int, fault: str) -> None:
    with pytest.raises(ConfigError, match=f"port={port}: must be {fault}"):
        resolve_settings(ServerConfig, {"port": port}, {})


@pytest.mark.parametrize("url", ["localhost:8001", "ftp://host", "http://", "http://host:port"])
def test_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="expected a URL like http://"):
        resolve_settings(ServerConfig, {"vllm_url": url}, {})


def test_variables_that_nothing_reads_are_told_with_the_near_name() -> None:
    environ = {"LEGATO_HOME": "/a", "LEGATO_ISA": "avx2", "LEGATO_PAGE_SIZE": "8", "LEGATOS": "no matter"}
    assert unknown_variables(environ) == []
    near, far = unknown_variables({"LEGATO_MAX_NUM_SEQ": "3", "LEGATO_XYZZY": "1"})
    assert near.endswith(
        "LEGATO_MAX_NUM_SEQ is not known and changes nothing; did you mean LEGATO_MAX_NUM_SEQS?"
    )
    assert far.endswith("LEGATO_XYZZY is not known and changes nothing")


def test_secret_that_does_not_fit_is_not_shown() -> None:
    with pytest.raises(ConfigError) as refusal:
        resolve_settings(ServerConfig, {"api_key": [b"sk-very-secret"]}, {})
    assert "secret" not in str(refusal.value)


def test_list_argument_may_be_one_text() -> None:
    given = {"served_model_name": "one"}
    assert resolve_settings(EngineConfig, given, {}).value.served_model_name == ("one",)
    assert resolve_settings(EngineConfig, {"served_model_name": ["a", "b"]}, {}).value.served_model_name == (
        "a",
        "b",
    )


@pytest.mark.parametrize("kind", [EngineConfig, ServerConfig])
def test_every_setting_has_help_a_type_and_a_name_of_its_own(kind: type[Any]) -> None:
    aliases: list[str] = []
    for each in fields(kind):
        assert len(each.metadata["help"]) > 10, each.name
        assert each.default is not None or "type" in each.metadata, each.name
        aliases += each.metadata.get("aliases", ())
    assert len(aliases) == len(set(aliases))


@pytest.mark.parametrize(("text", "value"), [("2", 2.0), ("0.25", 0.25), ("1e1", 10.0), ("0", 0.0)])
def test_setting_in_seconds_may_have_a_fraction(text: str, value: float) -> None:
    assert from_variable("ttft_limit_s", text, ServerConfig) == value
    resolved = resolve_settings(ServerConfig, {}, {"LEGATO_TTFT_LIMIT": text})
    assert resolved.value.ttft_limit_s == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [("soon", "expected a number"), ("-0.5", "at least 0"), ("nan", "finite"), ("inf", "finite")],
)
def test_number_that_is_none_or_out_of_range_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        from_variable("ttft_limit_s", text, ServerConfig)


def test_whole_number_may_stand_for_one_with_a_fraction() -> None:
    assert resolve_settings(ServerConfig, {"ttft_limit": 2}, {}).value.ttft_limit_s == 2.0
    with pytest.raises(ConfigError, match="expected a number"):
        resolve_settings(ServerConfig, {"ttft_limit": True}, {})
