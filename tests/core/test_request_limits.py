"""What fits exactly, what is one too many, and which number is told."""

import pytest

from legato.core.errors import RequestError
from legato.core.request_limits import RequestLimits
from legato.core.sampling_params import SamplingParams

AMPLE = RequestLimits(max_model_len=100, pool_len=1000, vocab_size=50)
SMALL_POOL = RequestLimits(max_model_len=100, pool_len=32, vocab_size=50)


def max_len(limits: RequestLimits, prompt_len: int, max_tokens: int | None) -> int:
    return limits.max_device_len([1] * prompt_len, SamplingParams(max_tokens=max_tokens))


def refusal_of(limits: RequestLimits, token_ids: list[int], **params: object) -> RequestError:
    with pytest.raises(RequestError) as refusal:
        limits.max_device_len(token_ids, SamplingParams(**params))
    return refusal.value


@pytest.mark.parametrize(
    ("limits", "prompt_len", "max_tokens", "expected"),
    [
        (AMPLE, 90, 10, 100),
        (AMPLE, 99, 1, 100),
        (AMPLE, 99, None, 100),
        (AMPLE, 1, None, 100),
        (AMPLE, 100, 0, 100),
        (SMALL_POOL, 23, 10, 33),  # the last token needs no K/V
        (SMALL_POOL, 32, 1, 33),
        (SMALL_POOL, 32, 0, 32),
        (SMALL_POOL, 32, None, 33),
        (SMALL_POOL, 5, None, 33),  # no max_tokens: as long as the pool allows
    ],
)
def test_what_fits_exactly_is_taken(
    limits: RequestLimits, prompt_len: int, max_tokens: int | None, expected: int
) -> None:
    assert max_len(limits, prompt_len, max_tokens) == expected


def test_one_token_is_told_in_the_singular() -> None:
    assert str(refusal_of(AMPLE, [1], max_tokens=100)).startswith("1 prompt token and 100 of output are 101,")


@pytest.mark.parametrize(
    ("limits", "prompt_len", "max_tokens", "code", "numbers"),
    [
        (AMPLE, 90, 11, "context_length_exceeded", ("90", "11", "101", "100")),
        (AMPLE, 100, 1, "context_length_exceeded", ("100", "101")),
        (AMPLE, 100, None, "context_length_exceeded", ("100", "101")),
        (AMPLE, 250, None, "context_length_exceeded", ("250", "100")),
        (AMPLE, 1, 10**18, "context_length_exceeded", ("1000000000000000001", "100")),
        (SMALL_POOL, 24, 10, "kv_pool_exceeded", ("24", "10", "33", "32")),
        (AMPLE, 101, 0, "context_length_exceeded", ("101", "0", "100")),
        (SMALL_POOL, 33, 0, "kv_pool_exceeded", ("33", "0", "32")),
        (SMALL_POOL, 33, None, "kv_pool_exceeded", ("33", "32")),
        (SMALL_POOL, 150, 1, "context_length_exceeded", ("151", "100")),
    ],
)
def test_one_token_too_many_is_refused_with_both_numbers(
    limits: RequestLimits, prompt_len: int, max_tokens: int | None, code: str, numbers: tuple[str, ...]
) -> None:
    refusal = refusal_of(limits, [1] * prompt_len, max_tokens=max_tokens)
    assert (refusal.code, refusal.param) == (code, "prompt")
    for number in numbers:
        assert number in str(refusal)


def test_pool_that_is_too_small_names_both_settings_of_its_size() -> None:
    assert str(refusal_of(SMALL_POOL, [1] * 33)).endswith("raise --kv-cache-memory-bytes or --num-pages")


def test_empty_prompt_is_refused() -> None:
    assert "the prompt is empty" in str(refusal_of(AMPLE, []))


def test_every_id_of_the_vocabulary_is_taken() -> None:
    params = SamplingParams(max_tokens=1, stop_token_ids=(0, 49), logit_bias={0: 1, 49: -1})
    assert AMPLE.max_device_len([0, 49], params) == 3


@pytest.mark.parametrize("bad", [-1, 50, 10**9, 10**30])
@pytest.mark.parametrize(
    ("param", "arguments"),
    [
        ("prompt", lambda bad: ([3, bad, 4], {})),
        ("stop_token_ids", lambda bad: ([3], {"stop_token_ids": (7, bad)})),
        ("logit_bias", lambda bad: ([3], {"logit_bias": {bad: 1.0}})),
    ],
)
def test_id_outside_the_vocabulary_is_refused_and_its_field_named(param: str, arguments, bad: int) -> None:
    token_ids, params = arguments(bad)
    refusal = refusal_of(AMPLE, token_ids, **params)
    assert (refusal.code, refusal.param) == ("invalid_token_id", param)
    assert str(bad) in str(refusal)
    assert "vocabulary of 50" in str(refusal)


@pytest.mark.parametrize(("bad", "kind"), [(1.5, "float"), (True, "bool"), ("1", "str"), (None, "NoneType")])
def test_what_is_no_whole_number_is_no_token_id(bad: object, kind: str) -> None:
    refusal = refusal_of(AMPLE, [3, bad])  # type: ignore[list-item]
    assert (refusal.code, refusal.param) == ("invalid_token_id", "prompt")
    assert kind in str(refusal)
