"""Settings from where a user gives them: arguments, then LEGATO_* variables, then defaults."""

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

from legato.core.config import EngineConfig, ServerConfig
from legato.core.errors import ConfigError

Settings = TypeVar("Settings")

TRUE_WORDS = ("yes", "true", "on", "1")
FALSE_WORDS = ("no", "false", "off", "0")
OTHER_VARIABLES = (
    "LEGATO_HOME",
    "LEGATO_ISA",
    "LEGATO_NATIVE_PATH",
    "LEGATO_PACKED_FOLDER",
)  # read elsewhere: they are no settings of a server or an engine

_EXPECTED = {int: "a whole number", float: "a number", str: "a text", bool: "True or False"}
_BYTES = re.compile(r"(\d+)([KMGT]?)(?:i?B)?", re.IGNORECASE)
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@*]+")
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


@dataclass(frozen=True, slots=True)
class Resolved(Generic[Settings]):
    """Settings and where each came from: "argument", "LEGATO_NAME" or "default"."""

    value: Settings
    sources: Mapping[str, str]


def resolve_settings(
    kind: type[Settings],
    given: Mapping[str, Any],
    environ: Mapping[str, str] | None = None,
    *,
    spelling: Callable[[str], str] = "{}=".format,
) -> Resolved[Settings]:
    """Fill a settings class from `core/config.py`. Raises ConfigError naming what does not fit.

    A name may also be another spelling of the flag: page_size is block_size, LEGATO_PAGE_SIZE its variable.
    A variable that is set to nothing counts as not set, as compose files and shells write it.
    spelling  from a name in `given` to how its user wrote it, up to the value
    """
    environ = os.environ if environ is None else environ
    given = _by_first_name(kind, given)
    values, sources = {}, {}
    for each in fields(kind):  # type: ignore[arg-type]  # a settings class
        variable = next(filter(environ.get, map(_variable, _names(each))), None)
        if each.name in given:
            name, value = given[each.name]
            values[each.name], sources[each.name] = _checked(spelling(name), value, each), "argument"
        elif variable:
            written = f"{variable}="
            value = parse_setting(written, environ[variable], each)
            values[each.name], sources[each.name] = _checked(written, value, each), variable
        else:
            values[each.name], sources[each.name] = each.default, "default"
    return Resolved(kind(**values), sources)


def unknown_variables(environ: Mapping[str, str] | None = None) -> list[str]:
    """A warning for each LEGATO_* variable that nothing reads, with the name that was probably meant."""
    known = known_variables()
    environ = os.environ if environ is None else environ
    unknown = sorted(name for name in environ if name.startswith("LEGATO_") and name not in known)
    return [
        f"the variable {name} is not known and changes nothing{_hint(name, known, cutoff=0.75)}"
        for name in unknown
    ]


def known_variables() -> dict[str, bool]:
    """Each variable that something reads, and whether it holds a secret."""
    settings = [*fields(EngineConfig), *fields(ServerConfig)]
    return dict.fromkeys(OTHER_VARIABLES, False) | {
        _variable(name): each.metadata.get("is_secret", False) for each in settings for name in _names(each)
    }


def parse_setting(written: str, text: str, each: Any) -> Any:
    """The value that a text gives the dataclass field `each`; `written` is what the user wrote before it."""
    if each.metadata.get("is_list"):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    kind = each.metadata.get("type", type(each.default))
    if kind is bool:
        if text.lower() not in TRUE_WORDS + FALSE_WORDS:
            words = f"{', '.join(TRUE_WORDS)}, or {', '.join(FALSE_WORDS)}"
            raise ConfigError(f"{written}{text}: expected {words}")
        return text.lower() in TRUE_WORDS
    if each.metadata.get("is_bytes"):
        return _bytes(written, text)
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(f"{written}{text}: expected {_EXPECTED[kind]}") from None


def _by_first_name(kind: type[Any], given: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Field name -> the name that was given for it, and its value."""
    first = {name: each.name for each in fields(kind) for name in _names(each)}
    found: dict[str, tuple[str, Any]] = {}
    for name, value in given.items():
        if name not in first:
            if name in {each.name for each in fields(ServerConfig)}:
                raise ConfigError(f"{name} is a setting of the HTTP server: give it to legato serve")
            raise ConfigError(f"there is no setting {name!r}{_hint(name, first)}")
        if first[name] in found:
            raise ConfigError(f"{found[first[name]][0]} and {name} are one setting: give one of them")
        found[first[name]] = name, value
    return found


def _names(each: Any) -> list[str]:
    """A field's name, then its other long spellings as names: --page-size is page_size."""
    longs = [alias for alias in each.metadata.get("aliases", ()) if alias.startswith("--")]
    return [each.name, *(alias.removeprefix("--").replace("-", "_") for alias in longs)]


def _variable(name: str) -> str:
    return f"LEGATO_{name.upper()}"


def _hint(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """`cutoff` is how like the name must be, 0 to 1: more where all begin alike."""
    near = get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {near[0]}?" if near else ""


def _bytes(written: str, text: str) -> int:
    found = _BYTES.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"{written}{text}: expected bytes, or a number with K, M, G or T like 512M")
    return int(found[1]) << 10 * _POWERS[found[2].upper()]


def _checked(written: str, value: Any, each: Any) -> Any:
    if each.metadata.get("is_list"):
        parts = _checked_list(written, value)
        if each.metadata.get("is_origin"):
            return tuple(_checked_origin(written, part) for part in parts)
        return parts
    if value is None and each.default is None:
        return None
    expected = each.metadata.get("type", type(each.default))
    if expected is float and type(value) is int:
        value = float(value)
    if type(value) is not expected:  # exactly: True is no number
        raise ConfigError(f"{written}{value!r}: expected {_EXPECTED[expected]}")
    if value is True and "refusal" in each.metadata:
        raise ConfigError(f"{written.rstrip('= ')} is refused: {each.metadata['refusal']}")
    if fault := _fault_of(value, each.metadata):
        raise ConfigError(f"{written}{value}: {fault}")
    return value


def _fault_of(value: Any, rules: Mapping[str, Any]) -> str | None:
    """What a value of the right type breaks; see `core/config.py: flag`."""
    if isinstance(value, int | float):
        return _fault_of_number(value, rules)
    choices = rules.get("choices")
    if choices and value not in choices:
        return f"choose one of {', '.join(choices)}"
    if rules.get("is_url") and not _is_http_url(value):
        return "expected a URL like http://127.0.0.1:8001"
    return None


def _fault_of_number(value: float, rules: Mapping[str, Any]) -> str | None:
    if not math.isfinite(value):
        return "must be finite"
    least, most = rules.get("least", -(2**63)), rules.get("most", 2**63 - 1)
    if value < least and "least" in rules:
        return f"must be at least {least}"
    if not least <= value <= most:
        return f"must be at most {most}" if "most" in rules else "more than 64 bits hold"
    return None


def _is_http_url(text: str) -> bool:
    try:
        url = urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # a port that is no number
        return False


def _checked_origin(written: str, origin: str) -> str:
    """As browsers write it, without the slash that people add."""
    origin = origin.lower().removesuffix("/")
    if origin != "*" and not _ORIGIN.fullmatch(origin):
        raise ConfigError(f"{written}{origin}: expected an origin like https://app.example:8443, or *")
    return origin


def _checked_list(written: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list | tuple) or not all(isinstance(part, str) for part in value):
        raise ConfigError(f"{written.rstrip('= ')}: expected a text or a list of texts")  # it may be a secret
    return tuple(value)
