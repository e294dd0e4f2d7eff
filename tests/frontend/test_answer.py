"""One answer from outputs to deltas: stop texts, stop ids, what is counted, when it is over."""

import pytest

from legato.core.plan import TokenLogprobs
from legato.core.sampling_params import FinishReason, SamplingParams
from legato.frontend.answer import Answer
from legato.frontend.generator import TextDelta, Usage
from legato.ipc.messages import TokenOutput
from tests.tokenization.tiny_tokenizers import byte_fallback_tokenizer, byte_level_tokenizer

TOKENIZER = byte_level_tokenizer()
END = TOKENIZER.encode("<|end|>")[0]


def ids(text: str) -> list[int]:
    return list(text.encode())


def push_all(
    params: SamplingParams, token_ids: list[int], finish_reason: FinishReason | None = None
) -> list[TextDelta]:
    """Push token by token, as steps give them; the last has the finish_reason. Ends with the answer."""
    answer, deltas = Answer(0, [97] * 4, params, TOKENIZER), []
    for index, token_id in enumerate(token_ids):
        is_last = index == len(token_ids) - 1
        output = TokenOutput(
            request_id="r",
            index=index,
            token_ids=[token_id],
            finish_reason=finish_reason if is_last else None,
        )
        deltas.append(answer.push(output))
        if answer.is_finished:
            break
    return deltas


def text_of(deltas: list[TextDelta]) -> str:
    return "".join(delta.text for delta in deltas)


def test_stop_text_over_several_tokens_never_leaks() -> None:
    deltas = push_all(SamplingParams(stop=("END",)), ids("one E EN ENDtwo"))
    assert text_of(deltas) == "one E EN "
    assert [delta.text for delta in deltas[:6]] == ["o", "n", "e", " ", "", "E "]
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (FinishReason.STOP, "END")
    assert deltas[-1].usage == Usage(prompt_tokens=4, completion_tokens=12)
    assert all(delta.finish_reason is None for delta in deltas[:-1])


def test_held_text_is_flushed_when_the_stop_text_never_completes() -> None:
    deltas = push_all(SamplingParams(stop=("END",)), ids("one EN"), FinishReason.LENGTH)
    assert text_of(deltas) == "one EN"
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (FinishReason.LENGTH, None)


def test_stop_text_wins_over_a_length_reached_in_the_same_step() -> None:
    deltas = push_all(SamplingParams(stop=("END",), max_tokens=6), ids("abcEND"), FinishReason.LENGTH)
    assert text_of(deltas) == "abc"
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (FinishReason.STOP, "END")


def test_stop_text_is_kept_when_asked_for() -> None:
    params = SamplingParams(stop=("END",), include_stop_str_in_output=True)
    assert text_of(push_all(params, ids("abcENDmore"))) == "abcEND"


def test_stop_text_before_the_fewest_tokens_is_text() -> None:
    params = SamplingParams(stop=("b",), min_tokens=4)
    deltas = push_all(params, ids("abcabc"))
    assert text_of(deltas) == "abca"
    assert deltas[-1].usage.completion_tokens == 5


def test_tokens_of_one_step_after_the_stop_text_are_dropped() -> None:
    answer = Answer(3, [97], SamplingParams(stop=("b",)), TOKENIZER)
    output = TokenOutput(request_id="r", index=0, token_ids=ids("abcd"), cached_len=16)
    assert answer.push(output) == TextDelta(
        index=3,
        text="a",
        token_ids=tuple(ids("ab")),
        usage=Usage(1, 2, 16),
        finish_reason=FinishReason.STOP,
        stop_reason="b",
    )
    assert answer.is_finished


def test_stop_text_that_the_last_flush_completes_ends_the_answer() -> None:
    half = "한".encode()[:1][0]
    deltas = push_all(SamplingParams(stop=("\ufffd",)), [*ids("ab"), half], FinishReason.LENGTH)
    assert text_of(deltas) == "ab"
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (FinishReason.STOP, "\ufffd")


@pytest.mark.parametrize(
    ("params", "token_id", "text", "stop_reason"),
    [
        ({}, END, "ab", None),
        ({"stop_token_ids": (END,)}, END, "ab", END),
        ({"stop_token_ids": (ord("c"),)}, ord("c"), "ab", ord("c")),
        (
            {"stop_token_ids": (ord("c"),), "include_stop_str_in_output": True},
            ord("c"),
            "abc",
            ord("c"),
        ),
        ({"include_stop_str_in_output": True}, END, "ab", None),  # a special token has no text
        ({"include_stop_str_in_output": True, "skip_special_tokens": False}, END, "ab<|end|>", None),
    ],
)
def test_token_that_ends_the_answer(
    params: dict[str, object], token_id: int, text: str, stop_reason: int | None
) -> None:
    deltas = push_all(SamplingParams(**params), [*ids("ab"), token_id], FinishReason.STOP)
    assert text_of(deltas) == text
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (FinishReason.STOP, stop_reason)
    assert deltas[-1].token_ids == (token_id,)
    assert deltas[-1].usage.completion_tokens == 3


def test_stop_id_among_the_tokens_that_did_not_end_the_answer_is_no_reason() -> None:
    params = SamplingParams(stop_token_ids=(ord("a"),), min_tokens=2)
    assert push_all(params, ids("abc"), FinishReason.LENGTH)[-1].stop_reason is None


def test_character_cut_over_tokens_comes_whole() -> None:
    deltas = push_all(SamplingParams(), ids("a한🧑"), FinishReason.LENGTH)
    assert [delta.text for delta in deltas] == ["a", "", "", "한", "", "", "", "🧑"]


def test_character_cut_by_the_end_becomes_a_replacement() -> None:
    deltas = push_all(SamplingParams(), [*ids("a"), *ids("한")[:2]], FinishReason.LENGTH)
    assert [delta.text for delta in deltas] == ["a", "", "\ufffd"]


def test_special_tokens_have_text_only_when_asked_for() -> None:
    assert text_of(push_all(SamplingParams(), [97, END, 98], FinishReason.LENGTH)) == "ab"
    shown = SamplingParams(skip_special_tokens=False)
    assert text_of(push_all(shown, [97, END, 98], FinishReason.LENGTH)) == "a<|end|>b"


def test_tokenizer_whose_tokens_depend_on_their_neighbours() -> None:
    tokenizer = byte_fallback_tokenizer()
    answer = Answer(0, tokenizer.encode(""), SamplingParams(stop=("d",)), tokenizer)
    token_ids = tokenizer.encode("a b한cde", add_special_tokens=False)
    text = ""
    for index, token_id in enumerate(token_ids):
        delta = answer.push(TokenOutput(request_id="r", index=index, token_ids=[token_id]))
        text += delta.text
        if answer.is_finished:
            break
    assert text == "a b한c"
    assert delta.stop_reason == "d"


def test_without_a_tokenizer_ids_alone_come() -> None:
    answer = Answer(0, [97, 98], SamplingParams(stop_token_ids=(7,)), None)
    first = answer.push(TokenOutput(request_id="r", index=0, token_ids=[5, 6]))
    last = answer.push(
        TokenOutput(request_id="r", index=2, token_ids=[7], finish_reason=FinishReason.STOP, cached_len=1)
    )
    assert (first.text, first.token_ids, first.finish_reason) == ("", (5, 6), None)
    assert (last.text, last.token_ids, last.stop_reason) == ("", (7,), 7)
    assert last.usage == Usage(prompt_tokens=2, completion_tokens=3, cached_tokens=1)
    assert answer.is_finished


def test_logprobs_of_tokens_after_the_stop_text_are_dropped_with_them() -> None:
    logprobs = [TokenLogprobs(-float(n), (), ()) for n in range(1, 5)]
    answer = Answer(0, [97] * 1, SamplingParams(stop=("b",), logprobs=0, min_tokens=2), TOKENIZER)
    delta = answer.push(TokenOutput(request_id="r", index=0, token_ids=ids("abcd"), logprobs=logprobs))
    assert (delta.text, delta.token_ids, delta.logprobs) == ("a", tuple(ids("ab")), tuple(logprobs[:2]))


def test_answer_of_no_token_carries_the_prompts_logprobs_and_is_over() -> None:
    logprobs = [TokenLogprobs(-1.0, (), ())] * 3
    answer = Answer(2, [97] * 4, SamplingParams(max_tokens=0, prompt_logprobs=0, stop=("b",)), TOKENIZER)
    output = TokenOutput(
        request_id="r", index=0, token_ids=[], finish_reason=FinishReason.LENGTH, prompt_logprobs=logprobs
    )
    assert answer.push(output) == TextDelta(
        index=2,
        text="",
        token_ids=(),
        usage=Usage(4, 0),
        finish_reason=FinishReason.LENGTH,
        prompt_logprobs=tuple(logprobs),
    )
    assert answer.is_finished
