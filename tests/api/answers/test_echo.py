"""Which text an answer of /v1/completions echoes."""

import asyncio

from legato.api.answers.openai import AnswerHead, CompletionAnswer
from legato.api.answers.plain import Answer
from legato.api.answers.report import Report
from tests.tokenization.tiny_tokenizers import byte_fallback_tokenizer


def test_text_is_echoed_as_it_was_given_without_what_its_tokenizer_added() -> None:
    tokenizer = byte_fallback_tokenizer()
    ids = tokenizer.encode("a é")
    head = AnswerHead(
        id="cmpl-1",
        model="m",
        fingerprint="f",
        report=Report(echo=True),
        vocabulary=tokenizer,
        explain=None,
    )
    shape = CompletionAnswer(head, [ids, ids[2:]], ["a é", ids[2:]], skips_special_tokens=True)

    whole = asyncio.run(shape.whole([Answer(text="!"), Answer(text="!")]))
    assert [choice["text"] for choice in whole["choices"]] == ["a é!", "a é!"]
