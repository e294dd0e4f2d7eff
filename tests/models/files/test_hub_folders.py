"""GPT-2 and OPT as they lie on the hub, older files that they are, served from prompt to answer."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from legato.core.config import EngineConfig
from legato.core.errors import RequestError
from legato.core.sampling_params import SamplingParams
from legato.engine.assembly import load_engine
from legato.engine.inproc import InprocClient
from legato.frontend.llm import LLM
from legato.tokenization.tokenizer import load_tokenizer
from tests.model_builders import write_json
from tests.models.families import FAMILIES, LAYERS, make_with
from tests.models.test_hf_logprobs import hf_logprobs
from tests.tokenization.formats.test_vocab_files import write_folder
from tests.tokenization.hard_texts import byte_level_parts

pytestmark = pytest.mark.oracle

PROMPTS = ["The quick brown fox", "한국어\r\n  1234"]
NUM_PADDED = 7  # rows of the vocabulary that no token has
NUM_OUT = 12


def write_gpt2(folder: Path, settings: dict[str, object]) -> PreTrainedModel:
    """Names without a prefix, and the masks that older files hold."""
    model = make_with("GPT2", FAMILIES["gpt2"][1] | settings)
    state = {name.removeprefix("transformer."): each for name, each in model.transformer.state_dict().items()}
    for layer in range(LAYERS):
        state[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 160, 160).tril()
        state[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(state, folder / "model.safetensors")
    return model


def write_opt(folder: Path, settings: dict[str, object]) -> PreTrainedModel:
    """Its 350M kind, in a pickled file."""
    model = make_with("OPT", FAMILIES["opt, post-norm and projections"][1] | settings)
    torch.save(model.model.state_dict(), folder / "pytorch_model.bin")
    return model


@pytest.mark.parametrize("write", [write_gpt2, write_opt])
def test_folder_is_served(write, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:  # type: ignore[no-untyped-def]
    write_folder(tmp_path, {})
    vocab_size = len(byte_level_parts()[0]) + 4 + NUM_PADDED
    model = write(tmp_path, {"vocab_size": vocab_size, "bos_token_id": 2, "eos_token_id": 2})
    config = model.config.to_dict() | {"architectures": [type(model).__name__]}
    write_json(tmp_path / "config.json", config)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer is not None
    params = SamplingParams(max_tokens=NUM_OUT, temperature=0, ignore_eos=True, logprobs=1, prompt_logprobs=1)
    engine = load_engine(
        EngineConfig(model=str(tmp_path), dtype="float32", num_pages=64, load_format="auto"), lambda *_: None
    )
    with LLM(tmp_path, client=InprocClient(engine)) as llm:
        for prompt, answer in zip(PROMPTS, llm.generate(PROMPTS, params), strict=True):
            ids = tokenizer.encode(prompt)
            assert (ids[0] == tokenizer.bos_id) == (write is write_opt)
            rows = hf_logprobs(model, ids + answer.token_ids)[:-1]
            assert answer.token_ids == rows[len(ids) - 1 :].argmax(axis=-1).tolist()
            known = [each.logprob for each in answer.prompt_logprobs + answer.logprobs]
            targets = (ids + answer.token_ids)[1:]
            assert known == pytest.approx([row[i] for row, i in zip(rows, targets, strict=True)], abs=1e-4)
            assert answer.text == tokenizer.decode(answer.token_ids)
        with pytest.raises(RequestError, match="no chat template: complete a prompt instead"):
            llm.chat([{"role": "user", "content": "Hello"}])
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
