"""What number formats cost a model: errors of its weights, and of the next tokens that it expects."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from legato.backends.backend import Backend, CompiledProgram, KVLayout
from legato.backends.stored_weight import StoredWeight, num_values
from legato.cli.models.lone_request import (
    CHUNK_LEN,
    PAGE_SIZE,
    chunk_logits,
    continue_greedily,
    pages_for,
)
from legato.cli.models.opening import make_opening
from legato.core.config import EngineConfig
from legato.core.errors import ConfigError, ModelError, printable
from legato.engine.assembly import resolve_max_model_len, resolve_scheduling
from legato.engine.compute import Compute, choose_compute
from legato.modelfiles.model_config import read_model_config
from legato.models.family import Model
from legato.models.registry import build_model
from legato.program.ops import Program, products_of
from legato.tokenization.tokenizer import Tokenizer, load_tokenizer
from legato.weights.loader import load_weights
from legato.weights.quantization import quantize_weights

MAX_NEW_TOKENS = 24  # of the first words

Weights = Mapping[str, StoredWeight]
Report = Callable[[float, str], None]  # share of the work that is done, what is at hand


@dataclass(frozen=True, slots=True)
class WeightErrors:
    """Of one kind of weight, say q_proj, over its layers: |kept - exact| / |exact|, Frobenius norms."""

    kind: str
    formats: tuple[str, ...]
    mean: float
    max: float


@dataclass(frozen=True, slots=True)
class TextErrors:
    """How next-token distributions over a text differ from exact ones.

    mean_kl, max_kl   over its positions, KL(exact || kept) in nats
    perplexity        of the text; exact_perplexity likewise
    agreement         share of positions whose most likely token is the same
    """

    num_tokens: int
    mean_kl: float
    max_kl: float
    perplexity: float
    exact_perplexity: float
    agreement: float


@dataclass(frozen=True, slots=True)
class Fidelity:
    """A model as it would be served against its file's weights, decoded, in float32.

    weight_bytes    about what the weights take in memory
    kv_token_bytes  what a token takes in the K/V pool
    prompt, words   what it was asked, or was to go on with, and what it said, greedily
    """

    numeric_mode: str
    exact_mode: str
    num_parameters: int
    weight_bytes: int
    kv_token_bytes: int
    weights: list[WeightErrors]
    text: TextErrors
    prompt: str
    words: str


def check(config: EngineConfig, text: str, report: Report) -> Fidelity:
    """Compute a text with the model at the local path `config.model`, as configured and exactly.

    Raises ModelError or ConfigError.
    """
    report(0, "weights")
    path = Path(config.model)
    model = build_model(read_model_config(path))
    tokenizer = tokenizer_of(config)
    max_len = resolve_max_model_len(config, model)
    token_ids = encode(config, model, tokenizer, text)[:max_len]
    opening = make_opening(config, tokenizer)
    prompt_ids = opening.token_ids[: max_len - 1]
    words_end = min(max_len, len(prompt_ids) + MAX_NEW_TOKENS)
    exact_weights = load_weights(path, model.program, model.tensors)
    kept_weights = quantize_weights(exact_weights, config.quantization)
    program = model.program
    kept = _compute(config)
    exact = _compute(
        replace(
            config, backend=kept.backend.name, dtype="float32", quantization="none", kv_cache_dtype="auto"
        )
    )
    errors = weight_errors(kept.backend, program, exact_weights, kept_weights)
    report(0.1, "packing")

    def compiled(compute: Compute, weights: Weights) -> CompiledProgram:
        return compute.backend.compile(program, weights, layout(compute))

    def layout(compute: Compute) -> KVLayout:
        num_pages = pages_for(max(len(token_ids), words_end))
        return KVLayout.of(program, num_pages, PAGE_SIZE, compute.kv_dtype)

    exact_rows = log_probabilities(compiled(exact, exact_weights), token_ids)
    kept_program = compiled(kept, kept_weights)
    kept_rows = log_probabilities(kept_program, token_ids)

    def reported(chunks: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        for start, chunk in enumerate(chunks):
            report(0.2 + 0.8 * start * CHUNK_LEN / len(token_ids), "text")
            yield chunk

    text_errors = compare(exact_rows, reported(kept_rows), token_ids)
    word_ids = continue_greedily(kept_program, prompt_ids, words_end, model.config.eos_ids)
    return Fidelity(
        numeric_mode=kept.numeric_mode,
        exact_mode=exact.numeric_mode,
        num_parameters=num_values(exact_weights),
        weight_bytes=kept.backend.weight_bytes(kept_weights),
        kv_token_bytes=layout(kept).token_bytes,
        weights=errors,
        text=text_errors,
        prompt=opening.text,
        words=printable(tokenizer.decode(word_ids)),
    )


def tokenizer_of(config: EngineConfig) -> Tokenizer:
    override = None if config.tokenizer is None else Path(config.tokenizer).expanduser()
    tokenizer = load_tokenizer(Path(config.model), override)
    if tokenizer is None:
        raise ModelError(f"{config.model} has no tokenizer for the text: name one with --tokenizer")
    return tokenizer


def encode(config: EngineConfig, model: Model, tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of the text. Raises ConfigError or ModelError when they cannot be computed."""
    token_ids = tokenizer.encode(text)
    if len(token_ids) < 2:
        raise ConfigError(
            f"the text must be 2 tokens long at least, for the next one: it is {len(token_ids)}"
        )
    if max(token_ids) >= model.vocab_size:
        raise ModelError(
            f"{config.model}: the tokenizer gives id {max(token_ids)}, and the model's vocabulary ends at"
            f" {model.vocab_size - 1}: they do not belong together"
        )
    return token_ids


def weight_errors(backend: Backend, program: Program, exact: Weights, given: Weights) -> list[WeightErrors]:
    """Of each kind of matrix that the program reads: what the backend keeps of `given` against `exact`."""
    kept: dict[str, StoredWeight] = {}
    found: dict[str, dict[str, float]] = defaultdict(dict)  # kind -> name -> error
    formats: dict[str, set[str]] = defaultdict(set)
    for op in program.ops:
        for product in products_of(op):
            names = [weight.name for weight in product]
            kept = dict(zip(names, backend.kept([given[name] for name in names]), strict=True))
            for name, weight in kept.items():
                kind = name.rpartition(".")[2]
                if name not in found[kind]:
                    found[kind][name] = relative_error(weight, exact[name])
                    formats[kind].add(weight.format)
    return [
        WeightErrors(
            kind, tuple(sorted(formats[kind])), sum(errors.values()) / len(errors), max(errors.values())
        )
        for kind, errors in found.items()
    ]


def relative_error(kept: StoredWeight, exact: StoredWeight) -> float:
    """|kept - exact| / |exact| of the decoded values; 0 where both are."""
    if kept is exact:
        return 0.0
    values = exact.float32().reshape(-1)
    difference = kept.float32().reshape(-1) - values
    norm = float(np.linalg.norm(values))
    return float(np.linalg.norm(difference)) / norm if norm else 0.0


def log_probabilities(model: CompiledProgram, token_ids: Sequence[int]) -> Iterator[np.ndarray]:
    """Of every next token: [up to CHUNK_LEN, vocab_size] float32, chunk after chunk of the text.

    Raises ModelError when logits are not finite.
    """
    for number, logits in enumerate(chunk_logits(model, token_ids)):
        if not np.isfinite(logits).all():
            start = number * CHUNK_LEN
            raise ModelError(
                f"the model gives logits that are not finite in tokens {start} to {start + len(logits) - 1}"
            )
        rows = logits - logits.max(axis=-1, keepdims=True)
        rows -= np.log(np.exp(rows).sum(axis=-1, keepdims=True))
        yield rows


def compare(exact: Iterable[np.ndarray], kept: Iterable[np.ndarray], token_ids: Sequence[int]) -> TextErrors:
    """Both are chunks of log_probabilities over the same text."""
    divergences: list[float] = []
    exact_logs: list[float] = []  # of the tokens that do come next
    kept_logs: list[float] = []
    num_same = 0
    for exact_rows, kept_rows in zip(exact, kept, strict=True):
        start = len(divergences)
        divergences += (np.exp(exact_rows) * (exact_rows - kept_rows)).sum(axis=-1).tolist()
        num_same += int((exact_rows.argmax(axis=-1) == kept_rows.argmax(axis=-1)).sum())
        next_ids = np.array(token_ids[start + 1 : start + 1 + len(exact_rows)], np.int64)
        places = np.arange(len(next_ids)), next_ids
        exact_logs += exact_rows[places].tolist()
        kept_logs += kept_rows[places].tolist()
    return TextErrors(
        num_tokens=len(divergences),
        mean_kl=sum(divergences) / len(divergences),
        max_kl=max(divergences),
        perplexity=math.exp(-sum(kept_logs) / len(kept_logs)),
        exact_perplexity=math.exp(-sum(exact_logs) / len(exact_logs)),
        agreement=num_same / len(divergences),
    )


def _compute(config: EngineConfig) -> Compute:
    """Room for one chunk of one request, each of whose tokens gives logits."""
    config = replace(config, max_num_seqs=CHUNK_LEN, max_num_batched_tokens=CHUNK_LEN)
    return choose_compute(config, resolve_scheduling(config, max_model_len=CHUNK_LEN))
