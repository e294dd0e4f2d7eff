"""Ids of tokenizers in .gguf files are those of transformers, on hard texts, for every kind."""

from pathlib import Path
from typing import Any

import pytest

from legato.core.errors import ModelError
from legato.tokenization.tokenizer import Tokenizer, load_tokenizer
from tests.model_builders import TINY_GGUF, gguf_bytes
from tests.tokenization.hard_texts import HARD_TEXTS, byte_level_parts, sentencepiece_parts

BY_THE_FILE = [
    "gpt-2",
    "llama-bpe",
    "tekken",
    "gpt-4o",
    "dbrx",
]  # transformers reads these from the same file
BY_ITS_CLASS = {"qwen2": "Qwen2Tokenizer", "olmo": "GPTNeoXTokenizer", "command-r": "CohereTokenizer"}


def byte_level_file(folder: Path, pre: str, **changes: Any) -> Path:
    vocab, merges = byte_level_parts()
    tokens = [*sorted(vocab, key=vocab.__getitem__), "<|end|>", "<think>"]
    return write(
        folder,
        model="gpt2",
        pre=pre,
        tokens=tokens,
        token_type=[1] * len(vocab) + [3, 4],
        merges=[" ".join(merge) for merge in merges],
        bos_token_id=len(vocab),
        eos_token_id=len(vocab),
        **{"add_bos_token": False} | changes,
    )


def sentencepiece_file(folder: Path, architecture: str = "llama", **changes: Any) -> Path:
    pieces, scores, types = sentencepiece_parts()
    metadata = {"model": "llama", "tokens": pieces, "scores": scores, "token_type": types}
    return write(folder, architecture, unknown_token_id=0, **metadata | changes)


def write(folder: Path, architecture: str = "llama", **settings: Any) -> Path:
    keys = {f"tokenizer.ggml.{name}": value for name, value in settings.items() if value is not None}
    path = folder / f"model{len(list(folder.iterdir()))}.gguf"  # a second one is another file
    path.write_bytes(gguf_bytes(TINY_GGUF | {"general.architecture": architecture} | keys))
    return path


def load(path: Path) -> Tokenizer:
    tokenizer = load_tokenizer(path)
    assert tokenizer is not None
    return tokenizer


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where tokenizers that were built are kept."""
    monkeypatch.setenv("LEGATO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def transformers_reading(path: Path) -> Any:
    from transformers import AutoTokenizer  # takes seconds to import

    return AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)


@pytest.mark.oracle
@pytest.mark.parametrize("pre", BY_THE_FILE)
def test_byte_level_ids_are_those_of_the_same_file_in_transformers(tmp_path: Path, pre: str) -> None:
    path = byte_level_file(tmp_path, pre)
    ours, theirs = load(path), transformers_reading(path)
    for text in [*HARD_TEXTS, "<think>a<|end|> b"]:
        assert ours.encode(text) == theirs.encode(text), text
        assert ours.decode(ours.encode(text), False) == text


@pytest.mark.oracle
@pytest.mark.parametrize("pre", BY_ITS_CLASS)
def test_byte_level_ids_are_those_of_the_models_class_in_transformers(tmp_path: Path, pre: str) -> None:
    import transformers

    vocab, merges = byte_level_parts()
    marks = {"unk_token": "<|end|>", "bos_token": "<|end|>", "eos_token": "<|end|>", "pad_token": "<|end|>"}
    theirs = getattr(transformers, BY_ITS_CLASS[pre])(vocab=dict(vocab), merges=list(merges), **marks)
    ours = load(byte_level_file(tmp_path, pre))
    for text in HARD_TEXTS:
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False), text


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("architecture", "space_prefix"), [("phi3", True), ("llama", True), ("gemma3", False)]
)
def test_sentencepiece_ids_are_those_of_the_same_file_in_transformers(
    tmp_path: Path, architecture: str, space_prefix: bool
) -> None:
    path = sentencepiece_file(tmp_path, architecture, add_space_prefix=space_prefix)
    ours, theirs = load(path), transformers_reading(path)
    for text in HARD_TEXTS:
        # Of Llama transformers swallows a space that a text begins with, which SentencePiece does not.
        if "</s>" not in text and not (architecture == "llama" and text.startswith(" ")):
            ids = ours.encode(text)
            assert ids == theirs.encode(text), text
            assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_sentencepiece_text_survives_the_way_there_and_back(tmp_path: Path) -> None:
    tokenizer = load(sentencepiece_file(tmp_path))
    assert tokenizer.special_tokens == {"bos": "<s>", "eos": "</s>", "unk": "<unk>"}
    for text in HARD_TEXTS:
        if "<s>" not in text:
            assert tokenizer.decode(tokenizer.encode(text)) == text.replace("▁", " ")
            ids = tokenizer.encode(text, add_special_tokens=False)
            joined = b"".join(map(tokenizer.token_bytes, ids))
            assert joined.decode() == (" " + text if text else "").replace("▁", " ")


def test_sentencepiece_puts_a_space_before_a_text_and_behind_a_marker_where_it_does_so(
    tmp_path: Path,
) -> None:
    (space,) = load(sentencepiece_file(tmp_path, add_space_prefix=False)).encode(" ", False)
    with_space = load(sentencepiece_file(tmp_path))
    assert with_space.encode("</s></s>", False) == [2, 2]
    for text, num_spaces in [("\x00", 1), (" \x00", 2), ("</s>\x00", 1)]:
        ids = with_space.encode(text, False)
        assert b"".join(map(with_space.token_bytes, ids)).count(b" ") == num_spaces
    without = load(sentencepiece_file(tmp_path, add_space_prefix=False))
    assert without.encode("\x00", False) == [3]
    assert without.encode(" \x00", False) == [space, 3]


def test_byte_tokens_stand_for_bytes_and_not_for_the_text_that_names_them(tmp_path: Path) -> None:
    tokenizer = load(sentencepiece_file(tmp_path, add_space_prefix=False))
    assert tokenizer.encode("\U0001f9ff", False) == [3 + byte for byte in "\U0001f9ff".encode()]
    assert 3 + 0x41 not in tokenizer.encode("<0x41>", False)


def test_special_tokens_of_phi3_swallow_the_spaces_behind_them(tmp_path: Path) -> None:
    assert load(sentencepiece_file(tmp_path, "phi3")).encode("</s> \n", False) == [2]
    assert len(load(sentencepiece_file(tmp_path, "llama")).encode("</s> \n", False)) > 1


def test_run_of_spaces_that_is_one_token_is_one_id(tmp_path: Path) -> None:
    pieces, scores, types = sentencepiece_parts()
    longer = {"tokens": [*pieces, " " * 9], "scores": [*scores, -1000.0], "token_type": [*types, 4]}
    tokenizer = load(sentencepiece_file(tmp_path, "gemma3", add_space_prefix=False, **longer))
    assert tokenizer.token_bytes(len(pieces)) == b" " * 9
    assert tokenizer.decode(tokenizer.encode("x" + " " * 9 + "x")) == "x" + " " * 9 + "x"


@pytest.mark.parametrize(
    ("pre", "add_bos", "adds"),
    [("llama-bpe", None, True), ("tekken", None, True), ("qwen2", None, False), ("qwen2", True, True),
     ("llama-bpe", False, False)],
)  # fmt: skip
def test_bos_goes_first_where_the_file_or_else_its_kind_says_so(
    tmp_path: Path, pre: str, add_bos: bool | None, adds: bool
) -> None:
    tokenizer = load(byte_level_file(tmp_path, pre, add_bos_token=add_bos))
    bos = len(byte_level_parts()[0])
    assert tokenizer.encode("a") == [bos] * adds + tokenizer.encode("a", add_special_tokens=False)


def test_eos_goes_last_where_the_file_says_so(tmp_path: Path) -> None:
    tokenizer = load(sentencepiece_file(tmp_path, add_bos_token=False, add_eos_token=True))
    assert tokenizer.encode("</s>") == [2, 2]
    assert load(sentencepiece_file(tmp_path)).encode("</s>") == [1, 2]


def test_whole_word_that_no_merge_makes_is_a_token_where_the_kind_takes_whole_words(tmp_path: Path) -> None:
    vocab, merges = byte_level_parts()
    tokens = [*sorted(vocab, key=vocab.__getitem__), "zqzq"]
    parts = {"tokens": tokens, "token_type": None, "merges": [" ".join(merge) for merge in merges]}
    for pre, is_whole in [("llama-bpe", True), ("dbrx", False)]:
        path = write(tmp_path, model="gpt2", pre=pre, add_bos_token=False, **parts)
        assert (load(path).encode("zqzq") == [len(vocab)]) is is_whole


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"scores": [1.0]}, "679 tokens have 1 scores"),
        ({"scores": None}, "no list of numbers"),
        ({"tokens": None}, "no list of texts"),
        ({"token_type": [1]}, "token_type does not fit"),
    ],
)
def test_sentencepiece_lists_that_do_not_fit_are_refused(
    tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ModelError, match=f"{complaint}.*--tokenizer"):
        load(sentencepiece_file(tmp_path, **changes))


def test_sentencepiece_without_a_byte_is_refused(tmp_path: Path) -> None:
    pieces = ["other" if piece == "<0x41>" else piece for piece in sentencepiece_parts()[0]]
    with pytest.raises(ModelError, match="lacks <0x41>"):
        load(sentencepiece_file(tmp_path, tokens=pieces))


def test_what_was_built_is_read_the_next_time_and_built_again_when_it_cannot_be(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sentencepiece_file(tmp_path)
    built = load(path)
    [kept] = (home / "tokenizers").iterdir()
    kept.write_text("cut of")
    ids = [built.encode(text) for text in HARD_TEXTS]
    assert [load(path).encode(text) for text in HARD_TEXTS] == ids
    monkeypatch.delattr("legato.tokenization.tokenizer.build_gguf_tokenizer")
    assert [load(path).encode(text) for text in HARD_TEXTS] == ids
    assert load(path).special_tokens == built.special_tokens


def test_tokenizer_that_cannot_be_kept_is_built_each_time(tmp_path: Path, home: Path) -> None:
    home.write_text("no folder")
    assert load(sentencepiece_file(tmp_path)).encode("the") == load(sentencepiece_file(tmp_path)).encode(
        "the"
    )
