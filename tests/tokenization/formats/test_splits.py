"""Texts are cut as each kind of tokenizer cuts them."""

import pytest
from tokenizers import pre_tokenizers

from legato.core.errors import ModelError
from legato.tokenization.formats.splits import SPLITTINGS, splitting_named
from legato.tokenization.tokenizer import BYTE_OF_CHAR

TEXT = "I'VE  12345 caféTest's,\n\n x+=1 한국 $9\n"

# To be checked by eye: what stands between two bars is merged within itself alone.
CUTS = {
    "gpt-2 mpt olmo": "I|'|VE| | 12345| caféTest|'s|,|\n\n| x|+=|1| 한국| $|9|\n",
    "smollm starcoder refact command-r": "I|'|VE|  |1|2|3|4|5| caféTest|'s|,|\n\n| x|+=|1| 한국| $|9|\n",
    "falcon": "I|'|VE| | |123|45| caféTest|'|s|,|\n\n| x|+=|1| 한국| |$|9|\n",
    "llama-bpe dbrx smaug-bpe": "I|'VE| | |123|45| caféTest|'s|,\n\n| x|+=|1| 한국| $|9|\n",
    "qwen2 deepseek-r1-qwen": "I|'VE| | |1|2|3|4|5| caféTest|'s|,\n\n| x|+=|1| 한국| $|9|\n",
    "seed-coder": "I|'VE| | |1|2|3|4|5| caféTest|'s|,|\n\n| x|+=|1| 한국| $|9|\n",
    "tekken": "I|'VE| | |1|2|3|4|5| café|Test|'s|,\n\n| x|+=|1| 한국| $|9|\n",
    "gpt-4o llama4": "I'VE| | |123|45| café|Test's|,\n\n| x|+=|1| 한국| $|9|\n",
    "deepseek-llm": "I|'|VE|  |1|2|3|4|5| caf|é|Test|'|s|,|\n|\n| x|+=|1| |한국| $|9|\n",
    "deepseek-coder": "I|'|VE|  |1|2|3|4|5| caféTest|'|s|,|\n|\n| x|+=|1| |한국| $|9|\n",
    "bloom": "I'VE| | 12345| caféTest's|,\n\n| x+=1| 한국| $9|\n",
    "viking": "I'VE| | |1|2|3|4|5| caféTest's|,\n\n| x+=|1| 한국| $|9|\n",
}


def pieces(pre_tokenizer: pre_tokenizers.PreTokenizer, text: str) -> list[str]:
    return [
        bytes(BYTE_OF_CHAR[char] for char in piece).decode()
        for piece, _ in pre_tokenizer.pre_tokenize_str(text)
    ]


@pytest.mark.parametrize("names", CUTS)
def test_text_is_cut_where_the_model_expects_it(names: str) -> None:
    for name in names.split():
        cut = pieces(splitting_named(name).pre_tokenizer(), TEXT)
        assert cut == CUTS[names].split("|"), name


@pytest.mark.parametrize("name", SPLITTINGS)
def test_nothing_of_a_text_is_lost(name: str) -> None:
    assert "".join(pieces(splitting_named(name).pre_tokenizer(), TEXT * 3)) == TEXT * 3


@pytest.mark.parametrize("name", ["qwen2", "olmo", "command-r"])
def test_some_bring_a_text_to_form_c(name: str) -> None:
    normalizer = splitting_named(name).normalizer()
    assert normalizer is not None
    assert normalizer.normalize_str("e\u0301") == "\u00e9"


@pytest.mark.parametrize("name", ["none-such", "", None, 3])
def test_unknown_name_is_refused(name: object) -> None:
    with pytest.raises(ModelError, match="not known"):
        splitting_named(name)
