"""Chat messages to the text of a prompt, by the template that comes with a model."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jinja2.exceptions import TemplateError, TemplateSyntaxError
from jinja2.meta import find_undeclared_variables

from legato.core.errors import ModelError, RequestError, brief
from legato.modelfiles.gguf_header import read_gguf_header
from legato.modelfiles.hf_config import read_json_if_present
from legato.tokenization.special_tokens import special_tokens_of_folder, special_tokens_of_gguf
from legato.tokenization.template_sandbox import TemplateSandbox, render_bounded

logger = logging.getLogger(__name__)

DEFAULT, TOOL_USE = "default", "tool_use"  # names of a model's templates
END_MARK = "\ue000end\ue000"  # private-use characters: put behind a message that is to be continued


class ChatTemplate:
    """A compiled template. Safe to use from several threads.

    special_tokens  role -> text; the template sees them as bos_token, eos_token, …
    knows_tools     it describes tools to the model
    knows_calls     it renders calls of tools and their results
    tool_source     another template, for the requests that bring tools
    Raises ModelError when a source is no Jinja template.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        tool_source: str | None = None,
    ) -> None:
        self.source = source
        self._clock = clock
        self._special_tokens = {f"{role}_token": text for role, text in (special_tokens or {}).items()}
        try:
            sandbox = TemplateSandbox()
            self._template = self._tool_template = sandbox.from_string(source)
            if tool_source is not None:
                self._tool_template = sandbox.from_string(tool_source)
            variables = find_undeclared_variables(sandbox.parse(tool_source or source))
        except (
            TemplateSyntaxError,
            SyntaxError,
            RecursionError,
            MemoryError,
        ) as error:  # Python's, of what it becomes
            raise ModelError(
                f"the chat template cannot be read: {brief(error)}. Give another by --chat-template FILE"
            ) from error
        self.knows_tools = "tools" in variables
        self.knows_calls = "tool_calls" in (tool_source or source)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt's text.

        messages  as plain_messages gives them
        continue_final_message  end with the text of the last message, which must be the assistant's:
                                 without what the template puts after it
        tools     in OpenAI's shape; None = there are none
        kwargs    further variables for the template
        Raises RequestError with the template's own reason when it refuses the messages.
        """
        variables = {"documents": None} | self._special_tokens | kwargs
        variables["tools"] = tools
        variables["messages"] = [dict(message) for message in messages]
        variables["add_generation_prompt"] = add_generation_prompt
        if not continue_final_message:
            return self._generate(variables)
        if add_generation_prompt or messages[-1]["role"] != "assistant":
            raise RequestError(
                "continue_final_message needs a last message of the assistant's to go on with,"
                " and add_generation_prompt: false",
                param="continue_final_message",
            )
        last = variables["messages"][-1]
        last["content"] = (last.get("content") or "") + END_MARK
        text, mark, _ = self._generate(variables).rpartition(END_MARK)
        if not mark:
            raise RequestError(
                "the chat template does not show the last message as it stands, so it cannot be continued",
                param="continue_final_message",
            )
        return text

    def _generate(self, variables: Mapping[str, Any]) -> str:
        try:
            template = self._tool_template if variables["tools"] else self._template
            return render_bounded(lambda: template.generate(variables), self._clock)
        except TemplateError as error:
            raise RequestError(
                f"the chat template refuses: {brief(error.message)}", param="messages"
            ) from error
        except Exception as error:  # whatever a template can run into: its messages lack what it expects
            raise RequestError(
                f"the chat template fails on these messages: {type(error).__name__}: {brief(error)}",
                param="messages",
            ) from error


def load_chat_template(path: Path, override: Path | None = None) -> ChatTemplate | None:
    """The chat template of a model directory or .gguf file; None when it has none.

    override  a file with the template's source, to use instead
    Raises ModelError when it cannot be read.
    """
    own_sources: Callable[[], dict[str, str]]  # called unless there is another: they may be what is broken
    if path.is_dir():
        special_tokens, own_sources = special_tokens_of_folder(path), partial(_sources_in_folder, path)
    else:
        metadata = read_gguf_header(path).metadata
        special_tokens, own_sources = special_tokens_of_gguf(metadata), partial(_sources_in_gguf, metadata)
    sources = own_sources() if override is None else {DEFAULT: _read_text(override)}
    if sources and DEFAULT not in sources:
        logger.warning("%s: no chat template is named default, only %s", path, ", ".join(sources))
    if DEFAULT not in sources:
        return None
    try:
        return ChatTemplate(sources[DEFAULT], special_tokens, tool_source=sources.get(TOOL_USE))
    except ModelError as error:
        raise ModelError(f"{override or path}: {error}") from error


def _sources_in_folder(folder: Path) -> dict[str, str]:
    """By name."""
    sources: dict[str, str] = {}
    if (folder / "chat_template.jinja").is_file():
        sources[DEFAULT] = _read_text(folder / "chat_template.jinja")
    else:
        for file in (folder / "tokenizer_config.json", folder / "chat_template.json"):
            declared = read_json_if_present(file).get("chat_template")
            if declared is not None:
                sources = _declared(declared, file)
                break
    more = {file.stem: _read_text(file) for file in sorted(folder.glob("additional_chat_templates/*.jinja"))}
    return sources | more


def _declared(templates: Any, file: Path) -> dict[str, str]:
    """By name: one text, or a list of named ones. Raises ModelError for anything else."""
    if isinstance(templates, str):
        return {DEFAULT: templates}
    if isinstance(templates, list) and all(isinstance(item, dict) for item in templates):
        pairs = [(item.get("name"), item.get("template")) for item in templates]
    else:
        pairs = list(templates.items()) if isinstance(templates, dict) else [(None, None)]
    if all(isinstance(part, str) for pair in pairs for part in pair):
        return dict(pairs)
    raise ModelError(
        f"{file}: chat_template is neither a text nor a list of texts with names: {brief(repr(templates))}."
        " Give another by --chat-template FILE"
    )


def _sources_in_gguf(metadata: Mapping[str, Any]) -> dict[str, str]:
    keys = {DEFAULT: "tokenizer.chat_template", TOOL_USE: f"tokenizer.chat_template.{TOOL_USE}"}
    values = {name: metadata.get(key) for name, key in keys.items()}
    return {name: value for name, value in values.items() if isinstance(value, str)}


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"cannot read the chat template {file}: {error}") from error
