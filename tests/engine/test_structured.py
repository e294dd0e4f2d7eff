"""Constrained answers: the bits that they have alone, their ends, and what happens when they cannot go on."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from legato.core.sampling_params import FinishReason, SamplingParams
from legato.engine.assembly import Engine
from legato.ipc.messages import AddRequest, Failed, TokenOutput
from legato.tokenization.grammar_text import choice_grammar, json_schema_grammar, lark_token, regex_grammar
from tests.engine.runs import Model, Run, build_engine, run, run_alone, same_bits
from tests.fakes import random_model
from tests.tokenization.tiny_tokenizers import byte_level_backend, byte_level_tokenizer

EOS_ID = 2  # of random_model(); a byte that no grammar here allows
VOCAB_SIZE = 320  # the tokenizer has 274: the last ones are nobody's
TOKENIZER = byte_level_tokenizer()
ITEM = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
GRAMMARS = [
    None,
    json_schema_grammar(ITEM),
    regex_grammar("[a-f]{3,9}"),
    choice_grammar(["stop", "the end", "한국"]),
    json_schema_grammar({"type": "array", "items": {"type": "boolean"}, "maxItems": 5}),
    'start: "(" start? ")"',
]
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 1.0, "ignore_eos": True, "logprobs": 2},
    {"temperature": 0.8, "top_k": 5, "frequency_penalty": 1.0, "repetition_penalty": 1.2},
    {"temperature": 1.0, "top_p": 0.8, "logit_bias": {ord("a"): 5.0, 300: 100.0}, "min_tokens": 1},
]
MODES = {
    "batched": {},
    "without overlap": {"overlap": False},
    "two rows": {"max_num_seqs": 2},
    "chunks of 1": {"long_prefill_token_threshold": 1},
    "preempted": {"num_pages": 12},
    "preempted without overlap": {"num_pages": 12, "overlap": False},
    "no prefix cache": {"enable_prefix_caching": False},
}


@pytest.fixture(scope="module")
def model() -> Model:
    return random_model(seed=1, num_layers=1, vocab_size=VOCAB_SIZE)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    byte_level_backend().save(str(file))
    return file


def request(number: int, grammar: str | None, prompt_len: int = 20, **settings: Any) -> AddRequest:
    return AddRequest(
        request_id=f"r{number}",
        token_ids=[3 + place for place in range(prompt_len - 1)] + [40 + number % 200],
        params=SamplingParams(**{"max_tokens": 14, **settings}, grammar=grammar),
        seed=number,
    )


REQUESTS = [
    request(
        number, GRAMMARS[number % len(GRAMMARS)], 5 + 9 * (number % 3), **SETTINGS[number % len(SETTINGS)]
    )
    for number in range(20)
]


@pytest.fixture(scope="module", params=["reference", "cpu"])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def alone(model: Model, tokenizer: Path, backend: str) -> Run:
    return run_alone(model, REQUESTS, tokenizer=tokenizer, backend=backend)


@pytest.mark.parametrize("mode", MODES)
def test_a_constrained_request_has_the_bits_that_it_has_alone(
    model: Model, tokenizer: Path, backend: str, alone: Run, mode: str
) -> None:
    found = run(build_engine(model, tokenizer=tokenizer, backend=backend, **MODES[mode]), REQUESTS)
    same_bits(found, alone)
    assert (found.num_preemptions > 0) == ("preempted" in mode)


def test_free_requests_have_the_bits_that_they_have_without_the_others(
    model: Model, backend: str, alone: Run
) -> None:
    free = [each for each in REQUESTS if each.params.grammar is None]
    found = run(build_engine(model, backend=backend), free)
    assert len(free) == 4
    assert found.tokens == {each.request_id: alone.tokens[each.request_id] for each in free}


def test_the_answers_keep_to_their_grammars(alone: Run) -> None:
    texts = {number: TOKENIZER.decode(alone.tokens[f"r{number}"]) for number in range(len(REQUESTS))}
    for number, text in texts.items():
        ended = alone.tokens[f"r{number}"][-1] == EOS_ID
        match number % len(GRAMMARS):
            case 1 if ended:
                assert json.loads(text.rstrip("\x02"))["b"] in ("x", "y")
            case 2:
                assert set(text) <= set("abcdef\x02")
            case 3:
                assert text.rstrip("\x02") in ("stop", "the end", "한국")
            case 4 if ended:
                assert all(isinstance(each, bool) for each in json.loads(text.rstrip("\x02")))
            case 5:
                assert set(text) <= set("()\x02")
    assert len(set(texts.values())) > len(texts) // 2


# ends


def outputs_of(engine: Engine, *requests: AddRequest) -> dict[str, list[TokenOutput | Failed]]:
    """All messages about each request."""
    found: dict[str, list[TokenOutput | Failed]] = {each.request_id: [] for each in requests}
    for each in requests:
        engine.core.add(each)
    while engine.core.has_work:
        for output in engine.core.step():
            found[output.request_id].append(output)
    engine.core.check_integrity()
    engine.core.close()
    return found


def answer(model: Model, tokenizer: Path | None, grammar: str, **settings: Any) -> tuple[str, FinishReason]:
    engine = build_engine(model, tokenizer=tokenizer)
    outputs = outputs_of(engine, request(1, grammar, **settings))["r1"]
    assert all(isinstance(output, TokenOutput) for output in outputs), outputs
    ids = [token_id for output in outputs for token_id in output.token_ids]
    return TOKENIZER.decode(ids).rstrip("\x02"), outputs[-1].finish_reason


def failure(model: Model, tokenizer: Path | None, grammar: str, **settings: Any) -> str:
    """Why the request fails; a neighbour's answer is what it is alone."""
    neighbour = request(2, None, temperature=1.0)
    expected = outputs_of(build_engine(model), neighbour)["r2"]
    outputs = outputs_of(build_engine(model, tokenizer=tokenizer), request(1, grammar, **settings), neighbour)
    *_, last = outputs["r1"]
    assert isinstance(last, Failed)
    assert last.code == "grammar_failed"
    assert [each.token_ids for each in outputs["r2"]] == [each.token_ids for each in expected]
    return last.error


def test_generation_stops_when_the_grammar_is_complete(model: Model, tokenizer: Path) -> None:
    assert answer(model, tokenizer, 'start: "abc"') == ("abc", "stop")


def test_ignoring_the_end_goes_on_as_long_as_the_grammar_does(model: Model, tokenizer: Path) -> None:
    open_, closed = regex_grammar("a*"), regex_grammar("a{1,5}")
    text, reason = answer(model, tokenizer, open_, ignore_eos=True, logit_bias={EOS_ID: 100})
    assert (set(text), reason) == ({"a"}, "length")
    assert answer(model, tokenizer, closed, ignore_eos=True, logit_bias={EOS_ID: 100}) == ("aaaaa", "stop")
    assert answer(model, tokenizer, open_, logit_bias={EOS_ID: 100}) == ("", "stop")


def test_the_end_waits_for_min_tokens(model: Model, tokenizer: Path) -> None:
    text, reason = answer(
        model, tokenizer, regex_grammar("a*"), min_tokens=7, logit_bias={EOS_ID: 100, ord("a"): 50}
    )
    assert (text, reason) == ("aaaaaaa", "stop")


def test_min_tokens_beyond_the_grammar_fails_the_request_alone(model: Model, tokenizer: Path) -> None:
    assert "min_tokens is 9" in failure(model, tokenizer, 'start: "abc"', min_tokens=9)


def test_no_bias_forbids_all_that_a_grammar_allows(model: Model, tokenizer: Path) -> None:
    bias = {ord(letter): -100.0 for letter in "abc"} | {EOS_ID: -100.0, ord("z"): 100.0}
    assert answer(model, tokenizer, 'start: "abc"', logit_bias=bias)[0] == "abc"


def test_stop_tokens_end_an_answer_within_its_grammar(model: Model, tokenizer: Path) -> None:
    text, reason = answer(model, tokenizer, 'start: "abcdef"', stop_token_ids=(ord("c"), 257), temperature=0)
    assert reason == "stop"
    assert text in ("abc", "ab", "a") or "abcdef".startswith(text)


def test_a_grammar_may_name_special_tokens_and_none_past_the_tokenizer(model: Model, tokenizer: Path) -> None:
    assert answer(model, tokenizer, f"start: {lark_token(272)} {lark_token(97)}")[1] == "stop"
    engine = build_engine(model, tokenizer=tokenizer)
    outputs = outputs_of(engine, request(1, "start: <[*]>+", temperature=2.0, logit_bias={319: 100.0}))["r1"]
    ids = [token_id for output in outputs for token_id in output.token_ids]
    assert 0 < len(ids) <= 14
    assert max(ids) < 274


@pytest.mark.parametrize(
    ("grammar", "reason"), [("start: other", "unknown name"), ("start: <[300]>", "too large"), ("{", "EOF")]
)
def test_a_grammar_that_was_not_checked_fails_its_request_alone(
    model: Model, tokenizer: Path, grammar: str, reason: str
) -> None:
    assert reason in failure(model, tokenizer, grammar)


def test_a_parser_that_meets_its_bounds_ends_no_answer_as_if_it_were_whole(
    model: Model, tokenizer: Path
) -> None:
    reason = failure(model, tokenizer, 'start: /[a-c]{3}/ "a"{60000}')
    assert re.search("any further: parser error: too many items .* shorter", reason, re.IGNORECASE)


def test_a_grammar_whose_tokens_take_long_to_find_fails_its_request_alone(
    model: Model, tokenizer: Path
) -> None:
    assert "takes too long" in failure(model, tokenizer, regex_grammar("a{300000}"))


def test_answers_go_on_bit_for_bit_when_the_grammar_worker_dies(
    model: Model, tokenizer: Path, backend: str, alone: Run
) -> None:
    engine = build_engine(model, tokenizer=tokenizer, backend=backend)
    tokens: dict[str, list[int]] = {each.request_id: [] for each in REQUESTS}
    for each in REQUESTS:
        engine.core.add(each)
    pids = set()
    while engine.core.has_work:
        for output in engine.core.step():
            assert isinstance(output, TokenOutput)
            tokens[output.request_id] += output.token_ids
        if sum(map(len, tokens.values())) > 40 * (1 + len(pids)):
            pid = engine.core._grammars._client.pid
            pids.add(pid)
            os.kill(pid, signal.SIGKILL)
    engine.core.close()
    assert len(pids) > 1
    assert tokens == alone.tokens


def test_a_grammar_worker_that_cannot_be_started_fails_the_request_alone(
    model: Model, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_process(*args: object, **settings: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(subprocess, "Popen", no_process)
    assert re.search(r"Too many open files.*: try again later", failure(model, tokenizer, 'start: "a"'))


def test_a_model_without_a_tokenizer_cannot_be_constrained(model: Model) -> None:
    assert "no tokenizer" in failure(model, None, 'start: "a"')


def test_a_broken_tokenizer_fails_the_request_alone(model: Model, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text('{"model": 3}')
    assert "cannot be used" in failure(model, file, 'start: "a"')
