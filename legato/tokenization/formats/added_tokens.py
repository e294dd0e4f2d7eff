"""The special and added tokens that a folder's settings list beside its vocabulary."""

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from legato.core.errors import ModelError, brief
from legato.modelfiles.hf_config import read_json_if_present, table_of, token_id_of, token_text
from legato.modelfiles.model_config import MAX_SIZE
from legato.tokenization.special_tokens import special_tokens_of_folder

FLAGS = ("special", "lstrip", "rstrip", "single_word", "normalized")


def add_listed_tokens(tokenizer: Tokenizer, folder: Path) -> dict[str, str]:
    """Have the tokens that are no plain text found whole, wherever they stand.

    Returns the special ones by role, e.g. {"bos": "</s>"}; where the tokenizer's own settings leave one out
    it is the model's, by the id in config.json.
    Raises ModelError when a token cannot have the id that is listed for it.
    """
    _add_by_id(tokenizer, folder)
    special = special_tokens_of_folder(folder)
    config = read_json_if_present(folder / "config.json")
    for role in ("bos", "eos", "pad"):
        token_id = config.get(f"{role}_token_id")
        text = None
        if type(token_id) is int and 0 <= token_id < MAX_SIZE:  # beyond 32 bits the library does not look
            text = tokenizer.id_to_token(token_id)
        if role not in special and text is not None:
            special[role] = text
    more = read_json_if_present(folder / "tokenizer_config.json").get("additional_special_tokens")
    texts = [*special.values(), *map(token_text, more if isinstance(more, list) else [])]
    known = [text for text in texts if text is not None and tokenizer.token_to_id(text) is not None]
    listed = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in known if text not in listed]
    )
    return special


def _add_by_id(tokenizer: Tokenizer, folder: Path) -> None:
    tokens: dict[int, AddedToken] = {}
    for text, token_id in read_json_if_present(folder / "added_tokens.json").items():
        tokens[token_id_of(token_id, folder / "added_tokens.json")] = AddedToken(text, normalized=False)
    file = folder / "tokenizer_config.json"
    listed = table_of(read_json_if_present(file), "added_tokens_decoder", file)
    for token_id, entry in listed.items():
        tokens[token_id_of(token_id, file)] = _added_token(entry, file)
    for token_id in sorted(tokens):  # a new one gets the next id
        token = tokens[token_id]
        tokenizer.add_special_tokens([token]) if token.special else tokenizer.add_tokens([token])
        if tokenizer.token_to_id(token.content) != token_id:
            text = brief(repr(token.content))
            raise ModelError(f"{folder}: the added token {text} cannot have the id {token_id}")


def _added_token(entry: Any, file: Path) -> AddedToken:
    text = token_text(entry)
    if text is None or not isinstance(entry, dict):
        shown = brief(repr(entry))
        raise ModelError(f"{file}: added_tokens_decoder holds {shown}, which is no object with a content")
    return AddedToken(text, **{flag: entry.get(flag) is True for flag in FLAGS})
