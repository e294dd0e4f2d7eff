"""What a model brings with it: ends of sequence, defaults, templates; and rounds that change no row."""

from pathlib import Path
from typing import Any

import pytest

from tests.api.contract.live import END_ID, Live, serve
from tests.api.openai_calls import USER
from tests.model_builders import write_json
from tests.tiny_model import write_tiny_model

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose generation config names a second end of sequence, and settings of sampling."""
    folder = write_tiny_model(tmp_path_factory.mktemp("models") / "tuned", chat_template=None)
    write_json(
        folder / "generation_config.json",
        {"eos_token_id": [END_ID, 65], "temperature": 0.01, "top_k": 1, "do_sample": True},
    )
    return folder


@pytest.mark.parametrize("end_id", [END_ID, 65])
def test_every_end_of_sequence_ends_an_answer_and_none_is_shown(folder: Path, end_id: int) -> None:
    forced: dict[str, Any] = {"logit_bias": {str(end_id): 100}, "max_tokens": 5}
    with serve(folder) as live:
        answer = live.plain(COMPLETIONS, **forced)
        choice = answer["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == ("", "stop")
        assert answer["usage"]["completion_tokens"] == 1
        goes_on = live.plain(COMPLETIONS, **forced, ignore_eos=True, skip_special_tokens=False)
        assert goes_on["usage"]["completion_tokens"] == 5
        assert goes_on["choices"][0]["text"] == ("A" if end_id == 65 else "<|end|>") * 5


def test_the_models_settings_hold_until_the_request_says_otherwise(folder: Path, live: Live) -> None:
    fields = {"max_tokens": 12, "ignore_eos": True}
    greedy = live.text(temperature=0, **fields)  # the same weights
    sampled = live.text(temperature=1, top_k=0, seed=5, **fields)
    assert greedy != sampled
    with serve(folder) as tuned, serve(folder, generation_config="none") as plain:
        assert tuned.text(seed=5, **fields) == greedy
        assert tuned.text(seed=5, temperature=1, top_k=0, **fields) == sampled
        assert plain.text(seed=5, **fields) == sampled


def test_chat_without_a_template_says_how_to_give_one_and_completions_work(
    folder: Path, tmp_path: Path
) -> None:
    with serve(folder) as live:
        error = live.error(CHAT, messages=[USER])
        assert error["param"] == "messages"
        assert "/v1/completions" in error["message"]
        assert "chat_template" in error["message"]
        assert live.plain(COMPLETIONS, max_tokens=1)["usage"]["completion_tokens"] == 1
    given = tmp_path / "template.jinja"
    given.write_text("{{ messages[0]['content'] }}")
    with serve(folder, chat_template=str(given)) as live:
        assert live.plain(CHAT, max_tokens=1)["usage"]["prompt_tokens"] == 2


@pytest.mark.parametrize("declared", ["file", "list"])
def test_templates_are_read_from_a_file_and_from_a_list(tmp_path: Path, declared: str) -> None:
    folder = write_tiny_model(tmp_path / "model", chat_template=None)
    template = "{{ messages[0]['content'] }}!"
    if declared == "file":
        (folder / "chat_template.jinja").write_text(template)
    else:
        named = [{"name": "default", "template": template}, {"name": "tool_use", "template": "x"}]
        write_json(folder / "tokenizer_config.json", {"chat_template": named})
    with serve(folder) as live:
        assert live.plain(CHAT, max_tokens=1)["usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize("batching", ["static", "continuous"])
def test_no_row_of_a_batch_depends_on_the_padding_of_others(tiny_model: Path, batching: str) -> None:
    prompts = ["abc", "seventeen letters", "x" * 60]
    with serve(tiny_model, batching=batching) as live:
        together = live.http.post("/generate", json={"prompts": prompts}).json()["generated_texts"]
        alone = [live.http.post("/basic_generate", json={"prompt": prompt}).json() for prompt in prompts]
    assert together == [each["generated_text"] for each in alone]
