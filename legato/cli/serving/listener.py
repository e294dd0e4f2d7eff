"""The listening socket, bound before anything is loaded."""

import errno
import ipaddress
import os
import socket

from legato.core.errors import ConfigError, LegatoError

# What the system keeps for a client that does not read, beside what is on its way: else megabytes, by and by.
MAX_UNSENT_BYTES = 128 * 1024


class ListenError(LegatoError):
    """The address cannot be listened on."""


def open_listener(host: str, port: int) -> socket.socket:
    """Listen on host and port; port 0 takes a free one.

    Raises ListenError when the port is taken or not allowed, ConfigError when there is no such address.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(f"--host {host!r} is no address of this machine: {error}") from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        # a port that an ended server has just left may be taken again; one that is listened on may not
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # taken over by its connections
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_UNSENT_BYTES)
        listener.bind(address)
        listener.listen()  # at once: until then another server may bind the same port
    except OSError as error:
        listener.close()
        raise _explained(error, host, port) from None
    return listener


def is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine can reach it."""
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def url_of(listener: socket.socket, *, is_tls: bool = False) -> str:
    """Where a client on this machine finds it."""
    host, port = listener.getsockname()[:2]
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        host = "127.0.0.1" if address.version == 4 else "::1"
    scheme = "https" if is_tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _explained(error: OSError, host: str, port: int) -> LegatoError:
    if error.errno == errno.EADDRINUSE:
        return ListenError(
            f"port {port} on {host} is taken by another program; end that one, or choose another port with"
            " --port or LEGATO_PORT"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return ConfigError(f"--host {host!r} is no address of this machine")
    if error.errno == errno.EACCES:
        return ListenError(
            f"this user may not listen on port {port}; choose one above 1023 with --port or LEGATO_PORT"
        )
    return ListenError(f"cannot listen on port {port} of {host}: {os.strerror(error.errno or 0)}")
