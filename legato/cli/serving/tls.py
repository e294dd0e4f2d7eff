"""TLS: a certificate and a key that fit are asked for before anything is loaded."""

import ssl

from legato.core.config import ServerConfig
from legato.core.errors import ConfigError


def check_tls(server: ServerConfig) -> bool:
    """Whether to speak TLS. Raises ConfigError when the files cannot be read or do not belong together."""
    if server.ssl_certfile is None:
        if server.ssl_keyfile is not None:
            raise ConfigError("--ssl-keyfile is given without --ssl-certfile; give both, in PEM")
        return False
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for flag, path in (("--ssl-certfile", server.ssl_certfile), ("--ssl-keyfile", server.ssl_keyfile)):
        if path is not None:
            _check_readable(flag, path)
    try:
        # an empty password: a key that wants one must not be asked for on a terminal that nobody watches
        context.load_cert_chain(server.ssl_certfile, server.ssl_keyfile, password="")
    except (ssl.SSLError, OSError) as error:
        key = f"--ssl-keyfile {server.ssl_keyfile}" if server.ssl_keyfile else "a key in the same file"
        raise ConfigError(
            f"--ssl-certfile {server.ssl_certfile} and {key} do not make a pair: {_reason(error)}; both must"
            " be PEM, and the key that of the certificate and without a password"
        ) from None
    return True


def _check_readable(flag: str, path: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise ConfigError(f"{flag} {path}: {error.strerror}") from None


def _reason(error: OSError) -> str:
    reason = getattr(error, "reason", None)
    return str(reason).lower().replace("_", " ") if reason else str(error)
