"""How a config, a model and a machine are resolved into an engine."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import legato.engine.assembly as assembly
from legato.core.config import EngineConfig
from legato.core.errors import ConfigError, ModelError
from legato.engine.assembly import (
    load_engine,
    resolve_cache,
    resolve_max_model_len,
    resolve_scheduling,
)
from legato.executor.executor import InlineExecutor, ThreadExecutor
from legato.models.registry import build_model
from tests.engine.runs import build_engine
from tests.fakes import random_model
from tests.model_builders import TINY_LLAMA, write_json
from tests.tiny_model import MIXTRAL

GIB = 2**30
CONFIG, _ = random_model(seed=0, num_layers=1, vocab_size=16)
MODEL = build_model(CONFIG)  # one token of K/V takes 2 * 3 * 64 * 4 bytes
TOKEN_BYTES = 1536


def num_pages(free_bytes: int = 16 * GIB, **settings: object) -> int:
    return resolve_cache(EngineConfig(**settings), MODEL.program, "float32", free_bytes).num_pages  # type: ignore[arg-type]


@pytest.mark.parametrize(("wanted", "resolved"), [(None, 2048), (1, 1), (2048, 2048)])
def test_context_is_the_models_unless_less_is_wanted(wanted: int | None, resolved: int) -> None:
    assert resolve_max_model_len(EngineConfig(max_model_len=wanted), MODEL) == resolved


def test_more_context_than_the_model_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="--max-model-len 2049: the model was made for 1 to 2048 tokens"):
        resolve_max_model_len(EngineConfig(max_model_len=2049), MODEL)


@pytest.mark.parametrize(
    ("settings", "num_rows"),
    [
        ({}, 64),
        ({"batching": "prefill-first"}, 64),
        ({"batching": "static"}, 4),
        ({"batching": "static", "max_num_seqs": 9}, 9),
        ({"max_num_seqs": 1}, 1),
    ],
)
def test_requests_at_once(settings: dict[str, object], num_rows: int) -> None:
    assert resolve_scheduling(EngineConfig(**settings), 2048).max_num_seqs == num_rows


@pytest.mark.parametrize(
    ("settings", "step", "mixed", "long"),
    [
        ({}, 128, 128, None),
        ({"max_num_batched_tokens": 7}, 7, 128, None),
        ({"mixed_prefill_tokens": 9, "long_prefill_token_threshold": 5}, 128, 9, 5),
    ],
)
def test_tokens_of_a_step_and_of_prompts_in_it(
    settings: dict[str, object], step: int, mixed: int, long: int | None
) -> None:
    resolved = resolve_scheduling(EngineConfig(**settings), 2048)
    found = (resolved.max_step_tokens, resolved.mixed_prefill_tokens, resolved.long_prefill_tokens)
    assert found == (step, mixed, long)


def test_pool_is_a_gibibyte_or_half_of_what_is_free_beside_the_weights() -> None:
    assert num_pages(block_size=16) == GIB // (16 * TOKEN_BYTES)
    assert num_pages(GIB, block_size=16) == GIB // 2 // (16 * TOKEN_BYTES)
    with pytest.raises(ConfigError, match="pool of 0 bytes holds no page"):
        num_pages(-1)


def test_weights_take_their_part_before_the_pool_does(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(seed=0, num_layers=1, vocab_size=16)
    weight_bytes = sum(array.nbytes for array in model[1].values())
    monkeypatch.setattr(assembly, "usable_memory_bytes", lambda: weight_bytes + 10 * 16 * TOKEN_BYTES)
    engine = build_engine(model, num_pages=None)
    assert engine.cache.num_pages == 5
    engine.core.close()


def test_pool_as_told_in_bytes_or_pages() -> None:
    assert num_pages(kv_cache_memory_bytes=10 * 16 * TOKEN_BYTES + 1) == 10
    assert num_pages(kv_cache_memory_bytes=TOKEN_BYTES, block_size=1) == 1
    assert num_pages(num_pages=7, kv_cache_memory_bytes=1) == 7


def test_pool_without_a_page_is_refused() -> None:
    with pytest.raises(ConfigError, match="pool of 24575 bytes holds no page: one takes 24576"):
        num_pages(kv_cache_memory_bytes=16 * TOKEN_BYTES - 1)


@pytest.mark.parametrize(
    "settings", [{"num_pages": 44}, {"kv_cache_memory_bytes": 44 * 16 * TOKEN_BYTES}, {"num_pages": 10**15}]
)
def test_pool_above_the_memory_is_refused(settings: dict[str, int]) -> None:
    free_bytes = 43 * 16 * TOKEN_BYTES
    assert num_pages(free_bytes, num_pages=43) == 43
    with pytest.raises(ConfigError, match=f"more than the {free_bytes} that this process may use"):
        num_pages(free_bytes, **settings)


def test_start_is_reported_stage_by_stage(tiny_model: Path) -> None:
    stages: dict[str, str] = {}
    engine = load_engine(
        EngineConfig(model=str(tiny_model), backend="reference", num_pages=6, block_size=8),
        lambda stage, detail, seconds: stages.update({stage: detail}),
    )
    engine.core.close()
    assert list(stages) == ["config", "weights", "pool", "warm"]
    assert stages["config"] == "LlamaForCausalLM, 2 layers, context 512"
    assert stages["pool"] == "6 pages of 8, 48 tokens, reference-float32"
    assert (engine.max_model_len, engine.cache.num_pages, engine.cache.page_size) == (512, 6, 8)
    assert engine.core.limits.pool_len == 48
    assert engine.numeric_mode == "reference-float32"


@pytest.mark.parametrize("family", [{}, MIXTRAL], ids=["llama", "mixtral"])
def test_made_up_weights_need_a_config_alone(tmp_path: Path, family: dict[str, Any]) -> None:
    write_json(tmp_path / "config.json", TINY_LLAMA | family)
    config = EngineConfig(model=str(tmp_path), load_format="dummy", backend="reference", num_pages=8)
    assert load_engine(config, lambda *_: None).max_model_len == 64
    assert [each.name for each in tmp_path.iterdir()] == ["config.json"]


def test_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nothing here"):
        load_engine(EngineConfig(model=str(tmp_path / "nothing here")), lambda *_: None)


@pytest.mark.parametrize(("overlap", "kind"), [(True, ThreadExecutor), (False, InlineExecutor)])
def test_overlap_computes_in_a_thread_of_its_own(overlap: bool, kind: type) -> None:
    engine = build_engine(random_model(seed=0, num_layers=1, vocab_size=16), overlap=overlap, num_pages=4)
    assert type(engine.core._executor) is kind
    engine.core.close()


def test_end_of_sequence_beyond_the_vocabulary_never_comes() -> None:
    _, weights = random_model(seed=0, num_layers=1, vocab_size=16)
    engine = build_engine((replace(CONFIG, eos_ids=frozenset({2, 16, 99})), weights), num_pages=4)
    assert engine.core.eos_ids == {2}
    engine.core.close()
