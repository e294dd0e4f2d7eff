"""The grammar worker as the engine sees it: masks by row, none for slow ones, a new worker after a death."""

from pathlib import Path

import pytest

from legato.sampling.grammar_client import GrammarClient, NoMaskError, WorkerGoneError
from legato.tokenization.grammar_text import regex_grammar
from tests.tokenization.tiny_tokenizers import byte_level_backend

EOS_ID = 272
DIGITS = regex_grammar("[0-9]{2}x?")
WAIT_S = 60


@pytest.fixture
def client(tmp_path: Path) -> GrammarClient:
    byte_level_backend().save(str(tmp_path / "tokenizer.json"))
    return GrammarClient(tmp_path / "tokenizer.json", [EOS_ID])


def allowed(bits: bytes) -> list[int]:
    return [place for place in range(len(bits) * 8) if bits[place // 8] >> place % 8 & 1]


def test_rows_with_one_grammar_go_ways_of_their_own(client: GrammarClient) -> None:
    client.prepare(DIGITS).result(WAIT_S)
    first, second = client.begin(0, DIGITS, []), client.begin(1, DIGITS, [ord("1"), ord("2")])
    assert allowed(first.result(WAIT_S)) == list(range(ord("0"), ord("9") + 1))
    assert allowed(second.result(WAIT_S)) == [ord("x"), EOS_ID]
    first, second = client.advance([(0, ord("7")), (1, ord("x"))])
    assert allowed(first.result(WAIT_S)) == list(range(ord("0"), ord("9") + 1))
    assert allowed(second.result(WAIT_S)) == [EOS_ID]
    assert len(first.result()) % 4 == 0


def test_row_may_change_hands_before_its_mask_is_fetched(client: GrammarClient) -> None:
    client.begin(0, DIGITS, [])
    assert allowed(client.begin(0, regex_grammar("[ab]"), []).result(WAIT_S)) == [ord("a"), ord("b")]


def test_row_whose_mask_takes_too_long_gets_none_and_the_others_get_theirs(client: GrammarClient) -> None:
    slow = client.begin(0, regex_grammar("a{300000}"), [])
    others = [client.begin(row, DIGITS, []) for row in range(1, 9)]
    assert all(len(allowed(each.result(WAIT_S))) == 10 for each in others)
    with pytest.raises(NoMaskError, match=r"takes too long .* shorter"):
        slow.result(WAIT_S)


def test_bad_grammar_is_prepared_and_has_no_mask(client: GrammarClient) -> None:
    client.prepare("start: other").result(WAIT_S)
    with pytest.raises(NoMaskError, match="unknown name"):
        client.begin(0, "start: other", []).result(WAIT_S)


def test_after_a_death_rows_must_begin_again_with_another_worker(client: GrammarClient) -> None:
    before = client.begin(0, DIGITS, []).result(WAIT_S)
    assert client._worker is not None
    first_pid = client.pid
    client._worker.process.kill()
    client._worker.process.wait()
    client._worker._reader.join(WAIT_S)
    [advanced] = client.advance([(0, ord("1"))])
    with pytest.raises(WorkerGoneError):
        advanced.result(WAIT_S)
    assert client.begin(0, DIGITS, []).result(WAIT_S) == before
    assert client.pid != first_pid


def test_those_who_wait_hear_of_a_death(client: GrammarClient) -> None:
    waiting = client.begin(0, DIGITS, []), client.prepare(DIGITS)
    assert client._worker is not None
    client._worker.process.kill()
    with pytest.raises(WorkerGoneError):
        waiting[0].result(WAIT_S)
    waiting[1].result(WAIT_S)
