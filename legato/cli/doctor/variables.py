"""The LEGATO_* variables that are set: what they say, which nothing reads, and what does not fit."""

import os
import re
from collections.abc import Iterator

from legato.core.config import EngineConfig, ServerConfig
from legato.core.errors import ConfigError
from legato.core.settings import known_variables, resolve_settings, unknown_variables

MASK = "***"
_CREDENTIALS = re.compile(r"//[^/@]*@")


def lines() -> Iterator[tuple[str, str]]:
    is_secret = known_variables()
    names = sorted(name for name in os.environ if name.startswith("LEGATO_"))
    for name in names:
        yield (
            name,
            _shown(os.environ[name], is_secret.get(name, True)),
        )  # an unknown one may be a key's, misspelt
    for warning in unknown_variables():
        yield "warning", warning
    for kind in (EngineConfig, ServerConfig):
        try:
            resolve_settings(kind, {})
        except ConfigError as error:
            yield "fault", _without_credentials(str(error))
    if not names:
        yield "variables", "no LEGATO_* variable is set"


def _shown(value: str, is_secret: bool) -> str:
    if not value:
        return "set to nothing, which counts as not set"
    return MASK if is_secret else _without_credentials(value)


def _without_credentials(text: str) -> str:
    """A URL may hold a name and a password."""
    return _CREDENTIALS.sub(f"//{MASK}@", text)
