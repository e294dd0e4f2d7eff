"""From a config to an AsyncLLM whose engine is on its way."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from legato.core.config import EngineConfig
from legato.core.errors import ConfigError
from legato.ipc.client import ProcessClient
from legato.ipc.engine_client import EngineClient
from legato.modelfiles.catalog import Report, resolve
from legato.modelfiles.model_config import read_model_config
from legato.modelfiles.tokenizer_file import tokenizer_file
from legato.modelfiles.weight_files import check_load_format

if TYPE_CHECKING:
    from legato.frontend.async_llm import AsyncLLM

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model on its way to being served.

    path            its files: a directory or a .gguf file
    default_params  sampling settings that the model brings, for the fields that a request leaves out
    """

    llm: "AsyncLLM"
    path: Path
    default_params: Mapping[str, Any]


def open_llm(
    config: EngineConfig, client: EngineClient | None = None, report: Report = logger.info
) -> OpenedModel:
    """Find the model's files, downloading them if need be; start the engine; load the tokenizer meanwhile.

    report  called with plain lines about a download
    Blocks for the download; not for the engine: AsyncLLM.wait_ready does. Raises ModelError or ConfigError.
    """
    if config.trust_remote_code:
        raise ConfigError("--trust-remote-code is refused: legato never runs code that comes with a model")
    files = resolve(config.model, revision=config.revision, report=report)
    check_load_format(config.load_format, files.path)
    read_model_config(files.path)  # what can be told from the model's header starts no engine in vain
    if client is None:
        client = ProcessClient(replace(config, model=str(files.path)))
    client.start()
    since = time.perf_counter()
    try:
        # here, so that the engine is on its way while they are imported
        from legato.frontend.async_llm import AsyncLLM
        from legato.tokenization.chat_template import load_chat_template
        from legato.tokenization.grammar_check import GrammarChecker
        from legato.tokenization.tokenizer import load_tokenizer

        tokenizer = load_tokenizer(files.path, _path(config.tokenizer))
        file = tokenizer_file(files.path, _path(config.tokenizer))
        grammar_checker = (
            GrammarChecker(tokenizer, file) if tokenizer is not None and file is not None else None
        )
        chat_template = load_chat_template(files.path, _path(config.chat_template))
    except BaseException:
        client.close()  # nobody will ask anything of this engine
        raise
    logger.info("start: tokenizer %.2f s (in the parent)", time.perf_counter() - since)
    return OpenedModel(
        llm=AsyncLLM(
            client,
            tokenizer,
            chat_template,
            grammar_checker=grammar_checker,
            seed=config.seed,
            tool_call_parser=config.tool_call_parser,
            name=(config.served_model_name or (files.name,))[0],
        ),
        path=files.path,
        default_params=files.default_params if config.generation_config == "auto" else {},
    )


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text).expanduser()
