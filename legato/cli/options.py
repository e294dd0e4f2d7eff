"""Flags from the tables in `core/config.py`, and the settings that a command line gives."""

import argparse
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import fields
from functools import partial
from typing import Any, TypeVar

from legato.core.config import EngineConfig
from legato.core.errors import ConfigError
from legato.core.settings import Resolved, parse_setting, resolve_settings

Settings = TypeVar("Settings")


def add_settings(
    parser: argparse.ArgumentParser, kind: type[Any], title: str, *, leave_out: Collection[str] = ()
) -> None:
    """A flag for each field of a settings class; one that is not given leaves no trace in the arguments."""
    group = parser.add_argument_group(title)
    for each in fields(kind):
        if each.name not in leave_out:
            group.add_argument(*_spellings(each), **_argument(each))


def add_model(parser: argparse.ArgumentParser) -> None:
    """The positional MODEL, another way to say --model."""
    parser.add_argument(
        "positional_model", nargs="?", metavar="MODEL", default=argparse.SUPPRESS, help="the same as --model"
    )


def add_models(parser: argparse.ArgumentParser) -> None:
    """MODEL, once or more, or --model for each; see given_models."""
    [each] = (each for each in fields(EngineConfig) if each.name == "model")
    parser.add_argument("positional_models", nargs="*", metavar="MODEL", help="the same as --model")
    parser.add_argument(
        *_spellings(each),
        dest="models",
        action="append",
        metavar="MODEL",
        help=f"{_help(each)}; once for each of several",
    )


def given_models(arguments: argparse.Namespace) -> list[str]:
    """The models that a command line with add_models() names.

    Raises ConfigError for two ways at once, and for a model that is named twice.
    """
    by_position, by_flag = arguments.positional_models, arguments.models or []
    if by_position and by_flag and by_position != by_flag:
        raise ConfigError(
            f"models are named in two ways: {' '.join(by_position)} and --model {' --model '.join(by_flag)};"
            " name all of them in one"
        )
    models = by_position or by_flag
    if twice := [model for model, count in Counter(models).items() if count > 1]:
        raise ConfigError(f"the model {twice[0]} is named twice: name each once")
    return list(models)


def add_print_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--print-config", action="store_true", help="print each setting and where it came from, and end"
    )


def resolve(kind: type[Settings], arguments: argparse.Namespace) -> Resolved[Settings]:
    """Arguments win over LEGATO_* variables, those over defaults. Raises ConfigError."""
    return resolve_settings(kind, given_settings(kind, arguments), spelling=_written)


def given_settings(kind: type[Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """Field name -> value of the settings that the command line gives. Raises ConfigError for two models."""
    given = vars(arguments)
    settings = {each.name: given[each.name] for each in fields(kind) if each.name in given}
    if kind is EngineConfig and "models" in given and (models := given_models(arguments)):
        settings["model"] = ",".join(models)
    if kind is EngineConfig and "positional_model" in given:
        model = given["positional_model"]
        if settings.setdefault("model", model) != model:
            raise ConfigError(f"two models are named: {model} and --model {settings['model']}")
    return settings


def as_flags(settings: Mapping[str, Any]) -> list[str]:
    """The words of a command line that gives these settings."""
    words = []
    for name, value in settings.items():
        if isinstance(value, bool):
            words.append(flag_of(name if value else f"no_{name}"))
        else:
            words += [flag_of(name), ",".join(value) if isinstance(value, list | tuple) else str(value)]
    return words


def config_table(*parts: Resolved[Any]) -> str:
    """A line a setting: its flag, its value with secrets masked, and where that came from."""
    rows = [
        (flag_of(each.name), _shown(getattr(part.value, each.name), each.metadata), part.sources[each.name])
        for part in parts
        for each in fields(part.value)
    ]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "\n".join(f"{flag:{widths[0]}}  {value:{widths[1]}}  {source}" for flag, value, source in rows)


def flag_of(name: str) -> str:
    """max_num_seqs -> --max-num-seqs"""
    return "--" + name.replace("_", "-")


def _written(name: str) -> str:
    """What stands before a value on the command line; settings that are wrong are named so."""
    return flag_of(name) + " "


def split_list(text: str) -> list[str]:
    """The parts of a,b,c."""
    return [part.strip() for part in text.split(",") if part.strip()]


def _spellings(each: Any) -> list[str]:
    return [flag_of(each.name), *each.metadata.get("aliases", ())]


def _argument(each: Any) -> dict[str, Any]:
    """What argparse must know of a field besides its spellings."""
    metadata, kind = each.metadata, each.metadata.get("type", type(each.default))
    shared = {"dest": each.name, "default": argparse.SUPPRESS, "help": _help(each)}
    if kind is bool:
        return {**shared, "action": argparse.BooleanOptionalAction}
    metavar = None if metadata.get("choices") else _placeholder(each, kind)
    if metadata.get("is_list"):
        return {**shared, "action": "extend", "type": split_list, "metavar": f"{metavar}[,{metavar}]"}
    parse = partial(parse_setting, _written(each.name), each=each)
    action = _OneModel if each.name == "model" else "store"
    return {
        **shared,
        "action": action,
        "type": parse,
        "choices": metadata.get("choices"),
        "metavar": metavar,
    }


class _OneModel(argparse.Action):
    """Refuses a second --model, where another flag's last value would win: see add_models for several."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if getattr(namespace, self.dest, values) != values:
            first = getattr(namespace, self.dest)
            raise argparse.ArgumentError(self, f"this command takes one model, not {first} and {values}")
        setattr(namespace, self.dest, values)


def _placeholder(each: Any, kind: type[Any]) -> str:
    """What stands for the value in --help: a kind of number, or what the text is."""
    last_word: str = each.name.rpartition("_")[2]
    if kind in (int, float) and last_word != "port":
        if each.metadata.get("is_bytes"):
            return "BYTES"
        if last_word == "s":
            return "SECONDS"
        return "TOKENS" if "token" in each.name or last_word == "len" else "N"
    return last_word.upper()


def _help(each: Any) -> str:
    text: str = each.metadata["help"].replace("%", "%%")
    if each.default in (None, (), "", False):
        return text
    return f"{text} (default: {'yes' if each.default is True else each.default})"


def _shown(value: Any, metadata: Any) -> str:
    if value in (None, (), ""):
        return "-"
    if metadata.get("is_secret"):
        return "***"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(value) if isinstance(value, tuple) else str(value)
