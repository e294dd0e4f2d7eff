"""From texts and chats to ids, and back; models that lack a tokenizer or a template."""

import asyncio
import json
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest

from legato.core.errors import NotReadyError, OverloadedError, RequestError
from legato.core.sampling_params import SamplingParams
from legato.frontend.async_llm import AsyncLLM
from legato.frontend.generator import CONTEXT
from legato.ipc.messages import Ready
from tests.frontend.answers import Answered, answer_to, answers_to
from tests.frontend.conftest import OpenModel
from tests.tiny_model import MAX_MODEL_LEN, write_tiny_model


def test_only_the_last_tokens_of_a_prompt_are_kept_when_asked_for(llm: AsyncLLM) -> None:
    params = SamplingParams(max_tokens=5, temperature=0, ignore_eos=True)

    async def main() -> list[Answered]:
        return [
            await answer_to(llm, "long " * 200, params, truncate_prompt_tokens=4),
            await answer_to(llm, "ong ", params),
            await answer_to(llm, "ong ", params, truncate_prompt_tokens=400),
        ]

    first, *others = asyncio.run(main())
    assert first.usage.prompt_tokens == 4
    assert [answer.token_ids for answer in others] == [first.token_ids] * 2


def test_prompt_is_cut_to_the_room_that_max_tokens_leaves(llm: AsyncLLM) -> None:
    answer = asyncio.run(
        answer_to(llm, "long " * 200, SamplingParams(max_tokens=12), truncate_prompt_tokens=CONTEXT)
    )
    assert answer.usage.prompt_tokens == MAX_MODEL_LEN - 12


@pytest.mark.parametrize("length", [0, -2])
def test_prompt_cannot_be_cut_to_nothing(llm: AsyncLLM, length: int) -> None:
    with pytest.raises(RequestError, match="at least 1") as refusal:
        asyncio.run(answer_to(llm, "abc", truncate_prompt_tokens=length))
    assert refusal.value.param == "truncate_prompt_tokens"


class Spy:
    """In place of Tokenizer.encode: on which threads was it called, for how long a text?"""

    def __init__(self, llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
        assert llm.tokenizer is not None
        self._encode = llm.tokenizer.encode
        self.lengths: list[int] = []
        self.threads: set[int] = set()
        monkeypatch.setattr(llm.tokenizer, "encode", self)

    def __call__(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self.lengths.append(len(text))
        self.threads.add(threading.get_ident())
        return self._encode(text, add_special_tokens)


def test_text_that_is_far_too_long_is_refused_before_it_is_tokenized(
    llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = Spy(llm, monkeypatch)
    with pytest.raises(RequestError, match="has 4097 characters; a context of 512 tokens") as refusal:
        asyncio.run(answers_to(llm, ["short", "a" * 4097], SamplingParams()))
    assert (refusal.value.code, refusal.value.param) == ("context_length_exceeded", "prompt")
    with pytest.raises(RequestError, match="4097 characters"):
        asyncio.run(llm.tokenize("a" * 4097))
    assert spy.lengths == []


@pytest.mark.parametrize("written", [True, False])
def test_chat_never_begins_with_bos_twice(open_model: OpenModel, tmp_path: Path, written: bool) -> None:
    template = ("{{ bos_token }}" if written else "") + "{{ messages[0].content }}"
    folder = write_tiny_model(tmp_path, chat_template=template)
    settings = {"chat_template": template, "bos_token": "<|end|>", "add_bos_token": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    llm = open_model(folder)
    assert llm.tokenizer is not None
    bos = llm.tokenizer.bos_id
    chat = [{"role": "user", "content": "hi"}]

    async def main() -> list[list[int]]:
        return [await llm.chat_prompt(chat, add_special_tokens=added) for added in (False, True)]

    plain, added = asyncio.run(main())
    assert plain == [bos] * written + [*b"hi"]
    assert added == [bos, *b"hi"]


@pytest.mark.parametrize("num_ids", [4097, 10**6])
def test_ids_that_are_far_too_many_are_refused_before_one_is_looked_at(llm: AsyncLLM, num_ids: int) -> None:
    ids = [object()] * num_ids
    with pytest.raises(RequestError, match=f"has {num_ids} ids; a context of 512 tokens") as refusal:
        asyncio.run(answers_to(llm, ["short", ids], SamplingParams()))  # type: ignore[list-item]
    assert (refusal.value.code, refusal.value.param) == ("context_length_exceeded", "prompt")
    with pytest.raises(RequestError, match=f"{num_ids} ids") as refusal:
        asyncio.run(llm.detokenize(ids))  # type: ignore[arg-type]
    assert refusal.value.param == "tokens"


def test_conversions_have_threads_of_their_own_and_places_that_end(
    llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    may_go = threading.Event()

    def render(*_: object, **__: object) -> str:
        threads.append(threading.current_thread().name)
        may_go.wait(20)
        return "text"

    monkeypatch.setattr("legato.frontend.async_llm.MAX_CONVERSIONS", 3)
    crowded = AsyncLLM(llm.client, llm.tokenizer, llm._chat_template)
    monkeypatch.setattr(llm._chat_template, "render", render)
    message = {"role": "user", "content": "hi"}

    async def main() -> None:
        waiting = [asyncio.create_task(crowded.chat_prompt([message])) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="3 long prompts"):
            await crowded.chat_prompt([message])
        may_go.set()
        assert len(await asyncio.gather(*waiting)) == 3
        await crowded.chat_prompt([message])  # there is a place again

    asyncio.run(main())
    assert {name.rpartition("_")[0] for name in threads} == {"text-converter"}


def test_waiting_for_the_engine_takes_no_thread_and_leaves_nothing_behind(
    llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, llm.client.ready = llm.client.ready, None  # type: ignore[misc]
    engine: Future[Ready] = Future()
    monkeypatch.setattr(llm.client, "when_ready", lambda: engine)

    async def main() -> None:
        before = threading.active_count()
        waiting = [asyncio.create_task(llm.wait_ready()) for _ in range(20)]
        await asyncio.sleep(0)
        assert threading.active_count() == before
        engine.set_running_or_notify_cancel()
        engine.set_result(ready)
        assert await asyncio.gather(*waiting) == [ready] * 20

    asyncio.run(main())
    llm.client.ready = ready  # type: ignore[misc]


def test_engine_that_is_not_loaded_in_time_is_not_ready(
    llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legato.frontend.async_llm.START_TIMEOUT_S", 0)
    ready, llm.client.ready = llm.client.ready, None  # type: ignore[misc]
    engine: Future[Ready] = Future()
    monkeypatch.setattr(llm.client, "when_ready", lambda: engine)
    with pytest.raises(NotReadyError):
        asyncio.run(llm.wait_ready())
    assert engine.cancelled()
    llm.client.ready = ready  # type: ignore[misc]


def test_much_text_is_tokenized_off_the_event_loop(llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legato.frontend.async_llm.LONG_TEXT_CHARS", 100)
    spy = Spy(llm, monkeypatch)
    assert len(asyncio.run(llm.tokenize("a" * 100))) == 100
    assert spy.threads == {threading.get_ident()}
    spy.threads.clear()
    assert len(asyncio.run(llm.tokenize("a" * 101))) == 101
    asyncio.run(answers_to(llm, ["a" * 60, "b" * 41], SamplingParams(max_tokens=1)))
    assert spy.lengths == [100, 101, 60, 41]
    assert threading.get_ident() not in spy.threads


def test_tokenize_and_detokenize(llm: AsyncLLM) -> None:
    async def main() -> tuple[list[int], str]:
        token_ids = await llm.tokenize("한국 the end<|end|>")
        return token_ids, await llm.detokenize(token_ids)

    token_ids, text = asyncio.run(main())
    assert text == "한국 the end<|end|>"
    assert len(token_ids) > 5


def test_many_ids_are_made_text_off_the_event_loop(llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    assert llm.tokenizer is not None
    decode, threads = llm.tokenizer.decode, []

    def spy(token_ids: list[int], skip_special_tokens: bool = True) -> str:
        threads.append(threading.get_ident())
        return decode(token_ids, skip_special_tokens)

    monkeypatch.setattr("legato.frontend.async_llm.LONG_TEXT_CHARS", 100)
    monkeypatch.setattr(llm.tokenizer, "decode", spy)
    assert asyncio.run(llm.detokenize([97] * 100)) == "a" * 100
    assert asyncio.run(llm.detokenize([97] * 101)) == "a" * 101
    assert threads[0] == threading.get_ident() != threads[1]


@pytest.mark.parametrize("bad", [-1, 275])
def test_id_that_is_in_no_vocabulary_has_no_text(llm: AsyncLLM, bad: int) -> None:
    with pytest.raises(RequestError, match=f"token id {bad} is not in the vocabulary of") as refusal:
        asyncio.run(llm.detokenize([1, bad]))
    assert refusal.value.param == "tokens"


def test_chat_prompt_is_the_templates_text_as_ids(llm: AsyncLLM) -> None:
    messages = [{"role": "user", "content": "안녕"}]

    async def main() -> list[str]:
        prompts = [
            await llm.chat_prompt(messages),
            await llm.chat_prompt(messages, add_generation_prompt=False),
        ]
        return [await llm.detokenize(prompt) for prompt in prompts]

    assert asyncio.run(main()) == ["<user>안녕\n<assistant>", "<user>안녕\n"]


def test_chat_that_is_far_too_long_names_the_messages(llm: AsyncLLM) -> None:
    with pytest.raises(RequestError, match="characters; a context of 512 tokens") as refusal:
        asyncio.run(llm.chat_prompt([{"role": "user", "content": "a" * 5000}]))
    assert (refusal.value.code, refusal.value.param) == ("context_length_exceeded", "messages")


def test_chat_checks_its_messages(llm: AsyncLLM) -> None:
    with pytest.raises(RequestError, match="one of system, developer") as refusal:
        asyncio.run(llm.chat_prompt([{"role": "king", "content": "hi"}]))
    assert refusal.value.param == "messages.0.role"


def test_chat_without_a_template_names_the_remedy(open_model: OpenModel, tmp_path: Path) -> None:
    llm = open_model(write_tiny_model(tmp_path, chat_template=None))
    with pytest.raises(RequestError, match=r"^this model has no chat template: .*/v1/completions") as refusal:
        asyncio.run(llm.chat_prompt([{"role": "user", "content": "hi"}]))
    assert refusal.value.param == "messages"
    assert not llm.can_chat


@pytest.fixture
def bare(open_model: OpenModel, tmp_path: Path) -> AsyncLLM:
    """A model without a tokenizer."""
    return open_model(write_tiny_model(tmp_path, has_tokenizer=False, chat_template=None))


def test_model_without_a_tokenizer_takes_ids_and_gives_ids(bare: AsyncLLM) -> None:
    params = SamplingParams(max_tokens=5, temperature=0, ignore_eos=True, stop_token_ids=())
    answer = asyncio.run(answer_to(bare, [1, 2, 3], params))
    assert (answer.text, len(answer.token_ids), answer.usage.prompt_tokens) == ("", 5, 3)
    assert {delta.text for delta in answer.deltas} == {""}


def test_model_without_a_tokenizer_refuses_texts_by_name(bare: AsyncLLM) -> None:
    async def refusal_of(coroutine: object) -> tuple[str | None, str]:
        with pytest.raises(RequestError) as refusal:
            await coroutine  # type: ignore[misc]
        return refusal.value.param, str(refusal.value)

    async def main() -> list[tuple[str | None, str]]:
        return [
            await refusal_of(answer_to(bare, "text")),
            await refusal_of(answer_to(bare, [1], SamplingParams(stop=("END",)))),
            await refusal_of(bare.tokenize("text")),
            await refusal_of(bare.detokenize([1])),
            await refusal_of(bare.chat_prompt([{"role": "user", "content": "hi"}])),
        ]

    refusals = asyncio.run(main())
    assert [param for param, _ in refusals] == ["prompt", "stop", "prompt", "tokens", "messages"]
    assert "no tokenizer, and so no chat" in refusals[4][1]
    assert "give token ids instead of text" in refusals[0][1]
    assert "use stop_token_ids" in refusals[1][1]
