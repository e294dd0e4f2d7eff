"""API keys out of a file: one a line, so that none stands in a command line or an environment."""

from dataclasses import replace
from pathlib import Path

from legato.core.config import ServerConfig
from legato.core.errors import ConfigError


def with_keys_of_file(server: ServerConfig) -> ServerConfig:
    """The settings with the keys of --api-key-file among those of --api-key.

    Blank lines and lines that begin with # are skipped. Raises ConfigError, which tells no key, when the
    file cannot be read or has no key: a server whose keys are lost must not start without any.
    """
    if server.api_key_file is None:
        return server
    path = Path(server.api_key_file)
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except OSError as error:
        raise ConfigError(f"the API key file {path} cannot be read: {error.strerror}") from None
    except UnicodeError:
        raise ConfigError(f"the API key file {path} cannot be read: it is no text in UTF-8") from None
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"the API key file {path} has no key in it; write one a line")
    return replace(server, api_key=tuple(dict.fromkeys((*server.api_key, *keys))), api_key_file=None)
