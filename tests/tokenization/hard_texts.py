"""Texts on which tokenizers tend to differ, and vocabularies that were trained on them."""

import json
from collections import Counter
from functools import cache

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

HARD_TEXTS = [
    "",
    " ",
    "a",
    "The quick brown fox jumps over the lazy dog.",
    "  leading, trailing and   inner     spaces  \n\n\n and\ttabs\t\t x\r\n\r\n  y \n",
    "In 2024, 1234567 people paid 3.14159 or 1e-9; v1.2.34 costs $99.99, ½ or ２٣.",
    "def f(x: int) -> str:\n    if x>=1:\n\t\treturn f'{x:>10}' + \"//\" # ok\n\n\nclass HTTPError2(E): ..",
    "don't we'll I'VE THEY'RE it's L'Été 'tis 'Sure",
    "camelCase snake_case SCREAMING_CASE mixedUPPERcase iPhone McDonald's",
    "한국어 문장과 日本語の文、中文句子，кириллица, ελληνικά, עברית, العَرَبِيَّة, हिन्दी में, ไทย",
    "🧑‍🚀👩‍👩‍👧‍👦🇰🇷 e\u0301 é \u200b\ufeff\u00a0\u3000 ﬁ Å \u1100\u1161\u11a8 n\u0303",
    "\x00\x01\x7f\x85\u2028\u2029\ue000\U000e0001",
    "https://example.org/a?b=c&d=%20#e /usr/bin/env\\n C:\\Temp",
    '{"a": [1, 2, {"b": null}]}\n' * 3,
    "=====----____....!!!!????   (([[{{}}]])) ...\n/// ** ~~ `code` ™ € ≤",
    "<s> </s> <unk> <0x41> ▁ ▁▁x [INST] <|end|>",
    "\u05d0\u05d1 ⁿ₂ Ⅻ ①② ʰ ǅ ß ſ ĳ",
    " " * 20 + "x" + " " * 7 + "\n" * 5 + "\t" * 6,
]


@cache
def byte_level_parts() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges that cross words, digits and lines: only a cut stops them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        min_frequency=1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=12,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_without_markers(), trainer)
    return _parts(tokenizer)


@cache
def sentencepiece_parts() -> tuple[list[str], list[float], list[int]]:
    """Pieces, scores and types as Llama's: <unk>, <s>, </s>, the bytes, the merged pieces, the characters."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    counts = Counter("".join(_without_markers()).replace(" ", "▁").replace("\x00", ""))
    alphabet = sorted(counts, key=lambda char: (-counts[char], char))[
        :90
    ]  # left alone, it draws among equals
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        min_frequency=1,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        max_token_length=12,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_without_markers(), trainer)
    vocab, merges = _parts(tokenizer)
    merged = list(dict.fromkeys(left + right for left, right in merges))
    chars = [token for token in vocab if len(token) == 1]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *merged, *chars]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(merged) + len(chars))]
    return pieces, scores, [2, 3, 3] + [6] * 256 + [1] * (len(merged) + len(chars))


def _without_markers() -> list[str]:
    return [text.replace("<|end|>", "").replace("<s> </s> <unk>", "") for text in HARD_TEXTS]


def _parts(tokenizer: Tokenizer) -> tuple[dict[str, int], list[tuple[str, str]]]:

    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [(left, right) for left, right in model["merges"]]
