"""Text in, text out, over an engine in a thread."""

import asyncio
import random
import threading
from pathlib import Path

import pytest

from legato.core.errors import ClosedError, NonFiniteLogitsError, OverloadedError, RequestError
from legato.core.sampling_params import FinishReason, SamplingParams
from legato.frontend.async_llm import AsyncLLM
from legato.frontend.generator import Usage
from legato.ipc.messages import AddRequest
from tests.frontend.answers import Answered, answer_to, answers_to, gather, wait_until
from tests.frontend.conftest import OpenModel
from tests.tokenization.tiny_tokenizers import PIECES

CUT_IDS = range(256 + len(PIECES), 256 + len(PIECES) + 3)  # cuts inside characters


def running(llm: AsyncLLM) -> int:
    return llm.client.latest_stats.running + llm.client.latest_stats.waiting


def varied(seed: int, **fields: object) -> SamplingParams:
    """Long answers of letters, Korean, emoji, and characters cut over tokens."""
    bias = dict.fromkeys([*range(97, 103), *range(256, 256 + len(PIECES)), *CUT_IDS], 60.0)
    defaults = {"max_tokens": 40, "ignore_eos": True, "seed": seed, "logit_bias": bias}
    return SamplingParams(**{**defaults, **fields})


def cut(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """The text before the stop text that ends first, the longest of those that end together; and which."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


def test_streamed_text_is_the_text_of_all_ids(llm: AsyncLLM) -> None:
    async def main() -> list[Answered]:
        return [await answer_to(llm, f"prompt {seed}", varied(seed)) for seed in range(12)]

    answers = asyncio.run(main())
    assert llm.tokenizer is not None
    for answer in answers:
        assert answer.text == llm.tokenizer.decode(answer.token_ids)
        assert len(answer.token_ids) == answer.usage.completion_tokens == 40
        assert answer.finish_reason is FinishReason.LENGTH
    assert len({answer.text for answer in answers}) == 12
    assert sum("한" in answer.text for answer in answers) > 3


def test_logprobs_stand_beside_their_tokens_whatever_ends_the_answer(
    open_model: OpenModel, tiny_model: Path
) -> None:
    llm = open_model(
        tiny_model, num_pages=12, block_size=8, max_num_batched_tokens=24
    )  # so that some are preempted
    rng = random.Random(5)
    settings = [
        varied(
            seed,
            max_tokens=rng.randint(0, 40),
            logprobs=3,
            prompt_logprobs=(None, 0, 2)[seed % 3],
            stop=tuple(rng.choices(["a", "bc", "한", "de"], k=seed % 3)),
        )
        for seed in range(24)
    ]

    async def main() -> list[Answered]:
        async with asyncio.timeout(20):
            asked = (answer_to(llm, f"prompt {n}", params) for n, params in enumerate(settings))
            return await asyncio.gather(*asked)

    answers = asyncio.run(main())
    assert llm.client.latest_stats.preemptions > 0
    assert len({answer.finish_reason for answer in answers}) == 2
    for params, answer in zip(settings, answers, strict=True):
        for delta in answer.deltas:
            assert len(delta.logprobs) == len(delta.token_ids)
            assert delta.prompt_logprobs == () or delta is answer.deltas[0]
        num_scored = 0 if params.prompt_logprobs is None else answer.usage.prompt_tokens - 1
        assert len(answer.deltas[0].prompt_logprobs) == num_scored
        for token_id, logprobs in zip(answer.token_ids, answer.logprobs, strict=True):
            known = dict(zip(logprobs.top_ids, logprobs.top_logprobs, strict=True))
            assert known.get(token_id, logprobs.logprob) == logprobs.logprob <= logprobs.top_logprobs[0]


def test_random_stop_texts_cut_where_the_whole_text_says(llm: AsyncLLM) -> None:
    rng = random.Random(11)

    async def one(seed: int) -> tuple[str, tuple[str, ...], Answered]:
        whole = (await answer_to(llm, f"prompt {seed}", varied(seed))).text
        starts = [rng.randrange(len(whole) - 8) for _ in range(rng.randint(1, 3))]
        stops = ("never there", *(whole[start : start + rng.randint(1, 8)] for start in starts))
        return whole, stops, await answer_to(llm, f"prompt {seed}", varied(seed, stop=stops))

    async def main() -> list[tuple[str, tuple[str, ...], Answered]]:
        return list(await asyncio.gather(*(one(seed) for seed in range(40))))

    for whole, stops, answer in asyncio.run(main()):
        assert (answer.text, answer.stop_reason) == cut(whole, stops)
        assert answer.finish_reason is FinishReason.STOP


def test_stop_text_ends_the_request_in_the_engine_too(llm: AsyncLLM) -> None:
    async def main() -> tuple[Answered, int]:
        whole = (await answer_to(llm, "a prompt", varied(1))).text
        before = llm.client.latest_stats.step
        answer = await answer_to(llm, "a prompt", varied(1, stop=(whole[6:9],), max_tokens=400))
        await wait_until(lambda: running(llm) == 0)
        return answer, llm.client.latest_stats.step - before

    answer, num_steps = asyncio.run(main())
    assert answer.finish_reason is FinishReason.STOP
    assert num_steps < 40
    assert llm.client.latest_stats.pages_held == 0


def test_stop_and_length_in_the_same_step_is_a_stop(llm: AsyncLLM) -> None:
    async def main() -> tuple[str, Answered]:
        whole = (await answer_to(llm, "a prompt", varied(3, max_tokens=10, logit_bias={97: 60, 98: 60}))).text
        params = varied(3, max_tokens=10, logit_bias={97: 60, 98: 60}, stop=(whole,))
        return whole, await answer_to(llm, "a prompt", params)

    whole, answer = asyncio.run(main())
    assert set(whole) == {"a", "b"}
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("", FinishReason.STOP, whole)
    assert answer.usage.completion_tokens == len(answer.token_ids) == 10


def test_included_stop_text_and_fewest_tokens(llm: AsyncLLM) -> None:
    async def main() -> list[Answered]:
        only_a = {"logit_bias": {97: 100.0}, "ignore_eos": True, "max_tokens": 9, "temperature": 0}
        return [
            await answer_to(llm, "x", SamplingParams(**only_a, stop=("aa",))),
            await answer_to(
                llm, "x", SamplingParams(**only_a, stop=("aa",), include_stop_str_in_output=True)
            ),
            await answer_to(llm, "x", SamplingParams(**only_a, stop=("aa",), min_tokens=6)),
            await answer_to(llm, "x", SamplingParams(**only_a, stop_token_ids=(97,))),
            await answer_to(llm, "x", SamplingParams(**only_a, stop_token_ids=(97,), min_tokens=3)),
        ]

    answers = asyncio.run(main())
    assert [answer.text for answer in answers[:4]] == ["", "aa", "aaaa", ""]
    assert [answer.stop_reason for answer in answers[:4]] == ["aa", "aa", "aa", 97]
    last = answers[4]  # 97 is kept from being sampled before three tokens, and ends the answer then
    assert 97 not in last.token_ids[:3]
    assert (last.token_ids[3:], last.stop_reason) == ([97], 97)


def test_usage_counts_prompt_output_and_cache(llm: AsyncLLM) -> None:
    async def main() -> list[Answered]:
        prompt = list(range(50))
        params = SamplingParams(max_tokens=3, ignore_eos=True)
        return [await answer_to(llm, prompt, params), await answer_to(llm, prompt, params)]

    first, second = asyncio.run(main())
    assert first.usage == Usage(prompt_tokens=50, completion_tokens=3, cached_tokens=0)
    assert second.usage == Usage(prompt_tokens=50, completion_tokens=3, cached_tokens=48)
    assert [delta.usage.completion_tokens for delta in first.deltas] == [1, 2, 3]


def test_several_prompts_keep_their_places(llm: AsyncLLM) -> None:
    prompts = ["one", [5, 6, 7], "three 한국", "one"]
    params = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)

    async def main() -> tuple[list[Answered], list[Answered]]:
        together = await answers_to(llm, prompts, params)
        return together, [await answer_to(llm, prompt, params) for prompt in prompts]

    together, alone = asyncio.run(main())
    assert [answer.token_ids for answer in together] == [answer.token_ids for answer in alone]
    assert together[0].token_ids == together[3].token_ids != together[1].token_ids
    assert [answer.usage.prompt_tokens for answer in together] == [3, 3, 12, 3]


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        ("", "invalid_value"),
        ([], "invalid_value"),
        (7, "invalid_value"),
        (b"bytes", "invalid_value"),
        (None, "invalid_value"),
        ([1, 10**6], "invalid_token_id"),
        ([1, 1.5], "invalid_token_id"),
        ([1] * 600, "context_length_exceeded"),
    ],
)
def test_one_bad_prompt_refuses_all_and_queues_none(llm: AsyncLLM, bad: object, code: str) -> None:
    submitted: list[AddRequest] = []
    llm.client.submit = lambda requests, sink: submitted.extend(requests)  # type: ignore[method-assign]
    with pytest.raises(RequestError) as refusal:
        asyncio.run(answers_to(llm, ["good", bad, "good"], SamplingParams(max_tokens=5)))  # type: ignore[list-item]
    assert (refusal.value.code, refusal.value.param) == (code, "prompt")
    assert submitted == []


def test_leaving_a_stream_frees_its_pages_within_two_steps(llm: AsyncLLM) -> None:
    async def main() -> int:
        stream = await llm.submit(["a", "b"], SamplingParams(max_tokens=500, ignore_eos=True))
        deltas = aiter(stream)
        for _ in range(6):
            await anext(deltas)
        await stream.aclose()
        step = llm.client.latest_stats.step
        await wait_until(lambda: running(llm) == 0)
        return llm.client.latest_stats.step - step

    assert asyncio.run(main()) <= 2
    assert llm.client.latest_stats.pages_held == 0


def test_cancelled_task_aborts_its_request(llm: AsyncLLM) -> None:
    async def main() -> None:
        task = asyncio.create_task(answer_to(llm, "a", SamplingParams(max_tokens=500, ignore_eos=True)))
        await wait_until(lambda: running(llm) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await wait_until(lambda: running(llm) == 0)

    asyncio.run(main())
    assert llm.client.latest_stats.pages_held == 0


def test_event_loop_that_ends_in_the_middle_leaves_nothing_running(llm: AsyncLLM) -> None:
    async def leave() -> None:
        stream = await llm.submit(["a"], SamplingParams(max_tokens=500, ignore_eos=True))
        llm.kept = stream  # type: ignore[attr-defined]  # so that no destructor closes it

    asyncio.run(leave())
    asyncio.run(wait_until(lambda: llm.client.latest_stats.step > 0 and running(llm) == 0))
    assert llm.client.latest_stats.step < 300


def test_event_loops_one_after_the_other_and_two_at_once(llm: AsyncLLM) -> None:
    params = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
    in_turn = [asyncio.run(answer_to(llm, prompt, params)).token_ids for prompt in ("one", "two", "one")]
    at_once: dict[str, list[int]] = {}

    def ask(prompt: str) -> None:
        at_once[prompt] = asyncio.run(answer_to(llm, prompt, params)).token_ids

    threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert at_once == {"one": in_turn[0], "two": in_turn[1]}
    assert in_turn[0] == in_turn[2]


def test_full_queue_is_an_overload_and_leaves_nothing_running(
    open_model: OpenModel, tiny_model: Path
) -> None:
    llm = open_model(tiny_model, max_num_seqs=1, max_num_queued_reqs=2)

    async def main() -> None:
        with pytest.raises(OverloadedError, match="the limit is 2"):
            await llm.submit(["a", "b", "c", "d"], SamplingParams(max_tokens=400, ignore_eos=True))
        await wait_until(lambda: running(llm) == 0)

    asyncio.run(main())


def test_closed_engine_is_told_from_one_that_died(llm: AsyncLLM) -> None:
    async def main() -> None:
        stream = await llm.submit(["a"], SamplingParams(max_tokens=500, ignore_eos=True))
        llm.client.close()
        with pytest.raises(ClosedError, match="closed"):
            await gather(stream)
        with pytest.raises(ClosedError, match="closed"):
            await answer_to(llm, "a")

    asyncio.run(main())


def test_damaged_model_fails_the_request_that_meets_the_damage(
    open_model: OpenModel, tiny_model: Path
) -> None:
    llm = open_model(tiny_model, backend="reference")
    program = llm.client._core._executor._runner._program  # type: ignore[attr-defined]
    program.weights["embed_tokens"][50] = float("nan")
    params = SamplingParams(max_tokens=20, ignore_eos=True, logit_bias={50: -100.0})

    async def main() -> Answered:
        neighbour = asyncio.create_task(answer_to(llm, [1, 2], params))
        with pytest.raises(NonFiniteLogitsError, match="not finite"):
            await answer_to(llm, [1, 50], params)
        return await neighbour

    assert len(asyncio.run(main()).token_ids) == 20


# Seeds


def test_seeded_answer_is_the_same_alone_and_in_a_crowd(llm: AsyncLLM) -> None:
    params = SamplingParams(max_tokens=20, seed=7, ignore_eos=True)
    unseeded = SamplingParams(max_tokens=20, ignore_eos=True)

    async def main() -> list[list[int]]:
        alone = await answer_to(llm, "a prompt", params)
        crowd = [asyncio.create_task(answer_to(llm, f"crowd {i}", unseeded)) for i in range(8)]
        in_crowd = await answer_to(llm, "a prompt", params)
        await asyncio.gather(*crowd)
        other = await answer_to(llm, "a prompt", SamplingParams(max_tokens=20, seed=0, ignore_eos=True))
        return [alone.token_ids, in_crowd.token_ids, other.token_ids]

    alone, in_crowd, other = asyncio.run(main())
    assert alone == in_crowd
    assert other != alone


def test_seed_is_drawn_for_each_request_and_the_engines_own_makes_the_draws_repeatable(
    open_model: OpenModel, tiny_model: Path
) -> None:
    def answers(seed: int | None) -> list[list[int]]:
        llm = open_model(tiny_model, seed=seed)
        params = SamplingParams(max_tokens=20, ignore_eos=True)
        return [answer.token_ids for answer in asyncio.run(answers_to(llm, ["same", "same"], params))]

    assert answers(5) == answers(5)
    assert answers(5) != answers(6)
    assert answers(None) != answers(None)
    first, second = answers(5)
    assert first != second


def test_no_prompts_give_no_answers(llm: AsyncLLM) -> None:
    async def main() -> list[Answered]:
        return await gather(await llm.submit([], SamplingParams()), 0)

    assert asyncio.run(main()) == []
