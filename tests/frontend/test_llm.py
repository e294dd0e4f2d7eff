"""The blocking face: prompts of every shape, settings that do not fit, an engine process of its own."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import legato
from legato.core.config import EngineConfig
from legato.core.errors import ClosedError, ConfigError, ModelError, RequestError
from legato.core.plan import TokenLogprobs
from legato.core.sampling_params import FinishReason, SamplingParams
from legato.engine.assembly import load_engine
from legato.engine.inproc import InprocClient
from legato.frontend.generator import Usage
from legato.frontend.llm import LLM

USER = {"role": "user", "content": "hi"}
GREEDY = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    """Over an engine in a thread."""
    engine = load_engine(EngineConfig(model=str(tiny_model), num_pages=128), lambda *_: None)
    with LLM(tiny_model, client=InprocClient(engine)) as opened:
        yield opened


def test_package_offers_it() -> None:
    assert legato.LLM is LLM
    assert legato.SamplingParams is SamplingParams
    assert legato.TokenLogprobs is TokenLogprobs
    with pytest.raises(AttributeError, match="no attribute 'LLMs'"):
        legato.LLMs  # noqa: B018


def test_prompt_is_a_text_or_ids_or_a_list_of_either(llm: LLM) -> None:
    text, ids = llm.generate("abc", GREEDY), llm.generate([97, 98, 99], GREEDY)
    assert text == ids
    assert llm.generate((97, 98, 99), GREEDY) == ids
    assert llm.generate(["abc"], GREEDY) == text
    assert llm.generate([[97, 98, 99], "abc", (97, 98, 99)], GREEDY) == text * 3
    (completion,) = text
    assert (len(completion.token_ids), completion.finish_reason) == (6, FinishReason.LENGTH)
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (3, 6)


def test_no_prompts_give_no_answers(llm: LLM) -> None:
    assert llm.generate([], GREEDY) == []
    assert llm.generate((), GREEDY) == []


@pytest.mark.parametrize("prompts", ["", [""], [[]], ["good", ""]])
def test_empty_prompt_is_refused(llm: LLM, prompts: list[str]) -> None:
    with pytest.raises(RequestError, match="the prompt is empty"):
        llm.generate(prompts, GREEDY)


def test_answers_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = [f"prompt {n}" for n in range(70)]
    together = llm.generate(prompts, GREEDY)
    assert [each.token_ids for each in together[::10]] == [
        llm.generate(prompt, GREEDY)[0].token_ids for prompt in prompts[::10]
    ]
    assert len({tuple(each.token_ids) for each in together}) > 35


def test_without_params_sixteen_tokens_are_made(llm: LLM) -> None:
    completion = llm.generate("abc")[0]
    assert completion.usage.completion_tokens <= 16
    assert completion.finish_reason in (FinishReason.LENGTH, FinishReason.STOP)


def test_chat_goes_on_to_the_end_of_the_context(llm: LLM) -> None:
    completion = llm.chat([USER])
    prompt_len = len("<user>hi\n<assistant>")
    assert completion.usage.prompt_tokens == prompt_len
    if completion.finish_reason is FinishReason.LENGTH:
        assert completion.usage.completion_tokens == 512 - prompt_len
    assert llm.chat([USER], GREEDY) == llm.generate("<user>hi\n<assistant>", GREEDY)[0]


@pytest.mark.parametrize("prompts", [None, 5, {"prompt": "a"}, b"abc", iter(["a"])])
def test_what_is_no_prompt_is_refused(llm: LLM, prompts: Any) -> None:
    with pytest.raises(RequestError, match="a text, a list of token ids or a list of such") as refusal:
        llm.generate(prompts, GREEDY)
    assert refusal.value.param == "prompts"


@pytest.mark.parametrize("params", [{"max_tokens": 3}, [GREEDY, GREEDY], "greedy", 0])
def test_what_is_no_sampling_params_is_refused(llm: LLM, params: Any) -> None:
    for ask in (lambda: llm.generate("a", params), lambda: llm.chat([USER], params)):
        with pytest.raises(RequestError, match=r"such as SamplingParams\(max_tokens=20\)") as refusal:
            ask()
        assert refusal.value.param == "params"


def test_argument_of_another_name_is_refused_with_the_right_one(llm: LLM) -> None:
    with pytest.raises(TypeError, match=r"generate\(\) has no argument 'sampling_params'; .*params="):
        llm.generate("a", sampling_params=GREEDY)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"chat\(\) has no argument 'temperature'; .*params="):
        llm.chat([USER], temperature=0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ("hi", "messages"),
        (USER, "messages"),
        ([], "messages"),
        ([[USER], [USER]], "messages.0"),
        ([{"content": "hi"}], "messages.0.role"),
        ([{"role": "user", "content": "a" * 600}], "messages"),
    ],
)
def test_fault_of_a_conversation_is_named(llm: LLM, messages: Any, param: str) -> None:
    with pytest.raises(RequestError) as refusal:
        llm.chat(messages, GREEDY)
    assert refusal.value.param == param


def test_closed_llm_says_so(tiny_model: Path) -> None:
    engine = load_engine(EngineConfig(model=str(tiny_model), num_pages=16), lambda *_: None)
    llm = LLM(tiny_model, client=InprocClient(engine))
    llm.close()
    for ask in (lambda: llm.generate("a"), lambda: llm.chat([USER])):
        with pytest.raises(ClosedError, match="this LLM is closed"):
            ask()


def test_it_works_where_an_event_loop_runs_already(llm: LLM) -> None:
    async def notebook_cell() -> list[legato.Completion]:
        return llm.generate("abc", GREEDY)

    assert asyncio.run(notebook_cell()) == llm.generate("abc", GREEDY)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"unknown_setting": 1}, "there is no setting 'unknown_setting'"),
        ({"max_num_seq": 4}, "did you mean max_num_seqs"),
        ({"max_num_seqs": "4"}, "max_num_seqs"),
        ({"batching": "magic"}, "choose one of continuous"),
        ({"trust_remote_code": True}, "trust.remote.code is refused"),
    ],
)
def test_setting_that_does_not_fit_is_refused(
    tiny_model: Path, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        LLM(tiny_model, **settings)


def test_model_that_is_not_there_is_named() -> None:
    with pytest.raises(ModelError, match="no-such-model"):
        LLM("no-such-model")


def test_engine_that_cannot_load_the_model_says_why(tiny_model: Path) -> None:
    with pytest.raises(ModelError, match="--max-model-len 513: the model was made for 1 to 512 tokens"):
        LLM(tiny_model, max_model_len=513)


def test_engine_in_a_process_of_its_own_takes_any_number_of_prompts(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEGATO_BLOCK_SIZE", "8")
    params = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)
    with LLM(str(tiny_model), kv_cache_memory_bytes=2**20) as llm:
        assert llm.config.block_size == 8
        completions = llm.generate([[1 + n % 250] for n in range(2200)], params)
        again = llm.generate([[8] * 20], params)[0]
        assert again.usage == Usage(prompt_tokens=20, completion_tokens=1)
        assert llm.generate([[8] * 20], params)[0].usage.cached_tokens == 16
    assert len(completions) == 2200
    assert [each.token_ids for each in completions[:250]] == [each.token_ids for each in completions[250:500]]


def test_logprobs_are_those_of_the_tokens_and_of_the_prompt_but_its_first(llm: LLM) -> None:
    params = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True, logprobs=2, prompt_logprobs=1)
    (completion,) = llm.generate("abcd", params)
    assert [each.top_ids[0] for each in completion.logprobs] == completion.token_ids
    assert [len(each.top_ids) for each in completion.logprobs] == [2] * 6
    assert [len(each.top_ids) for each in completion.prompt_logprobs] == [1] * 3
    (silent,) = llm.generate("abcd", GREEDY)
    assert (silent.token_ids, silent.logprobs, silent.prompt_logprobs) == (completion.token_ids, [], [])


def test_without_tokens_the_prompt_is_scored_up_to_the_whole_context(llm: LLM) -> None:
    params = SamplingParams(max_tokens=0, prompt_logprobs=0)
    short, whole = llm.generate(["abcd", [97] * 512], params)
    assert (short.text, short.token_ids, short.finish_reason) == ("", [], FinishReason.LENGTH)
    assert short.usage == Usage(prompt_tokens=4, completion_tokens=0)
    assert (len(short.prompt_logprobs), len(whole.prompt_logprobs)) == (3, 511)
    assert all(each.logprob < 0 for each in whole.prompt_logprobs)
