"""Each setting's range, at its edges and beyond, and how a misfit is named."""

import pickle
from copy import copy
from dataclasses import replace

import pytest

from legato.core.errors import RequestError
from legato.core.sampling_params import SamplingParams

NAN, INFINITY = float("nan"), float("inf")
HUGE = 10**400  # a JSON number that no float can hold


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [0, 1e-30, 0.7, 2]),
        ("top_p", [1e-9, 1]),
        ("min_p", [0, 1]),
        ("presence_penalty", [-2, 2]),
        ("frequency_penalty", [-2.0, 2.0]),
        ("repetition_penalty", [0.001, 1000]),
        ("top_k", [-1, 0, 1, 10**9]),
        ("min_tokens", [0, 16]),
        ("max_tokens", [0, 1, 10**9, None]),
        ("seed", [-(2**63), 0, 2**64 - 1, None]),
        ("logprobs", [None, 0, 20]),
        ("prompt_logprobs", [None, 0, 20]),
        ("stop", [(), ("a",), ("\n\n", "끝")]),
        ("logit_bias", [{}, {0: -100, 7: 100.0}]),
    ],
)
def test_values_up_to_the_edge_are_taken(field: str, values: list[object]) -> None:
    for value in values:
        assert getattr(SamplingParams(**{field: value}), field) == value


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [-1e-9, 2.0001, 1e6, NAN, INFINITY, HUGE, "hot", None, True]),
        ("top_p", [0, -1, 1.0001, NAN]),
        ("min_p", [-0.001, 1.001, NAN]),
        ("presence_penalty", [-2.01, 2.01, -INFINITY]),
        ("frequency_penalty", [-2.01, 2.01, NAN]),
        ("repetition_penalty", [0, 0.0009, 1000.1, 1e-50, NAN]),
        ("top_k", [-2, 1.5, 2**63, HUGE, True]),
        ("min_tokens", [-1, 2**63, 0.0]),
        ("max_tokens", [-1, -5, 16.0, 2**63, "16"]),
        ("seed", [-(2**63) - 1, 2**64, 0.5]),
        ("logprobs", [-1, 21, 1.0, True]),
        ("prompt_logprobs", [-1, 21, 1.0, True]),
        ("stop", [("",), ("a", ""), "", (5,), ("\ud800",), ("a\udfff",), 5, None, {"a"}]),
        ("stop_token_ids", [5, "5", None]),
        ("logit_bias", [{3: 100.5}, {3: -100.5}, {3: NAN}, {3: "x"}, [3], None]),
        ("ignore_eos", ["yes", 1, None]),
        ("skip_special_tokens", ["no"]),
        ("include_stop_str_in_output", [0]),
    ],
)
def test_value_beyond_the_edge_is_refused_and_its_field_named(field: str, values: list[object]) -> None:
    for value in values:
        with pytest.raises(RequestError, match=field) as refusal:
            SamplingParams(**{field: value})
        assert refusal.value.param == field


def test_refusal_says_what_would_fit() -> None:
    with pytest.raises(RequestError, match=r"top_p must be a number in \(0, 1\], not 1.5"):
        SamplingParams(top_p=1.5)
    with pytest.raises(RequestError, match=r"logit_bias\[42\] must be a number in \[-100, 100\], not 101"):
        SamplingParams(logit_bias={42: 101})


def test_fewest_tokens_cannot_be_above_the_most() -> None:
    assert SamplingParams(min_tokens=5, max_tokens=5).min_tokens == 5
    assert SamplingParams(min_tokens=0, max_tokens=0).max_tokens == 0
    assert SamplingParams(min_tokens=500, max_tokens=None).max_tokens is None
    with pytest.raises(RequestError, match="min_tokens is 6, above max_tokens = 5") as refusal:
        SamplingParams(min_tokens=6, max_tokens=5)
    assert refusal.value.param == "min_tokens"


def test_one_stop_text_needs_no_list() -> None:
    assert SamplingParams(stop="END").stop == ("END",)


def test_lists_are_kept_as_tuples() -> None:
    params = SamplingParams(stop=["a", "b"], stop_token_ids=[1, 2])  # type: ignore[arg-type]
    assert (params.stop, params.stop_token_ids) == (("a", "b"), (1, 2))


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("max_token", r"did you mean max_tokens\?"),
        ("n", "a prompt that is given several times gets as many answers"),
        ("guided_json", "it has max_tokens, temperature, top_p, "),
    ],
)
def test_setting_that_there_is_not_is_refused_with_a_remedy(name: str, remedy: str) -> None:
    with pytest.raises(TypeError, match=f"SamplingParams has no setting '{name}'; {remedy}"):
        SamplingParams(**{name: 1})


def test_settings_can_be_copied_and_replaced() -> None:
    params = SamplingParams(max_tokens=5, stop="END")
    assert pickle.loads(pickle.dumps(params)) == copy(params) == params  # noqa: S301 - our own bytes
    assert replace(params, max_tokens=6) == SamplingParams(max_tokens=6, stop="END")


@pytest.mark.parametrize(("temperature", "is_greedy"), [(0, True), (9.9e-6, True), (1e-5, False), (1, False)])
def test_tiny_temperatures_are_greedy(temperature: float, is_greedy: bool) -> None:
    assert SamplingParams(temperature=temperature).is_greedy is is_greedy
