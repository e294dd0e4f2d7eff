"""From the settings of a server to those of each of its models."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from legato.core.config import EngineConfig
from legato.core.errors import ConfigError, ModelError, counted
from legato.modelfiles.catalog import local, served_name

# Settings that fit one model alone -> what to do without them.
_OF_ONE_MODEL = {
    "tokenizer": "each model brings its own",
    "chat_template": "each model brings its own",
    "revision": "a branch is one model's; name the folder of the files that are meant",
    "num_pages": "pages of different models differ in size; give --kv-cache-memory-bytes, which each gets",
    "record": "a recording is of one engine",
}


def split_models(model: str) -> list[str]:
    """The models that LEGATO_MODEL=a,b names; a comma in the name of a file that is there parts nothing."""
    parts = [part.strip() for part in model.split(",") if part.strip()] or [model]
    try:
        return [model] if local(model) is not None else parts
    except ModelError:  # no file has such a name; its parts are looked at one by one
        return parts


def config_of_each(config: EngineConfig, models: Sequence[str]) -> list[EngineConfig]:
    """The settings of each model: all that are given hold for all, and served names are dealt out in order.

    Raises ConfigError for a setting that fits one model alone, or for names that do not tell them apart.
    """
    if len(models) == 1:
        return [replace(config, model=models[0])]
    for name, remedy in _OF_ONE_MODEL.items():
        if getattr(config, name) is not None:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"{flag} cannot be shared by {len(models)} models: {remedy}")
    if config.load_format == "dummy":
        raise ConfigError("--load-format dummy is for one model: made-up weights have no size to plan with")
    names = config.served_model_name or tuple(map(served_name, models))
    if len(names) != len(models):
        raise ConfigError(
            f"--served-model-name gives {counted(len(names), 'name')} to {len(models)} models: with several"
            " models give one for each, in their order"
        )
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ConfigError(f"two models would be called {twice[0]}: give each a name with --served-model-name")
    return [
        replace(config, model=model, served_model_name=(name,))
        for model, name in zip(models, names, strict=True)
    ]
