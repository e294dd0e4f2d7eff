"""Sampling flags over the model's defaults."""

import argparse

import pytest

from legato.cli.sampling_options import add_sampling, sampling_params
from legato.core.errors import RequestError
from legato.core.sampling_params import SamplingParams


def parse(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_sampling(parser)
    return parser.parse_args(argv)


def test_flags_win_over_the_models_defaults() -> None:
    arguments = parse("--temperature", "0", "--max-tokens", "7", "--stop", "a,b", "--stop", "c")
    params = sampling_params(arguments, {"temperature": 0.2, "top_p": 0.9})
    assert params == SamplingParams(temperature=0, top_p=0.9, max_tokens=7, stop=("a,b", "c"))


def test_value_out_of_range_is_named_by_its_flag() -> None:
    with pytest.raises(RequestError, match=r"^--top-p must "):
        sampling_params(parse("--top-p", "3"), {})
    with pytest.raises(RequestError, match=r"^--max-tokens must be a whole number of at least 1, not 0$"):
        sampling_params(parse("--max-tokens", "0"), {})
