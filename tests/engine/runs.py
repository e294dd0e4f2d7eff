"""Runs requests through a real core in one mode, and keeps every token and the bits of every logit."""

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from legato.core.config import EngineConfig
from legato.core.plan import RowError, TokenLogprobs
from legato.core.sampling_params import SamplingParams
from legato.engine.assembly import Engine, StageClock, assemble
from legato.ipc.messages import Accepted, AddRequest, Failed
from legato.modelfiles.model_config import ModelConfig
from legato.models.registry import build_model
from legato.sampling.row_sampler import NativeSampler, ReferenceSampler, SampledToken, SamplingBatch

Model = tuple[ModelConfig, dict[str, np.ndarray]]
Choose = Callable[[Any, np.ndarray, SamplingBatch, np.ndarray], list[SampledToken | RowError]]


@dataclass
class Run:
    """What a run gave: tokens and logprobs by request, and a digest of the logits behind each token, by
    (seed, position)."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    prompt_logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    logits: dict[tuple[int, int], bytes] = field(default_factory=dict)
    num_preemptions: int = 0
    prefix_hits: int = 0
    num_rounds: int = 0


def build_engine(model: Model, *, tokenizer: Path | None = None, **settings: object) -> Engine:
    config = EngineConfig(
        model="random", **{"backend": "reference", "max_model_len": 512, "num_pages": 2048, **settings}
    )  # type: ignore[arg-type]
    return assemble(config, build_model(model[0]), model[1], StageClock(lambda *_: None), tokenizer=tokenizer)


def seeded_requests(count: int, vocab_size: int, seed: int = 7) -> list[AddRequest]:
    """Greedy and sampled requests of mixed lengths; half of them begin like others."""
    rng = random.Random(seed)
    prefixes = [[rng.randrange(3, vocab_size) for _ in range(length)] for length in (17, 33, 48)]
    return [_seeded_request(number, rng, prefixes, vocab_size) for number in range(count)]


def _seeded_request(
    number: int, rng: random.Random, prefixes: Sequence[list[int]], vocab_size: int
) -> AddRequest:
    own = [rng.randrange(3, vocab_size) for _ in range(rng.choice([1, 2, 5, 16, 40]))]
    params = SamplingParams(
        max_tokens=rng.choice([1, 3, 8, 14]),
        temperature=rng.choice([0.0, 0.0, 0.7, 1.0]),
        top_p=rng.choice([1.0, 0.9]),
        top_k=rng.choice([0, 40]),
        min_p=rng.choice([0.0, 0.02]),
        presence_penalty=rng.choice([0.0, 0.5]),
        repetition_penalty=rng.choice([1.0, 1.1]),
        logit_bias=rng.choice([{}, {5: 2.0}]),
        min_tokens=rng.choice([0, 1]),
    )
    return AddRequest(
        request_id=f"r{number}",
        token_ids=(rng.choice(prefixes) if rng.random() < 0.5 else []) + own,
        params=params,
        seed=number,  # unique: it names the request where only its sampling is seen
    )


def alike_requests(count: int, prefix_len: int, vocab_size: int, seed: int = 11) -> list[AddRequest]:
    """Requests with one prefix and five tokens of their own each, greedy and sampled in turn."""
    rng = random.Random(seed)
    prefix = [rng.randrange(3, vocab_size) for _ in range(prefix_len)]
    return [
        AddRequest(
            request_id=f"alike{number}",
            token_ids=prefix + [rng.randrange(3, vocab_size) for _ in range(5)],
            params=SamplingParams(max_tokens=4, temperature=number % 2, ignore_eos=True),
            seed=1000 + number,
        )
        for number in range(count)
    ]


def run(engine: Engine, requests: Sequence[AddRequest], *, arrivals_per_step: int = 5) -> Run:
    """Add the requests a few a step, as traffic comes, and step until all have ended."""
    core, result = engine.core, Run()
    waiting = list(requests)
    with recorded_logits(result):
        while waiting or core.has_work:
            for request in waiting[:arrivals_per_step]:
                assert isinstance(core.add(request), Accepted)
            del waiting[:arrivals_per_step]
            for output in core.step():
                assert not isinstance(output, Failed), output
                result.tokens.setdefault(output.request_id, []).extend(output.token_ids)
                result.logprobs.setdefault(output.request_id, []).extend(output.logprobs)
                assert output.index == 0 or not output.prompt_logprobs
                result.prompt_logprobs.setdefault(output.request_id, output.prompt_logprobs)
    core.check_integrity()
    stats = core.stats()
    result.num_preemptions, result.prefix_hits = stats.preemptions, stats.prefix_hits
    result.num_rounds = stats.rounds
    core.close()
    return result


def run_alone(
    model: Model, requests: Sequence[AddRequest], *, tokenizer: Path | None = None, **settings: object
) -> Run:
    """Each request by itself, one after the other: no batch, no chunk, no cache."""
    engine = build_engine(
        model,
        max_num_seqs=1,
        overlap=False,
        enable_prefix_caching=False,
        tokenizer=tokenizer,
        **{"batching": "continuous", **settings},
    )
    return run(engine, requests, arrivals_per_step=len(requests))


@contextmanager
def recorded_logits(result: Run) -> Iterator[None]:
    """Keep the digest of each row of logits that is sampled; one computed again must have the same bits."""

    def recording(choose: Choose) -> Choose:
        def sample(
            self: object, logits: np.ndarray, batch: SamplingBatch, token_pool: np.ndarray
        ) -> list[SampledToken | RowError]:
            for row, row_logits in zip(batch.rows, logits, strict=True):
                digest = hashlib.blake2b(row_logits.tobytes(), digest_size=16).digest()
                known = result.logits.setdefault((row.start.seed, row.position), digest)
                assert known == digest, "computed again, other bits"
            return choose(self, logits, batch, token_pool)

        return sample

    with pytest.MonkeyPatch.context() as patch:
        for sampler in (ReferenceSampler, NativeSampler):
            patch.setattr(sampler, "sample", recording(sampler.sample))
        yield


def same_bits(found: Run, expected: Run) -> None:
    """Assert equal tokens and logprobs, and equal bits behind each token."""
    assert found.tokens == expected.tokens
    assert found.logprobs == expected.logprobs
    assert found.prompt_logprobs == expected.prompt_logprobs
    differing = [key for key, digest in expected.logits.items() if found.logits.get(key) != digest]
    assert not differing, f"logits differ at (seed, position) {differing[:5]}, {len(differing)} in all"


def with_max_tokens(requests: Sequence[AddRequest], max_tokens: int) -> list[AddRequest]:
    def longer(request: AddRequest) -> AddRequest:
        params = replace(request.params, max_tokens=max_tokens, ignore_eos=True)
        return AddRequest(
            request_id=request.request_id, token_ids=request.token_ids, params=params, seed=request.seed
        )

    return [longer(request) for request in requests]
