"""What a stream shows is the plain answer: whole characters, no stop text, one end, right counts."""

from typing import Any

import pytest

from tests.api.contract.live import ASCII, END_ID, ROUTES, Live, text_of

both_routes = pytest.mark.parametrize("path", ROUTES)
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_tokens": 40}


def joined(events: list[Any]) -> tuple[str, str | None]:
    """Text and finish reason of the one choice of a stream."""
    choices = [event["choices"][0] for event in events[:-1] if event["choices"]]
    [reason] = [choice["finish_reason"] for choice in choices if choice["finish_reason"] is not None]
    assert choices[-1]["finish_reason"] == reason
    return "".join(map(text_of, choices)), reason


@both_routes
def test_no_part_of_a_stop_text_is_shown(live: Live, path: str) -> None:
    fields = {**GREEDY, "logit_bias": ASCII}
    whole = live.text(path, **fields)
    assert len(whole) == 40
    for start, end in ((0, 1), (3, 9), (5, 15), (20, 28), (34, 40)):
        stop = whole[start:end]
        until = whole[: whole.index(stop)]
        for include in (False, True):
            asked = {**fields, "stop": [stop], "include_stop_str_in_output": include}
            wanted = (until + stop * include, "stop")
            plain = live.plain(path, **asked)["choices"][0]
            assert (text_of(plain), plain["finish_reason"]) == wanted
            assert joined(live.streamed(path, **asked)) == wanted


@both_routes
def test_text_held_back_for_a_stop_that_never_completes_is_sent_in_the_end(live: Live, path: str) -> None:
    fields = {**GREEDY, "logit_bias": ASCII}
    whole = live.text(path, **fields)
    stops = [whole[-6:] + "\x00", whole[10:20] + "\x00"]
    assert joined(live.streamed(path, **fields, stop=stops)) == (whole, "length")


@both_routes
def test_every_chunk_before_the_last_has_text_and_whole_characters(live: Live, path: str) -> None:
    hangul = {str(byte): 100 for byte in "한".encode()}
    *events, done = live.streamed(path, **GREEDY, logit_bias=hangul)
    texts = [text_of(event["choices"][0]) for event in events]
    assert done == "[DONE]"
    assert all(texts[:-1])
    plain = live.text(path, **GREEDY, logit_bias=hangul)
    assert "".join(texts) == plain


@both_routes
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"max_tokens": 3, "ignore_eos": True}, "length"),
        ({"max_tokens": 1, "ignore_eos": True}, "length"),
        ({"logit_bias": {str(END_ID): 100}}, "stop"),
        ({"logit_bias": {str(END_ID): 100}, "min_tokens": 3, "max_tokens": 9}, "stop"),
    ],
)
def test_a_stream_ends_once_with_its_reason_and_done(
    live: Live, path: str, fields: dict[str, Any], reason: str
) -> None:
    events = live.streamed(path, temperature=0, **fields)
    assert events[-1] == "[DONE]"
    assert joined(events)[1] == reason
    assert live.plain(path, temperature=0, **fields)["choices"][0]["finish_reason"] == reason


@both_routes
def test_usage_comes_when_asked_for_in_a_chunk_of_its_own(live: Live, path: str) -> None:
    plain = live.plain(path, **GREEDY)["usage"]
    *unasked, _ = live.streamed(path, **GREEDY)
    *chunks, last, _ = live.streamed(path, **GREEDY, stream_options={"include_usage": True})
    assert not any("usage" in chunk for chunk in [*unasked, *chunks])
    assert last["choices"] == []
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert last["usage"][name] == plain[name]
    assert plain["completion_tokens"] == 40


@both_routes
def test_stop_wins_over_a_length_that_is_reached_with_it(live: Live, path: str) -> None:
    fields = {**GREEDY, "logit_bias": ASCII}
    whole = live.text(path, **fields)
    num_tokens = 12
    stop = whole[num_tokens - 3 : num_tokens]
    for limit in (num_tokens, num_tokens + 1):
        answer = live.plain(path, **{**fields, "max_tokens": limit, "stop": stop})
        choice = answer["choices"][0]
        assert (text_of(choice), choice["finish_reason"]) == (whole[: whole.index(stop)], "stop")
        assert answer["usage"]["completion_tokens"] <= num_tokens


@both_routes
def test_special_tokens_are_shown_only_when_asked_for_in_both_modes(live: Live, path: str) -> None:
    markers = {**GREEDY, "logit_bias": {str(END_ID): 100, str(END_ID + 1): 95}}
    for skip, shown in ((None, ""), (True, ""), (False, "<|end|>" * 40)):
        fields = {**markers, "skip_special_tokens": skip}
        assert live.text(path, **fields) == shown
        assert joined(live.streamed(path, **fields)) == (shown, "length")
