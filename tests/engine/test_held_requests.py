"""Requests whose grammars are built beside the engine's steps."""

from concurrent.futures import Future

import pytest

from legato.ipc.messages import Failed, TokenOutput
from tests.engine.scripted import (
    ScriptedExecutor,
    add_all,
    make_message,
    rejection,
    run_to_end,
    scripted_core,
)

both_loops = pytest.mark.parametrize("lookahead", [0, 1], ids=["plain", "overlap"])


class Builder:
    """Implements Grammars: builds when it is told to."""

    def __init__(self) -> None:
        self.built: Future[None] = Future()

    def prepare(self, grammar: str) -> "Future[None]":
        return self.built


@both_loops
def test_request_waits_for_its_grammar_and_its_neighbours_do_not(lookahead: int) -> None:
    builder = Builder()
    executor = ScriptedExecutor({"a": [20, 21, 22], "json": [30]})
    core = scripted_core(executor, lookahead=lookahead, grammars=builder)
    add_all(core, make_message("json", max_tokens=1, grammar="a grammar"), make_message("a", max_tokens=3))
    assert core.idle_s == 0
    tokens: list[TokenOutput | Failed] = []
    while len(tokens) < 3:
        tokens += core.step()
    assert {each.request_id for each in tokens} == {"a"}
    assert core.has_work
    assert core.idle_s > 0, "an engine with nothing else to do sleeps a little"
    assert (core.step(), core.stats().waiting) == ([], 1)
    assert rejection(core, request_id="json").code == "duplicate_request_id"
    builder.built.set_result(None)
    assert [each.request_id for each in run_to_end(core)] == ["json"]
    core.check_integrity()


def test_request_that_leaves_while_its_grammar_is_built_is_forgotten() -> None:
    core = scripted_core(ScriptedExecutor({}), grammars=Builder())
    add_all(core, make_message("json", grammar="a grammar"))
    core.abort("json")
    assert not core.has_work


@pytest.mark.parametrize("is_fair", [True, False])
def test_requests_whose_grammars_are_built_fill_the_queue_like_others(is_fair: bool) -> None:
    limits = {"max_num_seqs": 1, "max_queued": 3, "max_queued_tokens": 30, "is_fair": is_fair}
    core = scripted_core(ScriptedExecutor(), grammars=Builder(), **limits)
    add_all(core, make_message("runs", tenant="one"))
    core.step()
    for name in ("g1", "g2"):
        add_all(core, make_message(name, tenant="one", grammar="a grammar", prompt_len=10))
    assert core.stats().waiting_tokens == 20
    refusal = rejection(core, request_id="long", tenant="one", grammar="a grammar", prompt_len=11)
    assert "prompts of 20 tokens wait already and this one has 11, the limit is 30" in refusal.message
    add_all(core, make_message("g3", tenant="one", grammar="a grammar"))
    refusal = rejection(core, request_id="late", tenant="one", grammar="a grammar")
    assert "3 requests wait already, the limit is 3" in refusal.message
    if is_fair:
        add_all(core, make_message("other", tenant="two"))
