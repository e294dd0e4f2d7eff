"""From a model and a config to a core that waits for work, stage by stage."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from legato.backends.backend import KVLayout
from legato.backends.packed_cache import PackedCache
from legato.backends.stored_weight import AnyWeights, stored_bytes
from legato.core.config import DEFAULT_POOL_BYTES, STATIC_ROUND, CacheConfig, EngineConfig, SchedulerConfig
from legato.core.errors import ConfigError
from legato.core.request_limits import RequestLimits
from legato.engine.compute import choose_compute
from legato.engine.core import Core, CoreParts
from legato.executor.executor import Executor, InlineExecutor, NoBoard, StepBoard, ThreadExecutor
from legato.executor.forward_batch import BatchBuilder
from legato.executor.model_runner import ModelRunner
from legato.executor.request_table import RequestTable
from legato.kvcache.manager import KVCacheManager
from legato.modelfiles.fingerprint import weights_identity
from legato.modelfiles.folders import packed_folder
from legato.modelfiles.model_config import read_model_config
from legato.modelfiles.tokenizer_file import tokenizer_file
from legato.models.family import Model
from legato.models.registry import build_model
from legato.observability.memory import usable_memory_bytes
from legato.observability.recording.file import RecordingWriter
from legato.program.ops import Program
from legato.sampling.grammar import RowGrammars
from legato.scheduler.policy import make_policy
from legato.scheduler.recorded import RecordedScheduler
from legato.scheduler.scheduler import Scheduler
from legato.weights.dummy import dummy_weights
from legato.weights.loader import load_weights
from legato.weights.quantization import quantize_weights

logger = logging.getLogger(__name__)

Report = Callable[[str, str, float], None]  # stage, detail, seconds


@dataclass(frozen=True, slots=True)
class Engine:
    """A core and what its clients must know of it."""

    core: Core
    max_model_len: int
    cache: CacheConfig
    numeric_mode: str


class StageClock:
    """Reports each stage of the start with the seconds that it took."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._since = time.perf_counter()

    def done(self, stage: str, detail: str) -> None:
        now = time.perf_counter()
        self._report(stage, detail, now - self._since)
        self._since = now


def load_engine(config: EngineConfig, report: Report, board: StepBoard | None = None) -> Engine:
    """Load the model at the local path `config.model`. Raises ModelError or ConfigError."""
    stages = StageClock(report)
    path = Path(config.model)
    model = build_model(read_model_config(path))
    num_layers = KVLayout.of(model.program, 1, 1).num_layers
    stages.done("config", f"{model.config.architecture}, {num_layers} layers, context {model.max_position}")
    is_dummy = config.load_format == "dummy"
    stored = dummy_weights(model.program) if is_dummy else load_weights(path, model.program, model.tensors)
    weights = quantize_weights(stored, config.quantization)
    packed_cache = None
    if config.packed_cache and not is_dummy:
        identity = weights_identity(path)
        packed_cache = PackedCache(packed_folder(), path, identity, quantization=config.quantization)
    tokenizer = tokenizer_file(path, Path(config.tokenizer).expanduser() if config.tokenizer else None)
    return assemble(config, model, weights, stages, packed_cache, tokenizer, board)


def assemble(
    config: EngineConfig,
    model: Model,
    weights: AnyWeights,
    stages: StageClock,
    packed_cache: PackedCache | None = None,
    tokenizer: Path | None = None,
    board: StepBoard | None = None,
) -> Engine:
    """Build a core around a model and its weights.

    tokenizer  the tokenizer.json that grammars are kept to with, read with the first of them
    """
    max_model_len = resolve_max_model_len(config, model)
    scheduling = resolve_scheduling(config, max_model_len)
    eos_ids = frozenset(each for each in model.config.eos_ids if each < model.vocab_size)  # can be sampled
    grammars = RowGrammars(tokenizer, eos_ids, model.vocab_size)
    compute = choose_compute(config, scheduling, packed_cache, grammars)
    free_bytes = usable_memory_bytes() - compute.backend.weight_bytes(weights)
    cache = resolve_cache(config, model.program, compute.kv_dtype, free_bytes)
    layout = KVLayout.of(model.program, cache.num_pages, cache.page_size, compute.kv_dtype)
    program = compute.backend.compile(model.program, weights, layout)
    board = board or NoBoard()
    program.beat_into(np.frombuffer(board.pulse(), np.uint64))
    stages.done("weights", f"{len(weights)} arrays, {stored_bytes(weights) / 2**20:.0f} MiB")
    pool_len = cache.num_pages * cache.page_size
    stages.done(
        "pool", f"{cache.num_pages} pages of {cache.page_size}, {pool_len} tokens, {compute.numeric_mode}"
    )
    builder = BatchBuilder(scheduling.max_num_seqs, -(-max_model_len // cache.page_size))
    runner = ModelRunner(program, compute.sampler, scheduling.max_num_seqs, max_model_len)
    runner.warm()
    stages.done("warm", "one token computed")
    make_executor = ThreadExecutor if config.overlap else InlineExecutor
    executor: Executor = make_executor(builder, runner, board)
    core = Core(
        CoreParts(
            scheduler=make_scheduler(config, scheduling, cache),
            executor=executor,
            limits=RequestLimits(max_model_len=max_model_len, pool_len=pool_len, vocab_size=model.vocab_size),
            eos_ids=eos_ids,
            lookahead=1 if config.overlap else 0,
            grammars=grammars,
        )
    )
    return Engine(core, max_model_len, cache, numeric_mode=compute.numeric_mode)


def make_scheduler(config: EngineConfig, scheduling: SchedulerConfig, cache: CacheConfig) -> Scheduler:
    """The scheduler that the config asks for. Raises ConfigError when --record cannot be written."""
    policy = make_policy(config.batching, time.monotonic)
    kv, rows = KVCacheManager(cache), RequestTable(scheduling.max_num_seqs)
    if config.record is None:
        return Scheduler(scheduling, policy, kv, rows)
    recorder = RecordingWriter(Path(config.record).expanduser(), config.record_bytes)
    return RecordedScheduler(scheduling, policy, kv, rows, batching=config.batching, recorder=recorder)


def without_lost_recording(config: EngineConfig) -> EngineConfig:
    """The config, with no recording when that cannot be gone on with: the requests can."""
    if config.record is None:
        return config
    try:
        RecordingWriter(Path(config.record).expanduser(), config.record_bytes).close()
    except ConfigError as error:
        logger.error("the recording has ended, requests go on: %s", error)
        return replace(config, record=None)
    return config


def resolve_max_model_len(config: EngineConfig, model: Model) -> int:
    wanted = config.max_model_len or model.max_position
    if not 0 < wanted <= model.max_position:
        raise ConfigError(
            f"--max-model-len {wanted}: the model was made for 1 to {model.max_position} tokens"
        )
    return wanted


def resolve_scheduling(config: EngineConfig, max_model_len: int) -> SchedulerConfig:
    return SchedulerConfig(
        max_num_seqs=config.max_num_seqs or (STATIC_ROUND if config.batching == "static" else 64),
        max_step_tokens=config.max_num_batched_tokens,
        mixed_prefill_tokens=config.mixed_prefill_tokens,
        long_prefill_tokens=config.long_prefill_token_threshold,
        max_model_len=max_model_len,
        max_queued=config.max_num_queued_reqs,
        max_queued_tokens=config.max_num_queued_tokens,
        is_fair=config.fair_sharing and config.batching == "continuous",
        fair_step_tokens=config.fair_step_tokens,
    )


def resolve_cache(config: EngineConfig, program: Program, kv_dtype: str, free_bytes: int) -> CacheConfig:
    """Size the K/V pool: as told, else 1 GiB or half of what is free beside the weights, what is less."""
    page_bytes = KVLayout.of(program, 1, config.block_size, kv_dtype).page_bytes
    free_bytes = max(free_bytes, 0)
    pool_bytes = config.kv_cache_memory_bytes or min(DEFAULT_POOL_BYTES, free_bytes // 2)
    num_pages = config.num_pages or pool_bytes // page_bytes
    if num_pages < 1:
        raise ConfigError(
            f"a K/V pool of {pool_bytes} bytes holds no page: one takes {page_bytes};"
            " raise --kv-cache-memory-bytes or lower --block-size"
        )
    if num_pages * page_bytes > free_bytes:
        raise ConfigError(
            f"a K/V pool of {num_pages * page_bytes} bytes is more than the {free_bytes} that this process"
            " may use beside its weights; lower --kv-cache-memory-bytes or --num-pages"
        )
    return CacheConfig(
        num_pages=num_pages, page_size=config.block_size, enable_prefix_caching=config.enable_prefix_caching
    )
