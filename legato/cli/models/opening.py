"""What a model is given for its first words: the plainest sign that its files belong together."""

from dataclasses import dataclass
from pathlib import Path

from legato.core.config import EngineConfig
from legato.tokenization.chat_template import load_chat_template
from legato.tokenization.tokenizer import Tokenizer

QUESTION = "What is the capital of France?"
BEGINNING = "The capital of France is"


@dataclass(frozen=True, slots=True)
class Opening:
    """A text, and its tokens as the model reads them."""

    text: str
    token_ids: list[int]


def make_opening(config: EngineConfig, tokenizer: Tokenizer) -> Opening:
    """A question in the model's chat template; the beginning of a sentence where it has none."""
    override = None if config.chat_template is None else Path(config.chat_template).expanduser()
    template = load_chat_template(Path(config.model), override)
    if template is None:
        return Opening(BEGINNING, tokenizer.encode(BEGINNING))
    token_ids = tokenizer.encode(template.render([{"role": "user", "content": QUESTION}]))
    begins_twice = token_ids[:2] == [tokenizer.bos_id] * 2  # most templates write bos themselves
    return Opening(QUESTION, token_ids[1:] if begins_twice else token_ids)
