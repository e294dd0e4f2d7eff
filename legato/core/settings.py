"""Settings from where a user gives them: arguments, then LEGATO_* variables, then defaults."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, Generic, TypeVar

from legato.core.errors import ConfigError

Settings = TypeVar("Settings")

TRUE_WORDS = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS = frozenset({"0", "false", "no", "off"})


@dataclass(frozen=True, slots=True)
class Resolved(Generic[Settings]):
    """Settings and where each came from: "argument", "LEGATO_NAME" or "default"."""

    value: Settings
    sources: Mapping[str, str]


def resolve_settings(
    kind: type[Settings], given: Mapping[str, Any], environ: Mapping[str, str] | None = None
) -> Resolved[Settings]:
    """Fill a settings class from `core/config.py`. Raises ConfigError naming what does not fit.

    A variable that is set to nothing counts as not set, as compose files and shells write it.
    """
    environ = os.environ if environ is None else environ
    table = {each.name: each for each in fields(kind)}  # type: ignore[arg-type]
    for name in given:
        if name not in table:
            near = get_close_matches(name, table, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"there is no setting {name!r}{hint}")
    values, sources = {}, {}
    for name, each in table.items():
        variable = f"LEGATO_{name.upper()}"
        if name in given:
            values[name], sources[name] = _checked(name, given[name], each), "argument"
        elif environ.get(variable):
            value = parse_setting(variable, environ[variable], each)
            values[name], sources[name] = _checked(variable, value, each), variable
        else:
            values[name], sources[name] = each.default, "default"
    return Resolved(kind(**values), sources)


def parse_setting(name: str, text: str, each: Any) -> Any:
    """The value that a text gives the dataclass field `each`; `name` is what the user wrote."""
    if each.metadata.get("is_list"):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    kind = each.metadata.get("type", type(each.default))
    if kind is bool:
        if text.lower() not in TRUE_WORDS | FALSE_WORDS:
            raise ConfigError(f"{name}={text!r}: say 1 or 0")
        return text.lower() in TRUE_WORDS
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(f"{name}={text!r}: expected {kind.__name__}") from None


def _checked(name: str, value: Any, each: Any) -> Any:
    if each.metadata.get("is_list"):
        return _checked_list(name, value)
    if value is None and each.default is None:
        return None
    expected = each.metadata.get("type", type(each.default))
    if type(value) is not expected:  # exactly: True is no number
        raise ConfigError(f"{name}={value!r}: expected {expected.__name__}")
    if expected is int and not -(2**63) <= value < 2**63:
        raise ConfigError(f"{name}={value}: more than 64 bits hold")
    choices = each.metadata.get("choices")
    if choices and value not in choices:
        raise ConfigError(f"{name}={value!r}: choose one of {', '.join(choices)}")
    least = each.metadata.get("least")
    if least is not None and value < least:
        raise ConfigError(f"{name}={value}: must be at least {least}")
    return value


def _checked_list(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list | tuple) or not all(isinstance(part, str) for part in value):
        raise ConfigError(f"{name}: expected a text or a list of texts")  # not shown: it may be a secret
    return tuple(value)
