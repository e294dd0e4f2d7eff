"""Grammars are found good or bad, with the reason, within bounds, and off the event loop."""

import asyncio
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import legato.tokenization.grammar_check as grammar_check
import legato.tokenization.grammar_helper as grammar_helper
from legato.core.errors import ConfigError, OverloadedError, RequestError
from legato.tokenization.grammar_check import GrammarChecker
from legato.tokenization.grammar_helper import GrammarHelper
from legato.tokenization.grammar_text import choice_grammar, json_schema_grammar, lark_json, regex_grammar
from tests.tokenization.tiny_tokenizers import byte_fallback_tokenizer, byte_level_tokenizer

EOS_IDS = [272]  # <|end|>
WORD = 'start: "a"'
# its automaton would be larger than any memory
ENDLESS = json_schema_grammar(
    {"type": "string", "allOf": [{"pattern": f".*a.{{{length}}}b.*"} for length in range(1, 40)]}
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "made" / "tokenizer.json"


@pytest.fixture
def checker(file: Path) -> GrammarChecker:
    return GrammarChecker(byte_level_tokenizer(), file)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> GrammarChecker:
    """One whose helper runs already, after the first test."""
    return GrammarChecker(byte_level_tokenizer(), tmp_path_factory.mktemp("made") / "tokenizer.json")


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
def test_a_good_grammar_is_given_back_as_it_is(started: GrammarChecker, grammar: str) -> None:
    assert check(started, grammar) == grammar


def test_gbnf_becomes_lark(started: GrammarChecker) -> None:
    lark = check(started, 'root ::= "yes" | no\nno ::= "n" "o"+')
    assert lark.lstrip().startswith("%llguidance")
    assert check(started, lark) == lark


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (json_schema_grammar({"not": {}}), '^keywords that are not supported in a schema: "not"$'),
        (f"start: {lark_json({'not': {}})}", '^keywords that are not supported in a schema: "not"$'),
        (f"start: {lark_json({'oneOf': [{'type': 'null'}, {}]})}", "^the schemas of oneOf may overlap"),
        (json_schema_grammar(False), "Unsatisfiable"),
        (regex_grammar("(a"), r'^invalid regex "\(a": unclosed group$'),
        (regex_grammar("(?=a)a"), "look-around"),
        ("start: other", "unknown name"),
        ("start: <|nobody|>", "unknown special token"),
        ("neither this nor that", "neither Lark nor GBNF"),
        ('{"grammars": []}', "grammar"),
        ("{", "EOF"),
    ],
)
def test_a_bad_grammar_is_refused_with_the_reason(started: GrammarChecker, grammar: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as refusal:
        check(started, grammar)
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


def test_a_grammar_without_end_is_refused_and_the_next_one_is_checked(started: GrammarChecker) -> None:
    with pytest.raises(RequestError, match="smaller or simpler") as refusal:
        check(started, ENDLESS)
    assert (refusal.value.param, refusal.value.code) == ("grammar", "invalid_grammar")
    assert check(started, WORD) == WORD


def test_a_helper_that_died_is_replaced(started: GrammarChecker) -> None:
    check(started, WORD)
    process = started._helper._process
    process.kill()
    process.wait()
    assert check(started, 'start: "b"') == 'start: "b"'


ENDS_ONCE = """
import pathlib, sys
print("{}", flush=True)
mark, line = pathlib.Path(sys.argv[1]), sys.stdin.readline()
if mark.exists():
    print('{"grammar": ' + line.strip() + "}", flush=True)
    sys.stdin.readline()
mark.touch()
"""


def test_a_helper_that_ends_for_want_of_work_just_as_a_grammar_comes_is_replaced(tmp_path: Path) -> None:
    helper = GrammarHelper(tmp_path / "tokenizer.json", EOS_IDS)
    helper._command = [sys.executable, "-c", ENDS_ONCE, str(tmp_path / "has ended")]
    assert helper.build(WORD) == WORD
    assert helper.build(WORD) == WORD


ENDS_UNREAD = """
import os, pathlib, sys
print("{}", flush=True)
mark = pathlib.Path(sys.argv[1])
if mark.exists():
    print('{"grammar": ' + sys.stdin.readline().strip() + "}", flush=True)
    sys.stdin.readline()
mark.touch()
os.close(0)
sys.stdin = None
"""


def test_a_helper_that_ends_before_it_reads_a_grammar_is_replaced(tmp_path: Path) -> None:
    helper = GrammarHelper(tmp_path / "tokenizer.json", EOS_IDS)
    helper._command = [sys.executable, "-c", ENDS_UNREAD, str(tmp_path / "has ended")]
    for _ in range(3):
        assert helper.build(WORD) == WORD


def test_a_helper_that_takes_nothing_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = GrammarHelper(tmp_path / "tokenizer.json", EOS_IDS)
    helper._command = [sys.executable, "-c", 'import time; print("{}", flush=True); time.sleep(60)']
    process = helper._running()
    monkeypatch.setattr(grammar_helper, "MAX_WALL_S", 0.1)
    with pytest.raises(RequestError, match="smaller or simpler"):
        helper.build(2**18 * "a")
    assert process.returncode is not None


def test_the_helper_is_heard_at_any_descriptor(file: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(2048, hard)), hard))
    taken = []
    try:
        while not taken or taken[-1] < 1024:
            taken.append(os.dup(0))
        assert check(GrammarChecker(byte_level_tokenizer(), file), WORD) == WORD
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("pattern", ["a{1000000}", "[a-c]{3}a{1000000}"])
def test_a_grammar_whose_tokens_take_long_to_find_is_refused_with_the_remedy(
    started: GrammarChecker, pattern: str
) -> None:
    with pytest.raises(RequestError, match=r"shorter|simpler") as refusal:
        check(started, regex_grammar(pattern))
    assert refusal.value.code == "invalid_grammar"


class FakeHelper:
    """Takes every grammar, keeping those that it was given, and waits to be let go where it is told to."""

    def __init__(self) -> None:
        self.built: list[str] = []
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def build(self, grammar: str) -> str:
        self.built.append(grammar)
        self.begun.set()
        assert self.go_on.wait(20)
        return grammar


@pytest.fixture
def helper(monkeypatch: pytest.MonkeyPatch) -> FakeHelper:
    fake = FakeHelper()
    monkeypatch.setattr(grammar_check, "GrammarHelper", lambda *_: fake)
    return fake


def test_a_grammar_that_was_found_good_is_not_built_again(
    checker: GrammarChecker, helper: FakeHelper
) -> None:
    for _ in range(3):
        check(checker, WORD)
    assert helper.built == [WORD]


def test_what_is_remembered_has_a_bound_in_bytes(
    file: Path, helper: FakeHelper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_check, "CACHE_BYTES", 3 * 2 * len(WORD))
    checker = GrammarChecker(byte_level_tokenizer(), file)
    words = [f'start: "{letter}"' for letter in "abcd"]
    for word in [*words, words[3], words[0]]:
        check(checker, word)
    assert helper.built == [*words, words[0]]


def test_many_who_ask_for_one_grammar_share_its_check(
    checker: GrammarChecker, helper: FakeHelper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_check, "MAX_CHECKS", 1)

    async def many() -> list[str]:
        return await asyncio.gather(*(checker.check(WORD, EOS_IDS) for _ in range(50)))

    assert asyncio.run(many()) == [WORD] * 50
    assert helper.built == [WORD]


@pytest.mark.parametrize("bound", [("MAX_WAIT_S", 0.01), ("MAX_CHECKS", 1)])
def test_others_wait_their_turn_and_not_for_ever(
    checker: GrammarChecker, helper: FakeHelper, monkeypatch: pytest.MonkeyPatch, bound: tuple[str, float]
) -> None:
    helper.go_on.clear()

    async def two() -> str:
        first = asyncio.ensure_future(checker.check(WORD, EOS_IDS))
        await asyncio.to_thread(helper.begun.wait, 20)
        monkeypatch.setattr(grammar_check, *bound)
        with pytest.raises(OverloadedError):
            await checker.check('start: "b"', EOS_IDS)
        helper.go_on.set()
        return await first

    assert asyncio.run(two()) == WORD


def test_a_client_that_leaves_takes_nothing_from_the_others(
    checker: GrammarChecker, helper: FakeHelper
) -> None:
    helper.go_on.clear()

    async def leave() -> str:
        leaver = asyncio.ensure_future(checker.check(WORD, EOS_IDS))
        other = asyncio.ensure_future(checker.check(WORD, EOS_IDS))
        await asyncio.to_thread(helper.begun.wait, 20)
        leaver.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaver
        helper.go_on.set()
        return await other

    assert asyncio.run(leave()) == WORD


def test_a_check_that_nobody_waits_for_any_more_is_not_begun(
    checker: GrammarChecker, helper: FakeHelper, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper.go_on.clear()

    async def main() -> None:
        first = asyncio.ensure_future(checker.check(WORD, EOS_IDS))
        await asyncio.to_thread(helper.begun.wait, 20)
        monkeypatch.setattr(grammar_check, "MAX_WAIT_S", 0.01)
        leaver = asyncio.ensure_future(checker.check('start: "left"', EOS_IDS))
        late = asyncio.ensure_future(checker.check('start: "late"', EOS_IDS))
        await asyncio.sleep(0)
        leaver.cancel()
        with pytest.raises(OverloadedError):
            await late
        monkeypatch.setattr(grammar_check, "MAX_WAIT_S", 20)
        last = asyncio.ensure_future(checker.check('start: "last"', EOS_IDS))
        await asyncio.sleep(0)
        helper.go_on.set()
        await first
        await last

    asyncio.run(main())
    assert helper.built == [WORD, 'start: "last"']


def test_one_tenants_many_checks_hold_up_no_other(
    checker: GrammarChecker, helper: FakeHelper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do they take the place of others, when there is room for no more."""
    monkeypatch.setattr(grammar_check, "MAX_CHECKS", 4)
    helper.go_on.clear()

    def word(text: str) -> str:
        return f'start: "{text}"'

    async def main() -> None:
        checks = [asyncio.ensure_future(checker.check(word("greedy 0"), EOS_IDS, "greedy"))]
        await asyncio.to_thread(helper.begun.wait, 20)
        for number in range(1, 4):
            checks.append(asyncio.ensure_future(checker.check(word(f"greedy {number}"), EOS_IDS, "greedy")))
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError):
            await checker.check(word("greedy 4"), EOS_IDS, "greedy")
        for number in range(2):
            checks.append(asyncio.ensure_future(checker.check(word(f"modest {number}"), EOS_IDS, "modest")))
        await asyncio.sleep(0)
        await asyncio.sleep(0.05)  # what the first one takes
        helper.go_on.set()
        await asyncio.gather(*checks)

    asyncio.run(main())
    assert helper.built[:3] == [word("greedy 0"), word("modest 0"), word("modest 1")]
    assert len(helper.built) == 6


def test_no_exit_waits_for_checks(file: Path) -> None:
    program = f"""
import asyncio, threading
import legato.tokenization.grammar_check as grammar_check
from tests.tokenization.tiny_tokenizers import byte_level_tokenizer

class Helper:
    def build(self, grammar):
        threading.Event().wait()

grammar_check.GrammarHelper = lambda *_: Helper()
grammar_check.MAX_WAIT_S = 0.1
checker = grammar_check.GrammarChecker(byte_level_tokenizer(), grammar_check.Path({str(file)!r}))
asyncio.run(checker.check("start: 'a'", [272]))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "OverloadedError" in ended.stderr
