"""Streamed text: equal to the whole text, cut at the stop text that ends first, never half a character."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.tokenization.detokenizer import Detokenizer
from legato.tokenization.tokenizer import Tokenizer
from tests.tokenization.tiny_tokenizers import byte_fallback_tokenizer, byte_level_tokenizer

BYTES = byte_level_tokenizer()
FALLBACK = byte_fallback_tokenizer()
END = BYTES.encode("<|end|>")[0]


def cut_at_stop(text: str, stops: list[str], include_stop: bool = False) -> tuple[str, str | None]:
    """The rule, said plainly: the match that ends first; of those that end together the longest."""
    matches = [
        (end, -len(stop), stop)
        for stop in stops
        for end in range(len(stop), len(text) + 1)
        if text[:end].endswith(stop)
    ]
    if not matches:
        return text, None
    end, _, stop = min(matches)
    return text[: end if include_stop else end - len(stop)], stop


def stream(detokenizer: Detokenizer, ids: list[int]) -> list[str]:
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.finish()]


token_ids = st.lists(
    st.one_of(st.integers(0, 275), st.integers(256, 275), st.sampled_from(list(b"abc "))), max_size=30
)
stop_texts = st.lists(
    st.one_of(
        st.text("abc ", min_size=1, max_size=5),
        st.sampled_from(["한국", "국", "🧑", "\u200d🚀", "\ufffd", "the end", "\n\n", "e\u0301", "stop"]),
    ),
    max_size=4,
)


@given(ids=token_ids, stops=stop_texts, include_stop=st.booleans(), skips=st.booleans())
def test_joined_deltas_are_the_whole_text_cut_at_the_stop(
    ids: list[int], stops: list[str], include_stop: bool, skips: bool
) -> None:
    detokenizer = Detokenizer(BYTES, stops, include_stop, skips)
    expected, stop = cut_at_stop(BYTES.decode(ids, skips), stops, include_stop)
    deltas = stream(detokenizer, ids)
    for end in range(len(deltas)):
        assert expected.startswith(
            "".join(deltas[:end])
        )  # at no time anything was out that had to be taken back
    assert "".join(deltas) == expected
    assert detokenizer.stop_reason == stop


@given(text=st.text(max_size=20), stops=stop_texts)
def test_text_in_single_bytes_is_never_split_inside_a_character(text: str, stops: list[str]) -> None:
    deltas = stream(Detokenizer(BYTES, stops), list(text.encode()))
    assert "".join(deltas) == cut_at_stop(text, stops)[0]
    assert "\ufffd" in text or not any("\ufffd" in delta for delta in deltas)


@given(text=st.text("ab h.\n한é🧑‍🚀𠮷", max_size=20), stops=stop_texts)
def test_tokens_whose_text_depends_on_their_neighbours_give_the_same_text(
    text: str, stops: list[str]
) -> None:
    ids = FALLBACK.encode(text)
    assert ids[0] == FALLBACK.encode("")[0]
    whole = FALLBACK.decode(ids)
    assert "".join(stream(Detokenizer(FALLBACK, stops), ids)) == cut_at_stop(whole, stops)[0]


@given(ids=st.lists(st.sampled_from([1, 2, *range(259, 271)]), max_size=20))
def test_spaces_between_tokens_are_kept_when_windows_are_decoded(ids: list[int]) -> None:
    assert "".join(stream(Detokenizer(FALLBACK), ids)) == FALLBACK.decode(ids)


def test_invalid_bytes_do_not_hold_the_text_for_ever() -> None:
    detokenizer = Detokenizer(FALLBACK)
    byte_ff = 3 + 0xFF  # after <unk>, <s> and </s>
    given = "".join(detokenizer.push(byte_ff) for _ in range(40))
    assert len(given) >= 32
    assert given + detokenizer.finish() == "\ufffd" * 40


def test_first_space_is_kept_after_a_prompt_and_taken_after_a_special_token() -> None:
    ids = FALLBACK.encode("a b c", add_special_tokens=False)
    prompt, answer = ids[:2], ids[2:]
    assert "".join(stream(Detokenizer(FALLBACK, before=prompt[-1]), answer)) == " b c"
    assert "".join(stream(Detokenizer(FALLBACK, before=FALLBACK.encode("")[-1]), answer)) == "b c"
    byte_ff = 3 + 0xFF
    assert "".join(stream(Detokenizer(FALLBACK, before=byte_ff), answer)) == "b c"


def test_half_a_character_waits_for_its_other_half() -> None:
    detokenizer = Detokenizer(BYTES)
    assert [detokenizer.push(byte) for byte in "é🚀".encode()] == ["", "é", "", "", "", "🚀"]
    assert detokenizer.finish() == ""


def test_bytes_that_stay_incomplete_are_shown_at_the_end_only() -> None:
    detokenizer = Detokenizer(BYTES)
    assert [detokenizer.push(byte) for byte in b"a\xf0\x9f"] == ["a", "", ""]
    assert detokenizer.finish() == "\ufffd"
    assert detokenizer.finish() == ""


def test_possible_stop_is_held_and_given_when_it_does_not_come() -> None:
    detokenizer = Detokenizer(BYTES, ["STOP"])
    assert [detokenizer.push(byte) for byte in b"xSTO"] == ["x", "", "", ""]
    assert detokenizer.push(ord("!")) == "STO!"
    assert [detokenizer.push(byte) for byte in b"SSTO"] == ["", "S", "", ""]
    assert detokenizer.finish() == "STO"
    assert detokenizer.stop_reason is None


def test_nothing_comes_after_a_stop() -> None:
    detokenizer = Detokenizer(BYTES, ["b"])
    (token,) = [i for i in range(256, 276) if BYTES.decode([i]) == "abc"]
    assert detokenizer.push(token) == "a"
    assert detokenizer.stop_reason == "b"
    assert detokenizer.push(ord("x")) == ""
    assert detokenizer.finish() == ""


@pytest.mark.parametrize(("include_stop", "text"), [(False, "x"), (True, "xabc")])
def test_stop_text_is_shown_only_when_asked_for(include_stop: bool, text: str) -> None:
    assert "".join(stream(Detokenizer(BYTES, ["abc"], include_stop), list(b"xabcabc"))) == text


def test_longest_of_the_stops_that_end_together_is_cut() -> None:
    detokenizer = Detokenizer(BYTES, ["b", "ab"])
    assert "".join(stream(detokenizer, list(b"xab"))) == "x"
    assert detokenizer.stop_reason == "ab"


def test_stop_does_not_count_before_it_may() -> None:
    detokenizer = Detokenizer(BYTES, ["aa"])
    assert "".join(detokenizer.push(byte, may_stop=False) for byte in b"aaaa") == "aaa"
    assert detokenizer.push(ord("a")) == ""  # the a that was held and this one are the stop text
    assert detokenizer.stop_reason == "aa"


def test_special_token_is_shown_only_when_asked_for() -> None:
    assert "".join(stream(Detokenizer(BYTES), [97, END, 98])) == "ab"
    assert "".join(stream(Detokenizer(BYTES, skip_special_tokens=False), [97, END, 98])) == "a<|end|>b"


def test_id_without_a_token_adds_nothing() -> None:
    assert "".join(stream(Detokenizer(BYTES), [97, 100_000, 98])) == "ab"


def test_cost_of_a_token_does_not_grow_with_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    decode = Tokenizer.decode

    def measured(self: Tokenizer, ids: list[int], skips: bool = True) -> str:
        sizes.append(len(ids))
        return decode(self, ids, skips)

    monkeypatch.setattr(Tokenizer, "decode", measured)
    stream(Detokenizer(FALLBACK), FALLBACK.encode("abc 한국 🧑‍🚀 " * 200))
    assert max(sizes) <= 16
