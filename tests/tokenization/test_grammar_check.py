"""Grammars are found good or bad, with the reason, within bounds, and off the event loop."""

import asyncio
import threading
from pathlib import Path

import pytest

import legato.tokenization.grammar_check as grammar_check
from legato.core.errors import ConfigError, OverloadedError, RequestError
from legato.modelfiles import grammars
from legato.tokenization.grammar_check import GrammarChecker
from legato.tokenization.grammar_text import choice_grammar, json_schema_grammar, regex_grammar
from tests.tokenization.tiny_tokenizers import byte_fallback_tokenizer, byte_level_tokenizer

EOS_IDS = [272]  # <|end|>
WORD = 'start: "a"'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "made" / "tokenizer.json"


@pytest.fixture
def checker(file: Path) -> GrammarChecker:
    return GrammarChecker(byte_level_tokenizer(), file)


def check(checker: GrammarChecker, grammar: str) -> str:
    return asyncio.run(checker.check(grammar, EOS_IDS))


@pytest.mark.parametrize(
    "grammar",
    [
        WORD,
        json_schema_grammar({"type": "object"}),
        json_schema_grammar(True),
        regex_grammar(r"a/b|\d+"),
        choice_grammar(['say "hi"', "한", "line\n\x7f"]),
        'start: "<" <|end|>',
    ],
)
def test_a_good_grammar_is_given_back_as_it_is(checker: GrammarChecker, grammar: str) -> None:
    assert check(checker, grammar) == grammar


def test_gbnf_becomes_lark(checker: GrammarChecker) -> None:
    lark = check(checker, 'root ::= "yes" | no\nno ::= "n" "o"+')
    assert lark.lstrip().startswith("%llguidance")
    assert check(checker, lark) == lark


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (json_schema_grammar({"not": {}}), "Unimplemented keys"),
        (json_schema_grammar(False), "Unsatisfiable"),
        (regex_grammar("(a"), "unclosed group"),
        (regex_grammar("(?=a)a"), "look-around"),
        ("start: other", "unknown name"),
        ("start: <|nobody|>", "unknown special token"),
        ("neither this nor that", "neither Lark nor GBNF"),
        ('{"grammars": []}', "grammar"),
        ("{", "EOF"),
    ],
)
def test_a_bad_grammar_is_refused_with_the_reason(checker: GrammarChecker, grammar: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as refusal:
        check(checker, grammar)
    assert (refusal.value.param, refusal.value.code) == ("grammar", "invalid_grammar")
    assert "verbose" not in str(refusal.value)


def test_tokens_are_written_once_for_the_engine_to_read(checker: GrammarChecker, file: Path) -> None:
    check(checker, WORD)
    written = file.stat()
    check(checker, 'start: "b"')
    assert file.stat().st_mtime_ns == written.st_mtime_ns
    assert [each.name for each in file.parent.iterdir()] == [file.name]


def test_a_folder_that_cannot_be_written_is_told_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    checker = GrammarChecker(byte_level_tokenizer(), tmp_path / "taken" / "tokenizer.json")
    with pytest.raises(ConfigError, match="LEGATO_HOME"):
        check(checker, WORD)


@pytest.mark.parametrize("eos_ids", [[], [10**6]])
def test_a_model_whose_answers_have_no_end_is_refused(checker: GrammarChecker, eos_ids: list[int]) -> None:
    with pytest.raises(RequestError, match="no end-of-sequence token") as refusal:
        asyncio.run(checker.check(WORD, eos_ids))
    assert refusal.value.code == "unsupported"


def test_ends_that_the_tokenizer_does_not_know_are_left_out(checker: GrammarChecker) -> None:
    assert asyncio.run(checker.check(WORD, [*EOS_IDS, 10**6])) == WORD


def test_tokenizers_with_byte_fallback_will_do(file: Path) -> None:
    assert asyncio.run(GrammarChecker(byte_fallback_tokenizer(), file).check(WORD, [2])) == WORD


# bounds


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The grammars that were built, in order."""
    built: list[str] = []
    real = grammars.build_matcher
    monkeypatch.setattr(
        grammars, "build_matcher", lambda table, text: (built.append(text), real(table, text))
    )
    return built


def test_a_grammar_that_was_found_good_is_not_built_again(checker: GrammarChecker, builds: list[str]) -> None:
    for _ in range(3):
        check(checker, WORD)
    assert builds == [WORD]


def test_what_is_remembered_has_a_bound_in_bytes(
    file: Path, builds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_check, "CACHE_BYTES", 3 * 2 * len(WORD))
    checker = GrammarChecker(byte_level_tokenizer(), file)
    words = [f'start: "{letter}"' for letter in "abcd"]
    for word in [*words, words[3], words[0]]:
        check(checker, word)
    assert builds == [*words, words[0]]


class Blocked:
    """A build that waits to be let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        monkeypatch.setattr(grammars, "build_matcher", self._build)

    def _build(self, table: object, grammar: str) -> None:
        self.begun.set()
        assert self.go_on.wait(20)


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch) -> Blocked:
    return Blocked(monkeypatch)


def test_a_grammar_that_takes_too_long_is_refused(
    checker: GrammarChecker, blocked: Blocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_check, "MAX_CHECK_S", 0.01)
    with pytest.raises(RequestError, match="smaller or simpler") as refusal:
        check(checker, WORD)
    assert refusal.value.param == "grammar"
    blocked.go_on.set()


@pytest.mark.parametrize("bound", [("MAX_WAIT_S", 0.01), ("MAX_CHECKS", 1)])
def test_others_wait_their_turn_and_not_for_ever(
    file: Path, blocked: Blocked, monkeypatch: pytest.MonkeyPatch, bound: tuple[str, float]
) -> None:
    monkeypatch.setattr(grammar_check, *bound)
    checker = GrammarChecker(byte_level_tokenizer(), file)

    async def two() -> str:
        first = asyncio.ensure_future(checker.check(WORD, EOS_IDS))
        await asyncio.to_thread(blocked.begun.wait, 20)
        with pytest.raises(OverloadedError):
            await checker.check('start: "b"', EOS_IDS)
        blocked.go_on.set()
        return await first

    if bound[0] == "MAX_WAIT_S":
        monkeypatch.setattr(grammar_check, "MAX_CHECK_S", 20)
    assert asyncio.run(two()) == WORD


def test_many_who_ask_for_one_grammar_share_its_check(
    checker: GrammarChecker, builds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_check, "MAX_CHECKS", 1)

    async def many() -> list[str]:
        return await asyncio.gather(*(checker.check(WORD, EOS_IDS) for _ in range(50)))

    assert asyncio.run(many()) == [WORD] * 50
    assert builds == [WORD]


def test_a_client_that_leaves_takes_nothing_from_the_others(
    checker: GrammarChecker, blocked: Blocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_check, "MAX_CHECK_S", 20)

    async def leave() -> str:
        leaver = asyncio.ensure_future(checker.check(WORD, EOS_IDS))
        other = asyncio.ensure_future(checker.check(WORD, EOS_IDS))
        await asyncio.to_thread(blocked.begun.wait, 20)
        leaver.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaver
        blocked.go_on.set()
        return await other

    assert asyncio.run(leave()) == WORD
