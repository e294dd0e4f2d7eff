"""Text to ids and back, from each kind of model file."""

from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, processors

from legato.core.errors import ModelError, RequestError
from legato.modelfiles.catalog import resolve
from legato.tokenization.tokenizer import Tokenizer, load_tokenizer
from tests.model_builders import TINY_GGUF, gguf_bytes, write_json
from tests.tokenization.tiny_tokenizers import byte_fallback_tokenizer, byte_level_tokenizer

# The text, its ids, and the pieces of text that these stand for, to be checked by eye: each digit alone,
# a space goes with the word after it, the rest of a run of spaces is a piece; bytes where it is no character.
HAND_CHECKED: list[tuple[str, list[int], list[str | bytes]]] = [
    ("Hello, I am", [19556, 28, 339, 744], ["Hello", ",", " I", " am"]),
    (
        "In 2024: 3.14",
        [788, 216, 34, 32, 34, 36, 42, 216, 35, 30, 33, 36],
        ["In", " ", "2", "0", "2", "4", ":", " ", "3", ".", "1", "4"],
    ),
    (
        "１２ ٣",
        [8083, 235, 8083, 236, 216, 164, 113],
        [b"\xef\xbc", b"\x91", b"\xef\xbc", b"\x92", " ", b"\xd9", b"\xa3"],
    ),
    ("½ x²", [16738, 1792, 19133], ["½", " x", "²"]),
    (
        "한국어",
        [33085, 246, 181, 130, 251, 183, 240, 129],
        [b"\xed\x95", b"\x9c", b"\xea", b"\xb5", b"\xad", b"\xec", b"\x96", b"\xb4"],
    ),
    ("日本", [23274, 115, 40993], [b"\xe6\x97", b"\xa5", "本"]),
    (
        "🧑\u200d🚀",
        [10813, 117, 235, 321, 231, 10813, 244, 218],
        [b"\xf0\x9f", b"\xa7", b"\x91", b"\xe2\x80", b"\x8d", b"\xf0\x9f", b"\x9a", b"\x80"],
    ),
    ("é é", [85, 151, 219, 26411], ["e", b"\xcc", b"\x81", " é"]),
    (
        "def f(x):\n    return x",
        [1604, 275, 24, 104, 727, 472, 1003, 1792],
        ["def", " f", "(", "x", "):", "\n   ", " return", " x"],
    ),
    ("a  b\t c", [81, 216, 278, 197, 265], ["a", " ", " b", "\t", " c"]),
    ("\n\n  x ", [8866, 1792, 216], ["\n\n ", " x", " "]),
    (
        "<|im_start|>user\nHi<|im_end|>\n",
        [1, 4093, 198, 26843, 2, 198],
        ["<|im_start|>", "user", "\n", "Hi", "<|im_end|>", "\n"],
    ),
    ("don't", [12420, 982], ["don", "'t"]),
    ("x=1+22", [104, 45, 33, 27, 34, 34], ["x", "=", "1", "+", "2", "2"]),
    (" 7", [216, 39], [" ", "7"]),
    ("", [], []),
]


@pytest.fixture(scope="module")
def smollm() -> Tokenizer:
    tokenizer = load_tokenizer(resolve("smollm2-135m-instruct").path)
    assert tokenizer is not None
    return tokenizer


def write_gguf(folder: Path, **changes: Any) -> Path:
    """A .gguf file whose tokenizer knows a, b, c, ab, abc, the digits and two markers."""
    tokens = ["<|end|>", *"abc", "ab", "abc", "<tool>", *"0123456789", "12"]
    metadata = TINY_GGUF | {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 1, 1, 1, 1, 1, 4, *[1] * 11],
        "tokenizer.ggml.merges": ["a b", "ab c", "1 2"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
    }
    for name, value in changes.items():
        metadata[f"tokenizer.ggml.{name}"] = value
    path = folder / "model.gguf"
    path.write_bytes(gguf_bytes(metadata))
    return path


def load(path: Path, override: Path | None = None) -> Tokenizer:
    tokenizer = load_tokenizer(path, override)
    assert tokenizer is not None
    return tokenizer


def test_gguf_tokenizer_merges_in_order_and_knows_its_markers(tmp_path: Path) -> None:
    tokenizer = load(write_gguf(tmp_path))
    assert tokenizer.encode("abcab<|end|>a<tool>") == [5, 4, 0, 1, 6]
    assert tokenizer.special_ids == {0}
    assert tokenizer.decode([5, 0, 6]) == "abc<tool>"
    assert tokenizer.decode([5, 0, 6], skip_special_tokens=False) == "abc<|end|><tool>"
    assert (tokenizer.bos_text, tokenizer.special_tokens["eos"], tokenizer.vocab_size) == (
        "<|end|>",
        "<|end|>",
        18,
    )


@pytest.mark.parametrize(("pre", "ids"), [("smollm", [8, 9]), ("gpt-2", [17]), ("default", [17])])
def test_digits_stand_alone_where_the_model_splits_them(tmp_path: Path, pre: str, ids: list[int]) -> None:
    assert load(write_gguf(tmp_path, pre=pre)).encode("12") == ids


def test_bos_is_added_when_the_file_says_so(tmp_path: Path) -> None:
    tokenizer = load(write_gguf(tmp_path, add_bos_token=True))
    assert tokenizer.encode("abc") == [0, 5]
    assert tokenizer.encode("abc", add_special_tokens=False) == [5]
    assert load(write_gguf(tmp_path, add_bos_token=False)).encode("abc") == [5]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"model": "t5"}, "'t5'; of .gguf tokenizers gpt2 and llama .*--tokenizer"),
        ({"model": "llama"}, "no list of numbers tokenizer.ggml.scores"),
        ({"pre": "qwen7"}, "'qwen7', a way .* not known; the nearest that are: qwen2.*--tokenizer"),
        ({"tokens": 5}, "no list of texts tokenizer.ggml.tokens"),
        ({"tokens": ["a", "a"]}, "a token twice"),
        ({"token_type": [3, 1]}, "token_type does not fit"),
        ({"merges": ["a b c"]}, "merges does not fit"),
        ({"merges": ["x y"]}, "merges does not fit"),
    ],
)
def test_gguf_tokenizer_that_cannot_be_built_is_refused(
    tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    path = write_gguf(tmp_path, **changes)
    with pytest.raises(ModelError, match=complaint) as refusal:
        load_tokenizer(path)
    assert str(path) in str(refusal.value)


def write_folder(folder: Path, **settings: Any) -> Tokenizer:
    folder.mkdir(exist_ok=True)
    backend = byte_level_tokenizer()._backend
    backend.add_special_tokens([AddedToken("<s>", special=True, normalized=False)])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
    )
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    backend.save(str(folder / "tokenizer.json"))
    write_json(
        folder / "tokenizer_config.json", {"bos_token": "<s>", "eos_token": {"content": "<|end|>"}} | settings
    )
    return load(folder)


def test_folder_gives_its_tokenizer_without_the_limits_of_its_training(tmp_path: Path) -> None:
    tokenizer = write_folder(tmp_path)
    (bos_id,) = tokenizer.encode("<s>", add_special_tokens=False)
    assert tokenizer.encode("xxxxxx") == [bos_id, *b"xxxxxx"]
    assert tokenizer.encode("xxxxxx", add_special_tokens=False) == [*b"xxxxxx"]
    assert (tokenizer.bos_text, tokenizer.special_tokens["eos"]) == ("<s>", "<|end|>")


@pytest.mark.parametrize(("add_bos", "num_bos"), [(None, 1), (True, 1), (False, 0)])
def test_folder_says_whether_bos_is_added(tmp_path: Path, add_bos: bool | None, num_bos: int) -> None:
    assert len(write_folder(tmp_path, add_bos_token=add_bos).encode("x")) == num_bos + 1


def test_override_wins_as_folder_or_file(tmp_path: Path) -> None:
    write_folder(tmp_path / "other")
    path = write_gguf(tmp_path)
    for override in (tmp_path / "other", tmp_path / "other/tokenizer.json"):
        assert load(path, override).bos_text == "<s>"


def test_folder_without_tokenizer_has_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load_tokenizer(tmp_path) is None
    assert "prompts are token ids" in caplog.text
    assert "return_token_ids" in caplog.text


def test_override_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no tokenizer\.json"):
        load_tokenizer(write_gguf(tmp_path), tmp_path)


def test_other_tokenizer_format_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "tiktoken.model").touch()
    with pytest.raises(ModelError, match=r"tiktoken\.model cannot be read: save it with transformers"):
        load_tokenizer(tmp_path)


def test_broken_tokenizer_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"cannot read .*tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_half_a_surrogate_pair_is_the_requests_fault() -> None:
    with pytest.raises(RequestError, match="surrogate"):
        byte_level_tokenizer().encode("a\ud800")


@pytest.mark.parametrize("token_id", [-1, 2**32])
def test_impossible_id_is_the_requests_fault(token_id: int) -> None:
    with pytest.raises(RequestError, match="between 0 and"):
        byte_level_tokenizer().decode([token_id])


def test_bytes_of_tokens() -> None:
    tokenizer = byte_level_tokenizer()
    assert [tokenizer.token_bytes(byte) for byte in range(256)] == [bytes([byte]) for byte in range(256)]
    assert tokenizer.token_bytes(tokenizer.encode("<tool 한>")[0]) == "<tool 한>".encode()
    assert tokenizer.token_bytes(tokenizer.encode("<|end|>")[0]) == b"<|end|>"
    assert tokenizer.token_bytes(99_999) == b""


def test_bytes_of_tokens_with_byte_fallback_and_marks_for_spaces() -> None:
    tokenizer = byte_fallback_tokenizer()
    ids = tokenizer.encode("a é.")
    assert [tokenizer.token_bytes(i) for i in ids] == [b"<s>", b" ", b"a", b" ", b"\xc3", b"\xa9", b"."]
    assert tokenizer.token_bytes(99_999) == b""


def test_bytes_of_tokens_of_a_decoder_that_puts_spaces_between_words() -> None:
    backend = tokenizers.Tokenizer(models.WordPiece({"ab": 0, "##cd": 1, "[UNK]": 2}))
    backend.decoder = decoders.WordPiece()
    assert [Tokenizer(backend).token_bytes(i) for i in range(2)] == [b" ab", b"cd"]


@given(text=st.text(max_size=50))
def test_byte_level_text_survives_the_way_there_and_back(text: str) -> None:
    tokenizer = byte_level_tokenizer()
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


@pytest.mark.model
@pytest.mark.parametrize(("text", "ids", "pieces"), HAND_CHECKED)
def test_hand_checked_ids_of_the_default_model(
    smollm: Tokenizer, text: str, ids: list[int], pieces: list[str | bytes]
) -> None:
    assert smollm.encode(text) == ids
    assert [smollm.token_bytes(i) for i in ids] == [p if isinstance(p, bytes) else p.encode() for p in pieces]
    assert smollm.decode(ids, skip_special_tokens=False) == text


@pytest.mark.model
@pytest.mark.oracle
@pytest.mark.usefixtures("quick_gguf")
def test_default_model_agrees_with_transformers_but_for_foreign_digits(smollm: Tokenizer) -> None:
    from transformers import AutoTokenizer  # takes seconds to import

    path = resolve("smollm2-135m-instruct").path
    oracle = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text in ORACLE_TEXTS:
        assert smollm.encode(text) == oracle.encode(text), text
        assert smollm.decode(smollm.encode(text)) == oracle.decode(
            oracle.encode(text), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )


ORACLE_TEXTS = [
    "",
    " ",
    "The quick brown fox jumps over the lazy dog.",
    "  leading, trailing and   inner   spaces  \n\n\n and\ttabs\t\t",
    "In 2024, 1234567 people; 3.14159 and 1e-9.",
    "def f(x: int) -> str:\n    return f'{x:>10}' if x else None\n",
    "<|im_start|>user\nHi there<|im_end|>\n",
    "한국어 문장과 日本語の文、中文句子，кириллица, ελληνικά, עברית, العربية",
    "🧑‍🚀👩‍👩‍👧‍👦🇰🇷 e\u0301 é \u200b\ufeff\u00a0\u3000",
    "don't we'll I'VE they're it's",
    "\x00\x01\x7f\r\n\x85\u2028",
    "{'a': [1, 2, {\"b\": null}]}" * 20,
]
