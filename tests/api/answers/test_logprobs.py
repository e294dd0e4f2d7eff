"""Names of tokens and their places in a text, for tokenizers of other kinds than bytes."""

from legato.api.answers.logprobs import CompletionLogprobs, TokenNames, chat_logprobs
from legato.core.plan import TokenLogprobs
from tests.tokenization.tiny_tokenizers import byte_fallback_tokenizer, byte_level_tokenizer

LIKELY = TokenLogprobs(-0.5, (), ())


def test_places_in_a_prompt_leave_out_what_its_tokenizer_added() -> None:
    tokenizer = byte_fallback_tokenizer()
    prompt, answer = tokenizer.encode("a é"), tokenizer.encode(" b", add_special_tokens=False)
    writer = CompletionLogprobs(TokenNames(tokenizer, byte_prefix="bytes:"), 0, tokenizer.special_ids)

    asked = writer.prompt("a é", prompt, [LIKELY] * (len(prompt) - 1))
    told = writer.answer(answer, [LIKELY] * len(answer))

    assert asked["tokens"] == ["<s>", " ", "a", " ", "bytes:\\xc3", "bytes:\\xa9"]
    assert asked["text_offset"] == [0, 0, 0, 1, 2, 2]
    assert told["text_offset"] == [3 + place for place in range(len(answer))]


def test_special_tokens_have_a_place_where_the_text_shows_them() -> None:
    tokenizer = byte_level_tokenizer()
    text = "a<|end|>b"
    ids = tokenizer.encode(text)
    names, logprobs = TokenNames(tokenizer), [LIKELY] * len(ids)

    assert CompletionLogprobs(names, 0, frozenset()).answer(ids, logprobs)["text_offset"] == [0, 1, 8]
    assert CompletionLogprobs(names, 0, tokenizer.special_ids).answer(ids, logprobs)["text_offset"] == [
        0,
        1,
        1,
    ]
    assert CompletionLogprobs(names, 0, tokenizer.special_ids).prompt(text, ids, logprobs[1:])[
        "text_offset"
    ] == [0, 1, 8]


def test_of_two_tokens_with_one_name_the_likelier_is_told() -> None:
    tokenizer = byte_level_tokenizer()
    [ab] = [token_id for token_id in range(256, 270) if tokenizer.token_bytes(token_id) == b"ab"]
    place = TokenLogprobs(-3.0, (ab, 97), (-1.0, -2.0))
    writer = CompletionLogprobs(TokenNames(tokenizer), 2, frozenset())
    assert writer.answer([99_999], [place])["top_logprobs"] == [{"ab": -1.0, "a": -2.0, "": -3.0}]
    assert writer.answer([97], [TokenLogprobs(-3.0, (97,), (-1.0,))])["top_logprobs"] == [{"a": -1.0}]


def test_tokens_of_a_model_without_a_tokenizer_are_named_by_their_ids() -> None:
    names = TokenNames(None)
    [entry] = chat_logprobs([17], [LIKELY], names, 0)["content"]
    assert (entry["token"], entry["bytes"]) == ("token_id:17", None)
    lists = CompletionLogprobs(names, 0, frozenset()).answer([17, 18], [LIKELY] * 2)
    assert (lists["tokens"], lists["text_offset"]) == (["token_id:17", "token_id:18"], [0, 0])
