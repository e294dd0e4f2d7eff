"""A core from added requests to sent tokens, with a script in place of the model."""

from concurrent.futures import Future

import pytest

from legato.core.plan import StepOutput, StepPlan, TokenLogprobs
from legato.core.sampling_params import FinishReason
from legato.core.timing import Timing
from legato.ipc.messages import Accepted, Failed, TokenOutput
from tests.engine.scripted import (
    EOS,
    OTHER,
    ScriptedExecutor,
    add_all,
    make_message,
    rejection,
    run_to_end,
    scripted_core,
)

both_loops = pytest.mark.parametrize("lookahead", [0, 1], ids=["plain", "overlap"])


@both_loops
def test_tokens_come_one_a_step_and_the_last_says_why(lookahead: int) -> None:
    core = scripted_core(ScriptedExecutor({"a": [20, 21, 22]}), lookahead=lookahead)
    add_all(core, make_message("a", max_tokens=3))
    assert run_to_end(core) == [
        TokenOutput(request_id="a", index=0, token_ids=[20]),
        TokenOutput(request_id="a", index=1, token_ids=[21]),
        TokenOutput(request_id="a", index=2, token_ids=[22], finish_reason=FinishReason.LENGTH),
    ]
    core.check_integrity()


def test_tokens_tell_the_time_of_their_request() -> None:
    seconds = iter(range(100)).__next__  # one each time that the core looks
    core = scripted_core(ScriptedExecutor({}), max_num_seqs=1, clock=seconds)
    add_all(core, make_message("a", max_tokens=2), make_message("b", max_tokens=1))  # at 0 and 1
    told = [(each.request_id, each.timing) for each in run_to_end(core) if isinstance(each, TokenOutput)]
    assert told == [  # each step begins and ends: 2 and 3, 4 and 5, 6 and 7
        ("a", Timing(queue_s=2, prefill_s=1, decode_s=0)),
        ("a", Timing(queue_s=2, prefill_s=1, decode_s=2)),
        ("b", Timing(queue_s=5, prefill_s=1, decode_s=0)),
    ]


def test_forward_that_is_computed_by_launch_counts_as_prefill() -> None:
    now = [0.0]

    class InlineExecutor(ScriptedExecutor):
        def launch(self, plan: StepPlan) -> "Future[StepOutput]":
            now[0] += 5
            return super().launch(plan)

    core = scripted_core(InlineExecutor({}), clock=lambda: now[0])
    add_all(core, make_message("a", max_tokens=1))
    [output] = run_to_end(core)
    assert isinstance(output, TokenOutput)
    assert output.timing == Timing(queue_s=0, prefill_s=5, decode_s=0)


@both_loops
def test_logprobs_travel_with_their_token(lookahead: int) -> None:
    logprobs = TokenLogprobs(-0.5, (20,), (-0.5,))
    core = scripted_core(
        ScriptedExecutor({"a": [20], "b": [30]}, logprobs={"a": logprobs}), lookahead=lookahead
    )
    add_all(core, make_message("a", max_tokens=1), make_message("b", max_tokens=1))
    assert {each.request_id: each.logprobs for each in run_to_end(core)} == {"a": [logprobs], "b": []}


@both_loops
def test_logprobs_of_the_prompt_travel_with_its_first_token(lookahead: int) -> None:
    logprobs = TokenLogprobs(-0.5, (20,), (-0.5,))
    core = scripted_core(ScriptedExecutor({"a": [20, 21]}, logprobs={"a": logprobs}), lookahead=lookahead)
    add_all(core, make_message("a", prompt_len=40, max_tokens=2, prompt_logprobs=1))
    assert [output.prompt_logprobs for output in run_to_end(core)] == [[logprobs] * 39, []]


@both_loops
def test_request_for_no_token_ends_when_its_prompt_is_computed(lookahead: int) -> None:
    logprobs = TokenLogprobs(-0.5, (20,), (-0.5,))
    core = scripted_core(ScriptedExecutor(logprobs={"scored": logprobs}), lookahead=lookahead)
    whole_context = make_message("plain", prompt_len=64, max_tokens=0)
    add_all(
        core,
        whole_context,
        make_message("scored", prompt_len=9, first_id=80, max_tokens=0, prompt_logprobs=1),
    )
    assert {output.request_id: output for output in run_to_end(core)} == {
        "plain": TokenOutput(request_id="plain", index=0, token_ids=[], finish_reason=FinishReason.LENGTH),
        "scored": TokenOutput(
            request_id="scored",
            index=0,
            token_ids=[],
            finish_reason=FinishReason.LENGTH,
            prompt_logprobs=[logprobs] * 8,
        ),
    }
    core.check_integrity()
    assert core.stats().pages_held == 0
    assert core.stats().pages_cached == 16 + 2


def test_overlap_sends_what_the_plain_loop_sends() -> None:
    def sent(lookahead: int) -> dict[str, list[TokenOutput | Failed]]:
        scripts = {"a": [5, 6, EOS], "b": [EOS], "c": [8] * 9, "d": [7, EOS]}
        core = scripted_core(ScriptedExecutor(scripts), lookahead=lookahead, max_num_seqs=2, num_pages=6)
        add_all(core, *(make_message(each, prompt_len=5 + n) for n, each in enumerate(scripts)))
        outputs: dict[str, list[TokenOutput | Failed]] = {}
        for output in run_to_end(core):
            outputs.setdefault(output.request_id, []).append(output)
        core.check_integrity()
        return outputs

    assert sent(lookahead=0) == sent(lookahead=1)
    assert {each: len(outputs) for each, outputs in sent(1).items()} == {"a": 3, "b": 1, "c": 5, "d": 2}


@pytest.mark.parametrize(("lookahead", "num_computed"), [(0, 2), (1, 3)])
def test_token_computed_after_the_end_is_not_sent(lookahead: int, num_computed: int) -> None:
    executor = ScriptedExecutor({"a": [20, EOS, 77]})
    core = scripted_core(executor, lookahead=lookahead)
    add_all(core, make_message("a"))
    outputs = run_to_end(core)
    assert [output.token_ids for output in outputs] == [[20], [EOS]]
    assert outputs[-1].finish_reason is FinishReason.STOP
    assert executor.launched == [("a", index) for index in range(num_computed)]


def test_no_end_before_the_fewest_tokens() -> None:
    core = scripted_core(ScriptedExecutor({"a": [EOS, EOS, EOS, EOS]}))
    add_all(core, make_message("a", min_tokens=3))
    assert [output.finish_reason for output in run_to_end(core)] == [None, None, FinishReason.STOP]


def test_ignored_end_of_sequence_is_a_token_like_others() -> None:
    core = scripted_core(ScriptedExecutor({"a": [EOS, 8]}))
    add_all(core, make_message("a", ignore_eos=True, stop_token_ids=(8,)))
    assert [(output.token_ids, output.finish_reason) for output in run_to_end(core)] == [
        ([EOS], None),
        ([8], FinishReason.STOP),
    ]


def test_end_wins_over_a_length_reached_in_the_same_step() -> None:
    core = scripted_core(ScriptedExecutor({"a": [20, EOS]}))
    add_all(core, make_message("a", max_tokens=2))
    assert run_to_end(core)[-1].finish_reason is FinishReason.STOP


def test_id_of_a_running_request_is_refused() -> None:
    core = scripted_core(ScriptedExecutor())
    add_all(core, make_message("a"))
    assert rejection(core, request_id="a").code == "duplicate_request_id"
    run_to_end(core)
    add_all(core, make_message("a"))


def test_token_in_flight_of_an_aborted_request_reaches_no_later_one_of_its_id() -> None:
    executor = ScriptedExecutor({"a": [20, 21]})
    core = scripted_core(executor, lookahead=1)
    add_all(core, make_message("a"))
    core.step()
    core.abort("a")
    assert rejection(core, request_id="a").code == "duplicate_request_id"
    assert core.step() == []
    add_all(core, make_message("a", first_id=50))
    assert [output.token_ids for output in run_to_end(core)][:2] == [[20], [21]]


def test_full_queue_refuses_the_next_one_and_counts_the_waiting_alone() -> None:
    core = scripted_core(ScriptedExecutor(), max_num_seqs=1, max_queued=2)
    add_all(core, make_message("runs"))
    core.step()
    add_all(core, make_message("w1"), make_message("w2"))
    refusal = rejection(core, request_id="late")
    assert refusal.code == "queue_full"
    assert "2 requests wait already, the limit is 2" in refusal.message
    assert refusal.message.endswith("after the time in Retry-After, or raise --max-num-queued-reqs")
    core.abort("w1")
    add_all(core, make_message("late"))


def test_prompts_that_wait_have_a_limit_in_tokens_and_one_that_waits_alone_has_none() -> None:
    core = scripted_core(ScriptedExecutor(), max_num_seqs=1, max_queued_tokens=8)
    add_all(core, make_message("runs", prompt_len=40))
    core.step()
    add_all(core, make_message("w1", prompt_len=9))
    refusal = rejection(core, request_id="late", prompt_len=1)
    assert refusal.code == "queue_full"
    assert "prompts of 9 tokens wait already and this one has 1, the limit is 8" in refusal.message
    assert refusal.message.endswith("after the time in Retry-After, or raise --max-num-queued-tokens")
    core.abort("w1")
    add_all(core, make_message("w2", prompt_len=5), make_message("w3", prompt_len=3))
    assert rejection(core, request_id="late", prompt_len=1).code == "queue_full"


def test_requests_that_find_a_free_row_do_not_wait() -> None:
    core = scripted_core(ScriptedExecutor(), max_num_seqs=3, max_queued_tokens=1)
    add_all(core, *(make_message(name, prompt_len=30) for name in "abc"))


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"prompt_len": 60}, "context_length_exceeded", "prompt"),
        ({"first_id": 100}, "invalid_token_id", "prompt"),
        ({"stop_token_ids": (100,)}, "invalid_token_id", "stop_token_ids"),
        ({"prompt_len": 0}, "invalid_value", "prompt"),
    ],
)
def test_request_that_cannot_be_served_is_refused_and_leaves_nothing(
    fields: dict[str, object], code: str, param: str
) -> None:
    core = scripted_core(ScriptedExecutor())
    refusal = rejection(core, request_id="bad", **fields)
    assert (refusal.request_id, refusal.code, refusal.param) == ("bad", code, param)
    assert not core.has_work


@both_loops
def test_request_without_numbers_fails_and_its_neighbour_goes_on(lookahead: int) -> None:
    core = scripted_core(ScriptedExecutor(broken={"broken"}), lookahead=lookahead)
    add_all(core, make_message("broken"), make_message("whole", max_tokens=3))
    outputs = run_to_end(core)
    failed = [output for output in outputs if isinstance(output, Failed)]
    assert failed == [Failed(request_id="broken", error="no numbers", code="non_finite_logits")]
    assert [output.token_ids for output in outputs if output.request_id == "whole"] == [[OTHER]] * 3
    core.check_integrity()
    assert core.stats().pages_held == 0


@both_loops
def test_aborted_request_frees_its_pages_at_once_and_sends_nothing_more(lookahead: int) -> None:
    core = scripted_core(ScriptedExecutor(), lookahead=lookahead)
    add_all(core, make_message("gone", max_tokens=50), make_message("stays", max_tokens=4))
    core.step()
    core.step()
    held = core.stats().pages_held
    core.abort("gone")
    assert core.stats().running == 1
    assert core.stats().pages_held < held
    assert {output.request_id for output in run_to_end(core)} == {"stays"}
    core.check_integrity()


def test_aborting_who_waits_or_has_ended_is_harmless() -> None:
    core = scripted_core(ScriptedExecutor(), max_num_seqs=1)
    add_all(core, make_message("a"), make_message("waits"))
    core.abort("waits")
    core.abort("never was")
    assert {output.request_id for output in run_to_end(core)} == {"a"}
    core.abort("a")
    assert not core.has_work


def test_numbers_of_a_busy_core() -> None:
    core = scripted_core(ScriptedExecutor(), max_num_seqs=2)
    prompts = [make_message(each, prompt_len=8, first_id=10 * n) for n, each in enumerate("abc", start=1)]
    add_all(core, *prompts)
    core.step()
    stats = core.stats()
    assert (stats.step, stats.running, stats.waiting, stats.preemptions) == (1, 2, 1, 0)
    assert (stats.pages_held, stats.pages_cached, stats.pages_free) == (4, 0, 28)
    assert (stats.prefix_queries, stats.prefix_hits) == (16, 0)
    assert stats.requests == []

    ledgers = core.stats("query").requests
    assert core.stats("query").query_id == "query"
    assert [(each.request_id, each.state, each.row) for each in ledgers] == [
        ("a", "decoding", 0),
        ("b", "decoding", 1),
        ("c", "waiting", None),
    ]
    first = ledgers[0]
    assert (first.prompt_len, first.cached_len, first.device_len, first.max_device_len) == (8, 8, 9, 13)
    assert (first.extend_len, first.remain_len, len(first.pages)) == (1, 4, 2)
    assert ledgers[2].pages == []


def test_prefix_hit_is_counted_in_tokens_and_told_with_each_output() -> None:
    core = scripted_core(ScriptedExecutor())
    add_all(core, make_message("a", prompt_len=9))
    run_to_end(core)
    assert core.stats().pages_cached == 3  # 9 + 5 tokens, of which the last needs no K/V
    add_all(core, make_message("b", prompt_len=9))
    assert {output.cached_len for output in run_to_end(core)} == {8}
    assert (core.stats().prefix_queries, core.stats().prefix_hits) == (18, 8)


def test_idle_core_does_nothing() -> None:
    core = scripted_core(ScriptedExecutor())
    assert core.step() == []
    assert core.stats().step == 0
    assert not core.has_work


def test_closing_closes_the_executor() -> None:
    executor = ScriptedExecutor()
    scripted_core(executor).close()
    assert executor.is_closed


def test_accepted_names_the_request() -> None:
    core = scripted_core(ScriptedExecutor())
    assert core.add(make_message("a")) == Accepted(request_id="a")
    assert core.has_work


def test_those_that_a_free_row_awaits_do_not_count_as_waiting() -> None:
    core = scripted_core(ScriptedExecutor(), max_num_seqs=2, max_queued=1)
    add_all(core, make_message("a"), make_message("b"), make_message("c"))
    assert rejection(core, request_id="d").code == "queue_full"


def test_full_queue_still_takes_its_part_of_a_tenant_and_sheds_nobody() -> None:
    core = scripted_core(ScriptedExecutor(), max_num_seqs=1, max_queued=4)
    add_all(core, *[make_message(f"greedy{i}", tenant="greedy") for i in range(5)])
    assert rejection(core, request_id="greedy5", tenant="greedy").code == "queue_full"
    add_all(core, *[make_message(f"light{i}", tenant="light") for i in range(2)])
    assert rejection(core, request_id="light2", tenant="light").code == "queue_full"
    add_all(core, make_message("other", tenant="other"))
    ended = {output.request_id for output in run_to_end(core) if output.finish_reason is not None}
    assert ended == {*(f"greedy{i}" for i in range(5)), "light0", "light1", "other"}


def test_full_queue_of_tokens_still_takes_its_part_of_a_tenant() -> None:
    core = scripted_core(ScriptedExecutor(), max_num_seqs=1, max_queued_tokens=8)
    add_all(core, *[make_message(f"greedy{i}", prompt_len=4, tenant="greedy") for i in range(2)])
    assert rejection(core, request_id="greedy2", prompt_len=1, tenant="greedy").code == "queue_full"
    add_all(core, make_message("light0", prompt_len=3, tenant="light"))
    assert rejection(core, request_id="light1", prompt_len=2, tenant="light").code == "queue_full"
    add_all(core, make_message("light1", prompt_len=1, tenant="light"))


def test_tenants_count_as_one_where_nothing_is_shared_out() -> None:
    core = scripted_core(ScriptedExecutor(), max_num_seqs=1, max_queued=1, is_fair=False)
    add_all(core, *[make_message(f"greedy{i}", tenant="greedy") for i in range(2)])
    assert rejection(core, request_id="light", tenant="light").code == "queue_full"
